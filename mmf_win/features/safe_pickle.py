"""Unpickling for region features: plain values and numpy's plain arrays, and nothing that could run code.

Numpy trusts what it unpickles: it reads as many objects as a shape says, and follows whatever a type calls an
address. The unpickler in C ends the process where it hashes deeply nested tuples, and takes any memory for
the numbers of a memo. So this is Python's own, which here knows only the instructions that numpy writes, and
makes only what was checked.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from mmf_win.errors import DamagedFeaturesError, UnsafeFeaturesError

_ALLOWED_GLOBALS = re.compile(
    r"numpy\.(ndarray|dtype)|numpy\._?core\.(multiarray\.(_reconstruct|scalar)|numeric\._frombuffer)"
    r"|_codecs\.encode|__builtin__\.bytes"  # which make bytes
)
# By their names in pickletools; first all that push a plain value.
_ALLOWED_INSTRUCTIONS = {
    opcode.name
    for opcode in pickletools.opcodes
    if opcode.arg and not opcode.stack_before and opcode.stack_after not in ([], [pickletools.anyobject])
}
_ALLOWED_INSTRUCTIONS |= {
    "NONE",
    "NEWTRUE",
    "NEWFALSE",
    "MARK",
    "PROTO",
    "FRAME",
    "STOP",
    "GLOBAL",
    "STACK_GLOBAL",
}
_ALLOWED_INSTRUCTIONS |= {
    "EMPTY_TUPLE",
    "TUPLE",
    "TUPLE1",
    "TUPLE2",
    "TUPLE3",
    "EMPTY_LIST",
    "LIST",
    "EMPTY_DICT",
}
_ALLOWED_INSTRUCTIONS |= {"DICT", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "REDUCE", "BUILD", "MEMOIZE"}
_ALLOWED_INSTRUCTIONS |= {"PUT", "BINPUT", "LONG_BINPUT", "GET", "BINGET", "LONG_BINGET"}
_ALLOWED_DTYPES = re.compile(r"b1|[iu][1248]|f[248]|[SU]\d{1,7}|O8?")
_FEATURE_KEYS = ("features", "feature", "image_feat")  # MMF's names in a dictionary in the place of the array
_PythonUnpickler: Any = pickle._Unpickler
_MAX_DEPTH = 30  # parts within parts
_MAX_PARTS = 2_000_000  # instructions, each of which may take 100 times its size
_MAX_EMPTY_CELLS = 1 << 20  # rows × columns of an array without bytes


class UnsafePickleError(pickle.UnpicklingError):
    """A pickle holds what numpy does not write, and to load it could run any code."""


class DamagedPickleError(ValueError):
    """A pickle is damaged, for this ``reason``."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"it cannot be read: {reason}")
        self.reason = reason


class _NotFromNumpyError(ValueError):
    """A pickle holds what numpy does not write, but what is damaged may hold as well."""


def _unsafe_pickle_error(reason: str) -> UnsafePickleError:
    return UnsafePickleError(f"it {reason}, and only plain arrays are loaded")


class _GlobalName(str):
    """What a pickle names, and nothing else of Python."""


class _PickleFile(io.BytesIO):
    def readline(self, size: int | None = -1, /) -> bytes:
        """Return a line with its end, which the unpickler cuts off unseen."""
        if not (line := super().readline(size)).endswith(b"\n"):
            raise ValueError("no newline found")
        return line


