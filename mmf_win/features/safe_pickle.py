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

_NAME = re.compile(
    r"numpy\.(ndarray|dtype)|numpy\._?core\.(multiarray\.(_reconstruct|scalar)|numeric\._frombuffer)"
    r"|_codecs\.encode|__builtin__\.bytes"  # which make bytes
)
# By their names in pickletools; first all that push a plain value.
_INSTRUCTIONS = {
    opcode.name
    for opcode in pickletools.opcodes
    if opcode.arg and not opcode.stack_before and opcode.stack_after not in ([], [pickletools.anyobject])
}
_INSTRUCTIONS |= {"NONE", "NEWTRUE", "NEWFALSE", "MARK", "PROTO", "FRAME", "STOP", "GLOBAL", "STACK_GLOBAL"}
_INSTRUCTIONS |= {"EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "LIST", "EMPTY_DICT"}
_INSTRUCTIONS |= {"DICT", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "REDUCE", "BUILD", "MEMOIZE"}
_INSTRUCTIONS |= {"PUT", "BINPUT", "LONG_BINPUT", "GET", "BINGET", "LONG_BINGET"}
_TYPE = re.compile(r"b1|[iu][1248]|f[248]|[SU]\d{1,7}|O8?")
_IN_FEATURES = ("features", "feature", "image_feat")  # MMF's names in a dictionary in the place of the array
_Unpickler: Any = pickle._Unpickler
_DEEPEST = 30  # parts within parts
_MOST_PARTS = 2_000_000  # instructions, each of which may take 100 times its size
_MOST_EMPTY = 1 << 20  # rows × columns of an array without bytes


class Refused(pickle.UnpicklingError):
    """A pickle holds what numpy does not write, and to load it could run any code."""


class Unreadable(ValueError):
    """A pickle is damaged, for this ``reason``."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"it cannot be read: {reason}")
        self.reason = reason


class _NotWritten(ValueError):
    """A pickle holds what numpy does not write, but what is damaged may hold as well."""


def _refused(what: str) -> Refused:
    return Refused(f"it {what}, and only plain arrays are loaded")


class _Name(str):
    """What a pickle names, and nothing else of Python."""


class _File(io.BytesIO):
    def readline(self, size: int | None = -1, /) -> bytes:
        """Return a line with its end, which the unpickler cuts off unseen."""
        if not (line := super().readline(size)).endswith(b"\n"):
            raise ValueError("no newline found")
        return line


class _Reader(_Unpickler):  # type: ignore[misc]
    """Reads one pickle; the arrays in it, and its parts in the end, are at most so many bytes and parts."""

    def __init__(self, file: _File, left: int) -> None:
        super().__init__(file)
        self.read, self.readline, self._left = file.read, file.readline, left
        self._used: dict[int, object] = {}  # types that arrays have, by their ids

    def find_class(self, module: str, name: str, /) -> Any:
        """Return a name that numpy writes; what it names is not looked up."""
        if not _NAME.fullmatch(f"{module}.{name}"):
            raise _refused(f"names {f'{module}.{name}':.100}")
        return _Name(name)

    def load(self) -> Any:
        """Return what the pickle makes, as the original does, which has no limit."""
        self.metastack: list[list[Any]] = []
        self.stack: list[Any] = []
        self.append = self.stack.append
        read, dispatch = self.read, self.dispatch
        try:
            for _ in range(_MOST_PARTS):
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
        _require_items(self.stack[-3], self.stack[-2:-1])
        super().load_setitem()

    def load_setitems(self) -> None:
        """Set items of a dictionary."""
        _require_items(self.metastack[-1][-1], self.stack[::2])
        super().load_setitems()

    def load_dict(self) -> None:
        """Push a dictionary."""
        _require_items({}, self.stack[::2])
        super().load_dict()

    def load_reduce(self) -> None:
        """Push what numpy makes of its own pickles."""
        arguments, name = self.stack.pop(), self.stack.pop()
        match type(name) is _Name and name, arguments:
            case "encode", (str(text), "latin1"):
                self.spend(len(text))
                made: Any = text.encode("latin1")
            case "bytes", ():
                made = b""
            case "dtype", (str(code), 0, 1):  # or False and True
                made = _dtype(code)
            case "scalar", (dtype, data):
                made = self._array(data, dtype, (), "C")[()]
            case "_frombuffer", (data, dtype, shape, order):
                made = self._array(data, dtype, shape, order)
            case "_frombuffer", (data, dtype, shape, "K", axes):
                made = self._array(data, dtype, shape, "C").transpose(axes)
            case "_reconstruct", ("ndarray", (0,), b"b"):
                made = _empty()
            case _:
                raise _refused(f"calls {name if type(name) is _Name else 'a value'} as numpy does not")
        self.append(made)

    def load_build(self) -> None:
        """Give a type or an array the state that numpy writes."""
        import numpy as np

        state, built = self.stack.pop(), self.stack[-1]
        match state, built:
            case (1, shape, dtype, bool(is_fortran), data), np.ndarray():
                # A dictionary is put into an array by numpy.save.
                if not (dtype == "O" and shape == () and type(data) is list and [*map(type, data)] == [dict]):
                    self._array(data, dtype, shape, "F" if is_fortran else "C")
            case _, np.dtype() if id(built) not in self._used:
                own: Any = built.__reduce__()[2]
                if state not in [(own[0], order, *own[2:]) for order in "<>|="]:
                    raise _refused(f"changes the type {built}")
            case _:
                _refuse_instruction("BUILD", self)
        built.__setstate__(state)

    def _array(self, data: Any, dtype: Any, shape: Any, order: object) -> Any:
        import numpy as np

        if not isinstance(dtype, np.dtype) or type(data) not in (bytes, bytearray):
            raise _refused("makes an array of something else than bytes")
        self._used[id(dtype)] = dtype
        array = plain_array(data, dtype, shape, order)
        self.spend(array.nbytes)  # of a type without a size, numpy makes one that has one
        return array

    def require_plain(self, value: Any, depth: int = _DEEPEST) -> None:
        """Raise Refused where a part is a name, and ValueError where there are too many, or too deep ones."""
        self.spend(1)
        if not depth:
            raise _NotWritten("it is nested too deeply")
        if type(value) is _Name:
            raise _refused(f"holds {value}")
        if getattr(value, "dtype", None) == "O":
            value = value.item()
        if isinstance(value, (dict, list, tuple)):
            for part in value.values() if isinstance(value, dict) else value:
                self.require_plain(part, depth - 1)

    def spend(self, size: int) -> None:
        """Count parts or bytes. Raises ValueError where they are more than the pickle can mean."""
        self._left -= size
        if self._left < 0:
            raise _NotWritten("what it holds is larger than it")


def _refuse_instruction(name: str, _reader: _Reader) -> None:
    raise _refused(f"has the instruction {name} where numpy does not write it")


def _end(_reader: _Reader) -> None:
    raise ValueError("it ends too early")


_Reader.dispatch = {b"": _end} | {
    opcode.code.encode("latin1"): getattr(_Reader, _Unpickler.dispatch[ord(opcode.code)].__name__)
    if opcode.name in _INSTRUCTIONS
    else partial(_refuse_instruction, opcode.name)
    for opcode in pickletools.opcodes
}


def _require_items(target: object, keys: Sequence[object]) -> None:
    """Refuse items of what is no dictionary, and keys that are no text: to hash tuples may take any stack."""
    if type(target) is not dict:
        raise _refused("sets items where numpy does not")
    if any(type(key) is not str for key in keys):
        raise _refused("has keys that are no text")


def _empty() -> Any:
    import numpy as np

    return np.ndarray((0,), "b")


def _dtype(code: str) -> Any:
    import numpy as np  # what is without arrays is read without it

    if not _TYPE.fullmatch(code):
        raise _refused(f"makes the type {code:.40}")
    return np.dtype(code, copy=True)  # its state may change


def plain_array(data: bytes | bytearray, dtype: Any, shape: Any, order: object) -> Any:
    """An array of numbers or text. Raises Refused for another type, and ValueError for a wrong size."""
    import numpy as np

    if dtype.kind not in "biufSU":
        raise _refused(f"makes an array of the type {dtype!s:.40}")
    if type(shape) is not tuple or len(shape) > 32 or any(type(n) is not int or n >> 60 for n in shape):
        raise _NotWritten("the shape of an array is none")
    cells = math.prod(n or 1 for n in shape)
    if math.prod(shape) * dtype.itemsize != len(data) or cells > max(len(data), _MOST_EMPTY):
        raise _NotWritten(f"an array of {shape} has {len(data)} bytes")
    array: Any = np.ndarray(shape, dtype, data, order="F" if order == "F" else "C").copy("K")
    if dtype.kind == "U" and array.size:
        try:
            array.tolist()
        except (ValueError, SystemError) as error:  # its readers would meet what is no character
            raise _NotWritten(str(error)) from None
    return array


def loads(pickled: bytes | memoryview) -> Any:
    """What ``pickle.loads`` returns. Raises Refused where that could do harm, ValueError for damage."""
    file = _File(pickled)
    try:
        reader = _Reader(file, 3 * len(pickled))  # a memo repeats what there is at no cost
        value = reader.load()
        reader.require_plain(value)
    except (Refused, MemoryError):
        raise
    except _NotWritten as error:
        raise _refused(f"holds what numpy does not write ({error})") from error
    except Exception as error:  # whatever a damaged pickle leads to
        what = "unknown instruction" if isinstance(error, KeyError) else str(error) or type(error).__name__
        raise Unreadable(f"{what} at position {max(0, file.tell() - 1)}") from error
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
        if not isinstance(array := loads(file.read()), np.ndarray):
            raise ValueError(f"it holds no array, but {type(array).__name__}")
        return array
    return plain_array(file.read(), dtype, shape, "F" if is_fortran else "C")


def require_features(record: Any) -> Any:
    """A record of an LMDB. Raises ValueError where MMF can take no features out of it."""
    import numpy as np

    features = record.get("features") if isinstance(record, dict) else None
    if isinstance(features, np.ndarray) and features.dtype == "O":  # of other datasets; load_npy says what
        features = next((features.item()[name] for name in _IN_FEATURES if name in features.item()), None)
    if not isinstance(features, np.ndarray) or features.ndim < 2 or features.dtype.kind not in "biuf":
        raise ValueError("it has no features, which are an array of numbers, regions × numbers")
    return record


@contextmanager
def told_of(
    path: Path, part: str = "", damage: tuple[type[Exception], ...] = (ValueError,)
) -> Iterator[None]:
    """Say of which file, and ``part`` of it, errors are: that it was refused, or else that it is damaged."""
    try:
        yield
    except Refused as error:
        message = f"not used, since what is in it could run code: {part}{error}"
        raise UnsafeFeaturesError(message, prefix=f"{path}:") from None
    except MemoryError:
        raise
    except damage as error:
        raise DamagedFeaturesError(f"{path}: damaged: {part}{error}") from None
