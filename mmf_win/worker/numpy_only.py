"""Unpickling for region features: plain values and numpy's plain arrays, and nothing that could run code."""

from __future__ import annotations

import io
import pickle
from typing import Any, ClassVar

_Unpickler: Any = pickle._Unpickler  # that of C shows no states
_NUMPY = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy.core.numeric", "_frombuffer"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}


class Refused(pickle.UnpicklingError):
    """A pickle names something that is not numpy's, and to load it could run any code."""


class _Bytes(io.BytesIO):
    def readline(self, size: int | None = -1) -> bytes:
        """A line that ends: one that was cut off is no name that could be refused."""
        line = super().readline(size)
        if not line.endswith(b"\n"):
            raise EOFError("it is cut off")
        return line


class NumpyOnly(_Unpickler):  # type: ignore[misc]  # Python has no types of it
    """Loads plain values and numpy's arrays."""

    dispatch: ClassVar = dict(_Unpickler.dispatch)

    def _build(self) -> None:
        """Refuse types that numpy does not write: it follows any address in what a pickle calls objects."""
        import numpy as np  # what is without arrays is read without it

        state, kind = self.stack[-1], self.stack[-2]
        if isinstance(kind, np.dtype):
            own = kind.__reduce__()[2]
            if not isinstance(state, tuple) or (state[:1], state[2:]) != (own[:1], own[2:]):
                raise Refused(f"it changes the type {kind}, and only plain arrays are loaded")
        self.load_build()

    dispatch[pickle.BUILD[0]] = _build

    def find_class(self, module: str, name: str) -> Any:
        """Allow what rebuilds arrays; refuse everything else."""
        if (module.replace("numpy._core", "numpy.core"), name) in _NUMPY:  # numpy 2 has moved them
            return super().find_class(module, name)
        raise Refused(f"it names {module}.{name}, and only numpy's classes are loaded")


def loads(pickled: bytes | memoryview) -> Any:
    """What ``pickle.loads`` returns.

    Raises:
        Refused: it would run code.
        ValueError: it is damaged.
    """
    try:
        return NumpyOnly(_Bytes(pickled)).load()
    except Refused:
        raise
    except Exception as error:  # whatever a damaged pickle leads to
        raise ValueError(f"it cannot be read: {error}") from error