class _SafeUnpickler(_PythonUnpickler):  # type: ignore[misc]
    """Reads one pickle; the arrays in it, and its parts in the end, are at most so many bytes and parts."""

    def __init__(self, file: _PickleFile, budget: int) -> None:
        super().__init__(file)
        self.read, self.readline, self._budget = file.read, file.readline, budget
        self._array_dtypes: dict[int, object] = {}  # types that arrays have, by their ids

    def find_class(self, module: str, name: str, /) -> Any:
        """Return a name that numpy writes; what it names is not looked up."""
        if not _ALLOWED_GLOBALS.fullmatch(f"{module}.{name}"):
            raise _unsafe_pickle_error(f"names {f'{module}.{name}':.100}")
        return _GlobalName(name)

    def load(self) -> Any:
        """Return what the pickle makes, as the original does, which has no limit."""
        self.metastack: list[list[Any]] = []
        self.stack: list[Any] = []
        self.append = self.stack.append
        read, dispatch = self.read, self.dispatch
        try:
            for _ in range(_MAX_PARTS):
                dispatch[read(1)](self)
        except pickle._Stop as stop:  # type: ignore[attr-defined]
            return stop.value
        raise ValueError("it has too many parts")

    def load_frame(self) -> None:
        """Ignore a frame, so that the file tells where an error is."""
        self.read(8)

    def load_bytearray8(self) -> None:
        """Push a bytearray; the original takes the memory before it looks for the bytes."""
        size = int.from_bytes(self.read(8), "little")
        self.append(bytearray(self.read(size)))

    def load_setitem(self) -> None:
        """Set an item of a dictionary."""
        _require_text_keys(self.stack[-3], self.stack[-2:-1])
        super().load_setitem()

    def load_setitems(self) -> None:
        """Set items of a dictionary."""
        _require_text_keys(self.metastack[-1][-1], self.stack[::2])
        super().load_setitems()

    def load_dict(self) -> None:
        """Push a dictionary."""
        _require_text_keys({}, self.stack[::2])
        super().load_dict()

    def load_reduce(self) -> None:
        """Push what numpy makes of its own pickles."""
        arguments, name = self.stack.pop(), self.stack.pop()
        match type(name) is _GlobalName and name, arguments:
            case "encode", (str(text), "latin1"):
                self.spend_budget(len(text))
                made: Any = text.encode("latin1")
            case "bytes", ():
                made = b""
            case "dtype", (str(code), 0, 1):  # or False and True
                made = _make_dtype(code)
            case "scalar", (dtype, data):
                made = self._make_array(data, dtype, (), "C")[()]
            case "_frombuffer", (data, dtype, shape, order):
                made = self._make_array(data, dtype, shape, order)
            case "_frombuffer", (data, dtype, shape, "K", axes):
                made = self._make_array(data, dtype, shape, "C").transpose(axes)
            case "_reconstruct", ("ndarray", (0,), b"b"):
                made = _make_empty_array()
            case _:
                raise _unsafe_pickle_error(
                    f"calls {name if type(name) is _GlobalName else 'a value'} as numpy does not"
                )
        self.append(made)

    def load_build(self) -> None:
        """Give a type or an array the state that numpy writes."""
        import numpy as np

        state, built = self.stack.pop(), self.stack[-1]
        match state, built:
            case (1, shape, dtype, bool(is_fortran), data), np.ndarray():
                # A dictionary is put into an array by numpy.save.
                if not (dtype == "O" and shape == () and type(data) is list and [*map(type, data)] == [dict]):
                    self._make_array(data, dtype, shape, "F" if is_fortran else "C")
            case _, np.dtype() if id(built) not in self._array_dtypes:
                own: Any = built.__reduce__()[2]
                if state not in [(own[0], order, *own[2:]) for order in "<>|="]:
                    raise _unsafe_pickle_error(f"changes the type {built}")
            case _:
                _refuse_instruction("BUILD", self)
        built.__setstate__(state)

    def _make_array(self, data: Any, dtype: Any, shape: Any, order: object) -> Any:
        import numpy as np

        if not isinstance(dtype, np.dtype) or type(data) not in (bytes, bytearray):
            raise _unsafe_pickle_error("makes an array of something else than bytes")
        self._array_dtypes[id(dtype)] = dtype
        array = make_plain_array(data, dtype, shape, order)
        self.spend_budget(array.nbytes)  # of a type without a size, numpy makes one that has one
        return array

    def require_plain(self, value: Any, depth: int = _MAX_DEPTH) -> None:
        """Raise Refused where a part is a name, and ValueError where there are too many, or too deep ones."""
        self.spend_budget(1)
        if not depth:
            raise _NotFromNumpyError("it is nested too deeply")
        if type(value) is _GlobalName:
            raise _unsafe_pickle_error(f"holds {value}")
        if getattr(value, "dtype", None) == "O":
            value = value.item()
        if isinstance(value, (dict, list, tuple)):
            for part in value.values() if isinstance(value, dict) else value:
                self.require_plain(part, depth - 1)

    def spend_budget(self, size: int) -> None:
        """Count parts or bytes. Raises ValueError where they are more than the pickle can mean."""
        self._budget -= size
        if self._budget < 0:
            raise _NotFromNumpyError("what it holds is larger than it")


def _refuse_instruction(name: str, _unpickler: _SafeUnpickler) -> None:
    raise _unsafe_pickle_error(f"has the instruction {name} where numpy does not write it")


def _refuse_end(_unpickler: _SafeUnpickler) -> None:
    raise ValueError("it ends too early")


_SafeUnpickler.dispatch = {b"": _refuse_end} | {
    opcode.code.encode("latin1"): getattr(
        _SafeUnpickler, _PythonUnpickler.dispatch[ord(opcode.code)].__name__
    )
    if opcode.name in _ALLOWED_INSTRUCTIONS
    else partial(_refuse_instruction, opcode.name)
    for opcode in pickletools.opcodes
}


