"""Unpickling for region features: plain values and numpy's plain arrays, and nothing that could run code.

Numpy trusts what it unpickles: it reads as many objects as a shape says, and follows whatever a type calls an
address. So a pickle is read without numpy, and what it calls is done only if numpy writes such calls.
"""

from __future__ import annotations

import io
import math
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from mmf_win.errors import DamagedFeatures, HostileFeatures

_Unpickler: Any = pickle._Unpickler  # that of C reserves memory for whatever number it reads
_NAMES = {"numpy.ndarray", "numpy.dtype", "_codecs.encode", "__builtin__.bytes"}  # the last two make bytes
for _core in ("numpy.core", "numpy._core"):  # of numpy 1 and 2
    _NAMES |= {
        f"{_core}.multiarray._reconstruct",
        f"{_core}.multiarray.scalar",
        f"{_core}.numeric._frombuffer",
    }
_TYPE = re.compile(r"b1|[iu][1248]|f[248]|[SU]\d{1,7}|O8?")
_NEVER = "PERSID BINPERSID INST OBJ NEWOBJ NEWOBJ_EX EXT1 EXT2 EXT4 NEXT_BUFFER READONLY_BUFFER"
_NEVER += " EMPTY_SET ADDITEMS FROZENSET"
_DEEPEST = 30  # parts within parts
_MOST_READS = 2_000_000  # a list of half a million keys takes as many
_MOST_EMPTY = 1 << 20  # rows × columns of an array without bytes


class Refused(pickle.UnpicklingError):
    """A pickle holds what numpy does not write, and to load it could run any code."""


def _refused(what: str) -> Refused:
    return Refused(f"it {what}, and only plain arrays are loaded")


class _Bytes(io.BytesIO):
    reads = 0

    def read(self, size: int | None = -1) -> bytes:
        self.reads += 1
        if self.reads > _MOST_READS:
            raise ValueError("it has too many parts")
        return super().read(size)

    def readline(self, size: int | None = -1) -> bytes:
        """A line that ends: one that was cut off is no name that could be refused."""
        line = super().readline(size)
        if not line.endswith(b"\n"):
            raise EOFError("it is cut off")
        return line


class _Name(str):
    """What a pickle names, and nothing else of Python."""


@dataclass(eq=False)
class _Call:
    """What a pickle calls, and the state that it gives the result; neither is done."""

    name: object
    args: object
    state: Any = None
    result: Any = None

    def __setitem__(self, *_: object) -> NoReturn:
        raise _refused("writes into what is neither a list nor a dictionary")

    append = extend = __setitem__


def _keyed(opcode: str, keys: Callable[[Any], Any]) -> Callable[[Any], None]:
    """What fills a dictionary; its keys are text, since to hash nested tuples takes any stack."""
    load = _Unpickler.dispatch[getattr(pickle, opcode)[0]]

    def checked(self: Any) -> None:
        if any(type(key) is not str for key in keys(self.stack)):
            raise _refused("has keys that are no text")
        load(self)

    return checked


class _NumpyOnly(_Unpickler):  # type: ignore[misc]  # Python has no types of it
    def __init__(self, pickled: bytes | memoryview) -> None:
        super().__init__(_Bytes(pickled))
        self._left = 3 * len(pickled)  # parts, bytes and what is made of them; names repeat them at no cost

    def find_class(self, module: str, name: str) -> _Name:
        """Only the name; all but those of numpy's pickles are refused."""
        if f"{module}.{name}" not in _NAMES:
            raise Refused(f"it names {f'{module}.{name}':.100}, and only numpy's classes are loaded")
        return _Name(name)

    def made(self, told: Any, depth: int = _DEEPEST) -> Any:
        """What a pickle tells of."""
        kind = type(told)
        self._spend(1)
        if not depth:
            raise ValueError("it is nested too deeply")
        if kind is dict:
            return {key: self.made(value, depth - 1) for key, value in told.items()}
        if kind in (list, tuple):
            return kind([self.made(value, depth - 1) for value in told])
        if kind is _Call:
            if told.result is None:
                told.result = self._result(told, depth - 1)
            return told.result
        if told is not None and kind not in (bool, int, float, str, bytes, bytearray):
            raise _refused(f"holds {told if kind is _Name else kind.__name__}")
        return told

    def _result(self, call: _Call, depth: int) -> Any:
        """What numpy makes of its own pickles."""
        match call.name, call.args, call.state:
            case "encode", (str(text), "latin1"), None:
                self._spend(len(text))
                return text.encode("latin1")
            case "bytes", (), None:
                return b""
            case "dtype", (str(code), 0, 1), state:  # or False and True
                return _dtype(code, state)
            case "scalar", (dtype, data), None:
                return self._array(data, dtype, (), "C", depth)[()]
            case "_frombuffer", (data, dtype, shape, order), None:
                return self._array(data, dtype, shape, order, depth)
            case "_frombuffer", (data, dtype, shape, "K", axes), None:
                return self._array(data, dtype, shape, "C", depth).transpose(axes)
            case "_reconstruct", ("ndarray", (0,), kind), (1, shape, dtype, is_fortran, data):
                if self.made(kind, depth) == b"b":
                    return self._array(data, dtype, shape, "F" if is_fortran else "C", depth)
        raise _refused(f"calls {call.name if type(call.name) is _Name else 'a value'} as numpy does not")

    def _array(self, data: Any, dtype: Any, shape: Any, order: object, depth: int) -> Any:
        import numpy as np

        dtype, data = self.made(dtype, depth), self.made(data, depth)
        if dtype == "O" and shape == () and type(data) is list and [*map(type, data)] == [dict]:
            array = np.empty((), "O")  # as numpy.save puts a dictionary into one
            array[()] = data[0]
            return array
        if not isinstance(dtype, np.dtype) or type(data) not in (bytes, bytearray):
            raise _refused("makes an array of something else than bytes")
        self._spend(len(data))
        return plain_array(data, dtype, shape, order)

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise ValueError("what it holds is larger than it")

    def _reduce(self) -> None:
        args = self.stack.pop()
        self.stack[-1] = _Call(self.stack[-1], args)

    def _build(self) -> None:
        state, call = self.stack.pop(), self.stack[-1]
        if type(call) is not _Call or call.state is not None:
            raise _refused(f"changes {type(call).__name__}")
        call.state = state

    def _bytearray(self) -> None:
        self.append(bytearray(self.read(int.from_bytes(self.read(8), "little"))))

    def _frame(self) -> None:
        self.read(8)  # its size; all is in memory

    def _never(self) -> None:
        raise _refused("holds an instruction that numpy does not write")

    dispatch: ClassVar = _Unpickler.dispatch | {
        **dict.fromkeys((getattr(pickle, name)[0] for name in _NEVER.split()), _never),
        pickle.REDUCE[0]: _reduce,
        pickle.BUILD[0]: _build,
        pickle.BYTEARRAY8[0]: _bytearray,
        pickle.FRAME[0]: _frame,
        pickle.DICT[0]: _keyed("DICT", lambda stack: stack[::2]),
        pickle.SETITEM[0]: _keyed("SETITEM", lambda stack: stack[-2:-1]),
        pickle.SETITEMS[0]: _keyed("SETITEMS", lambda stack: stack[::2]),
    }


