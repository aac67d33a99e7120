"""Unpickling for region features: plain values and numpy's plain arrays, and nothing that could run code."""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from mmf_win.errors import DamagedFeatures, HostileFeatures

_Unpickler: Any = pickle._Unpickler  # that of C shows no states
_NUMPY = {("numpy.core.multiarray", "scalar"), ("numpy.core.numeric", "_frombuffer")}
_CODE = re.compile(r"[<>=|]?([?bBhHiIlLqQefdgFDGO]|[biufcSUVO]\d+)")  # of one plain type


class Refused(pickle.UnpicklingError):
    """A pickle names something that is not numpy's, and to load it could run any code."""


class _Bytes(io.BytesIO):
    def readline(self, size: int | None = -1) -> bytes:
        """A line that ends: one that was cut off is no name that could be refused."""
        line = super().readline(size)
        if not line.endswith(b"\n"):
            raise EOFError("it is cut off")
        return line


def _empty(*_: object) -> Any:
    """An array whose state follows, whatever a pickle asks for."""
    import numpy as np

    return np.ndarray(0, "b")


def _dtype(code: object, *_: object) -> Any:
    """A type by its code; numpy pickles no type by anything else."""
    import numpy as np

    if type(code) is not str or not _CODE.fullmatch(code):
        raise Refused(f"it makes the type {code!r:.40}, and only plain arrays are loaded")
    return np.dtype(code, False, True)  # a copy, since its byte order may follow


def _array(*_: object) -> NoReturn:
    """Stands for ``numpy.ndarray``, which is only named: called, it takes any bytes for addresses."""
    raise Refused("it makes an array of parts of its own, and only plain arrays are loaded")


_OURS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _empty,
    ("numpy", "ndarray"): _array,
    ("numpy", "dtype"): _dtype,
}


class NumpyOnly(_Unpickler):  # type: ignore[misc]  # Python has no types of it
    """Loads plain values and numpy's arrays."""

    dispatch: ClassVar = dict(_Unpickler.dispatch)

    def _build(self) -> None:
        """Refuse types that numpy does not write: it follows any address in what a pickle calls objects."""
        import numpy as np  # what is without arrays is read without it

        state, built = self.stack[-1], self.stack[-2]
        if isinstance(built, np.dtype):
            own = built.__reduce__()[2]
            if not isinstance(state, tuple) or (state[:1], state[2:]) != (own[:1], own[2:]):
                raise Refused(f"it changes the type {built}, and only plain arrays are loaded")
        elif not isinstance(built, np.ndarray):
            raise Refused(f"it changes {built!r:.40}, and only plain arrays are loaded")
        self.load_build()

    dispatch[pickle.BUILD[0]] = _build

    def find_class(self, module: str, name: str) -> Any:
        """Allow what rebuilds arrays; refuse everything else."""
        known = (module.replace("numpy._core", "numpy.core"), name)  # numpy 2 has moved them
        if known in _OURS:
            return _OURS[known]
        if known in _NUMPY:
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


@contextmanager
def told_of(lmdb: Path, damage: tuple[type[Exception], ...] = (ValueError,)) -> Iterator[None]:
    """Say of which LMDB errors are: that it was refused, or else that it is damaged."""
    try:
        yield
    except Refused as error:
        raise HostileFeatures(f"{lmdb}: not used, since what is in it would run code: {error}") from None
    except damage as error:
        raise DamagedFeatures(f"{lmdb}: damaged: {error}") from None