def _require_text_keys(target: object, keys: Sequence[object]) -> None:
    """Refuse items of what is no dictionary, and keys that are no text: to hash tuples may take any stack."""
    if type(target) is not dict:
        raise _unsafe_pickle_error("sets items where numpy does not")
    if any(type(key) is not str for key in keys):
        raise _unsafe_pickle_error("has keys that are no text")


def _make_empty_array() -> Any:
    import numpy as np

    return np.ndarray((0,), "b")


def _make_dtype(code: str) -> Any:
    import numpy as np  # what is without arrays is read without it

    if not _ALLOWED_DTYPES.fullmatch(code):
        raise _unsafe_pickle_error(f"makes the type {code:.40}")
    return np.dtype(code, copy=True)  # its state may change


def make_plain_array(data: bytes | bytearray, dtype: Any, shape: Any, order: object) -> Any:
    """An array of numbers or text. Raises Refused for another type, and ValueError for a wrong size."""
    import numpy as np

    if dtype.kind not in "biufSU":
        raise _unsafe_pickle_error(f"makes an array of the type {dtype!s:.40}")
    if type(shape) is not tuple or len(shape) > 32 or any(type(n) is not int or n >> 60 for n in shape):
        raise _NotFromNumpyError("the shape of an array is none")
    cells = math.prod(n or 1 for n in shape)
    if math.prod(shape) * dtype.itemsize != len(data) or cells > max(len(data), _MAX_EMPTY_CELLS):
        raise _NotFromNumpyError(f"an array of {shape} has {len(data)} bytes")
    array: Any = np.ndarray(shape, dtype, data, order="F" if order == "F" else "C").copy("K")
    if dtype.kind == "U" and array.size:
        try:
            array.tolist()
        except (ValueError, SystemError) as error:  # its readers would meet what is no character
            raise _NotFromNumpyError(str(error)) from None
    return array


def load_pickle(pickled: bytes | memoryview) -> Any:
    """What ``pickle.loads`` returns. Raises Refused where that could do harm, ValueError for damage."""
    file = _PickleFile(pickled)
    try:
        reader = _SafeUnpickler(file, 3 * len(pickled))  # a memo repeats what there is at no cost
        value = reader.load()
        reader.require_plain(value)
    except (UnsafePickleError, MemoryError):
        raise
    except _NotFromNumpyError as error:
        raise _unsafe_pickle_error(f"holds what numpy does not write ({error})") from error
    except Exception as error:  # whatever a damaged pickle leads to
        what = "unknown instruction" if isinstance(error, KeyError) else str(error) or type(error).__name__
        raise DamagedPickleError(f"{what} at position {max(0, file.tell() - 1)}") from error
    return value


def load_npy(content: bytes) -> Any:
    """What ``numpy.load`` returns of a plain array, or of a dictionary, which ``numpy.save`` puts into one.

    Raises Refused where it would run code; where it is damaged, exceptions of numpy's say how.
    """
    import numpy as np

    file = io.BytesIO(content)
    np.lib.format.read_magic(file)
    try:
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    except (MemoryError, RecursionError):  # Python's parser says so of what is nested too deeply
        raise ValueError("its header cannot be read") from None
    if dtype.hasobject:
        if not isinstance(array := load_pickle(file.read()), np.ndarray):
            raise ValueError(f"it holds no array, but {type(array).__name__}")
        return array
    return make_plain_array(file.read(), dtype, shape, "F" if is_fortran else "C")


def require_features(record: Any) -> Any:
    """A record of an LMDB. Raises ValueError where MMF can take no features out of it."""
    import numpy as np

    features = record.get("features") if isinstance(record, dict) else None
    if isinstance(features, np.ndarray) and features.dtype == "O":  # of other datasets; load_npy says what
        features = next((features.item()[name] for name in _FEATURE_KEYS if name in features.item()), None)
    if not isinstance(features, np.ndarray) or features.ndim < 2 or features.dtype.kind not in "biuf":
        raise ValueError("it has no features, which are an array of numbers, regions × numbers")
    return record


@contextmanager
def translate_pickle_errors(
    path: Path, part: str = "", damage: tuple[type[Exception], ...] = (ValueError,)
) -> Iterator[None]:
    """Say of which file, and ``part`` of it, errors are: that it was refused, or else that it is damaged."""
    try:
        yield
    except UnsafePickleError as error:
        message = f"not used, since what is in it could run code: {part}{error}"
        raise UnsafeFeaturesError(message, prefix=f"{path}:") from None
    except MemoryError:
        raise
    except damage as error:
        raise DamagedFeaturesError(f"{path}: damaged: {part}{error}") from None
