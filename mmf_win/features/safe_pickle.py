"""Unpickling for region features: plain values and numpy's plain arrays, and nothing that could run code.

Numpy trusts what it unpickles: it reads as many objects as a shape says, and follows whatever a type calls an
address. So a pickle is read without numpy, and what it calls is done only if numpy writes such calls.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmf_win.errors import DamagedFeatures, HostileFeatures

_NAME = re.compile(
    r"numpy (ndarray|dtype)|numpy\._?core\.(multiarray (_reconstruct|scalar)|numeric _frombuffer)"
    r"|_codecs encode|__builtin__ bytes"  # which make bytes
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_PLAIN = _CONSTANTS.keys() | {
    opcode.name
    for opcode in pickletools.opcodes
    if opcode.arg and not opcode.stack_before and opcode.stack_after not in ([], [pickletools.anyobject])
}
_TAKES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "STACK_GLOBAL": 2}
_TAKES |= {"APPEND": 1, "SETITEM": 2, "REDUCE": 1, "BUILD": 1}  # beside what is changed or called
_TYPE = re.compile(r"b1|[iu][1248]|f[248]|[SU]\d{1,7}|O8?")
_IN_FEATURES = ("features", "feature", "image_feat")  # MMF's names in a dictionary in the place of the array
_DEEPEST = 30  # parts within parts
_MOST_PARTS = 2_000_000
_MOST_EMPTY = 1 << 20  # rows × columns of an array without bytes


class Refused(pickle.UnpicklingError):
    """A pickle holds what numpy does not write, and to load it could run any code."""


class Unreadable(ValueError):
    """A pickle is damaged, for this ``reason``."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"it cannot be read: {reason}")
        self.reason = reason


def _refused(what: str) -> Refused:
    return Refused(f"it {what}, and only plain arrays are loaded")


class _Name(str):
    """What a pickle names, and nothing else of Python."""


class _Pairs(list[Any]):
    """The keys and values of a dictionary, in turn; to hash nested tuples would take any stack."""


@dataclass(eq=False)
class _Call:
    """What a pickle calls, and the state that it gives the result; neither is done."""

    name: object
    args: object
    state: Any = None
    result: Any = None


def _told(pickled: bytes | memoryview) -> Any:
    """What a pickle tells of, with nothing of it done; instructions that numpy does not write are refused."""
    stack: list[Any] = []
    below: list[list[Any]] = []  # the marks on the stack
    memo: dict[Any, Any] = {}
    for number, (opcode, value, _) in enumerate(pickletools.genops(io.BytesIO(pickled))):
        if number == _MOST_PARTS:
            raise ValueError("it has too many parts")
        if pickletools.markobject in opcode.stack_before:
            taken, stack = stack, below.pop()
        else:
            first = len(stack) - _TAKES.get(opcode.name, 0)
            taken = stack[first:]
            del stack[first:]
        match opcode.name:
            case name if name in _PLAIN:
                stack.append(_CONSTANTS.get(name, value))
            case "EMPTY_TUPLE" | "TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(taken))
            case "EMPTY_LIST" | "LIST":
                stack.append(taken)
            case "EMPTY_DICT" | "DICT":
                stack.append(_Pairs(taken))
            case "APPEND" | "APPENDS" | "SETITEM" | "SETITEMS" if isinstance(stack[-1], list):
                stack[-1].extend(taken)
            case "GLOBAL" | "STACK_GLOBAL":
                named = value or " ".join(taken)
                if not _NAME.fullmatch(named):
                    raise _refused(f"names {named.replace(' ', '.'):.100}")
                stack.append(_Name(named.rpartition(" ")[2]))
            case "REDUCE":
                stack[-1] = _Call(stack[-1], *taken)
            case "BUILD" if type(stack[-1]) is _Call and stack[-1].state is None:
                [stack[-1].state] = taken
            case "MARK":
                below.append(stack)
                stack = []
            case "PUT" | "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                memo[len(memo) if value is None else value] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(memo[value])
            case "PROTO" | "FRAME" | "STOP":
                pass
            case _:
                raise _refused(f"has the instruction {opcode.name} where numpy does not write it")
    return stack.pop()


@dataclass
class _Making:
    """Makes what a pickle tells of: so many parts, and bytes, since a memo repeats them at no cost."""

    left: int

    def made(self, told: Any, depth: int = _DEEPEST) -> Any:
        """What a pickle tells of."""
        kind = type(told)
        self._spend(1)
        if not depth:
            raise ValueError("it is nested too deeply")
        if kind is _Pairs:
            if any(type(key) is not str for key in told[::2]):
                raise _refused("has keys that are no text")
            values = (self.made(value, depth - 1) for value in told[1::2])
            return dict(zip(told[::2], values, strict=True))
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
        self.left -= size
        if self.left < 0:
            raise ValueError("what it holds is larger than it")


def _dtype(code: str, state: Any) -> Any:
    import numpy as np  # what is without arrays is read without it

    if not _TYPE.fullmatch(code):
        raise _refused(f"makes the type {code:.40}")
    dtype = np.dtype(code)
    if state is None:
        return dtype
    own: Any = dtype.__reduce__()[2]
    if state not in [(own[0], order, *own[2:]) for order in "<>|="]:
        raise _refused(f"changes the type {code}")
    return dtype.newbyteorder(state[1])


def plain_array(data: bytes | bytearray, dtype: Any, shape: Any, order: object) -> Any:
    """An array of numbers or text. Raises Refused for another type, and ValueError for a wrong size."""
    import numpy as np

    if dtype.kind not in "biufSU":
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
    """What ``pickle.loads`` returns. Raises Refused where that could do harm, ValueError for damage."""
    try:
        told = _told(pickled)
    except (Refused, MemoryError):
        raise
    except Exception as error:  # whatever a damaged pickle leads to
        raise Unreadable(str(error) or type(error).__name__) from error
    try:
        return _Making(3 * len(pickled)).made(told)
    except (Refused, MemoryError):
        raise
    except Exception as error:
        raise _refused(f"holds what numpy does not write ({error})") from error


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
        raise HostileFeatures(message, about=f"{path}:") from None
    except MemoryError:
        raise
    except damage as error:
        raise DamagedFeatures(f"{path}: damaged: {part}{error}") from None
