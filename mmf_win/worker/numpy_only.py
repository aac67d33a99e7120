"""Unpickling for region features: plain values and numpy's arrays, and nothing that could run code."""

from __future__ import annotations

import io
import pickle
from typing import Any

_NUMPY = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy.core.numeric", "_frombuffer"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}


class Refused(pickle.UnpicklingError):
    """A pickle names something that is not numpy's, and to load it could run any code."""


class NumpyOnly(pickle.Unpickler):
    """Loads plain values and numpy's arrays."""

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
        return NumpyOnly(io.BytesIO(pickled)).load()
    except Refused:
        raise
    except Exception as error:  # whatever a damaged pickle leads to
        raise ValueError(f"it cannot be read: {error}") from error