def _dtype(code: str, state: Any) -> Any:
    import numpy as np  # what is without arrays is read without it

    if not _TYPE.fullmatch(code):
        raise _refused(f"makes the type {code:.40}")
    dtype = np.dtype(code)
    own: Any = dtype.__reduce__()[2]
    if state is None:
        return dtype
    if (state[:1], state[2:]) != (own[:1], own[2:]) or state[1] not in ("<", ">", "|", "="):
        raise _refused(f"changes the type {code}")
    return dtype.newbyteorder(state[1])


def plain_array(data: bytes | bytearray, dtype: Any, shape: Any, order: object) -> Any:
    """An array of numbers or text.

    Raises:
        Refused: it is one of something else.
        ValueError: it has more bytes or fewer.
    """
    import numpy as np

    if dtype.kind not in "biufSU" or dtype.names or dtype.subdtype:
        raise _refused(f"makes an array of the type {dtype!s:.40}")
    if type(shape) is not tuple or len(shape) > 32 or any(type(n) is not int or n >> 60 for n in shape):
        raise ValueError("the shape of an array is none")
    cells = math.prod(n or 1 for n in shape)
    if math.prod(shape) * dtype.itemsize != len(data) or cells > max(len(data), _MOST_EMPTY):
        raise ValueError(f"an array of {shape} has {len(data)} bytes")
    array: Any = np.ndarray(shape, dtype, data, order="F" if order == "F" else "C").copy("K")
    if dtype.kind == "U":
        array.tolist()  # else its readers would meet what is no character
    return array


def loads(pickled: bytes | memoryview) -> Any:
    """What ``pickle.loads`` returns.

    Raises:
        Refused: it would run code, or write where it should not.
        ValueError: it is damaged.
    """
    unpickler = _NumpyOnly(pickled)
    try:
        told = unpickler.load()
    except Refused:
        raise
    except Exception as error:  # whatever a damaged pickle leads to
        raise ValueError(f"it cannot be read: {error or type(error).__name__}") from error
    try:
        return unpickler.made(told)
    except Refused:
        raise
    except Exception as error:
        raise _refused(f"holds what numpy does not write ({error})") from error


def load_npy(content: bytes) -> Any:
    """What ``numpy.load`` returns of a plain array, or of a dictionary, which ``numpy.save`` puts into one.

    Raises:
        Refused: it would run code.
        Exception: it is damaged, and numpy says how.
    """
    import numpy as np

    file = io.BytesIO(content)
    np.lib.format.read_magic(file)
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.hasobject:
        return loads(file.read())
    return plain_array(file.read(), dtype, shape, "F" if is_fortran else "C")


@contextmanager
def told_of(path: Path, damage: tuple[type[Exception], ...] = (ValueError,)) -> Iterator[None]:
    """Say of which file errors are: that it was refused, or else that it is damaged."""
    try:
        yield
    except Refused as error:
        raise HostileFeatures(f"{path}: not used, since what is in it could run code: {error}") from None
    except damage as error:
        raise DamagedFeatures(f"{path}: damaged: {error}") from None
