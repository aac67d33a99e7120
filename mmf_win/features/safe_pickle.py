"""Safe unpickling of region features: plain values and numpy arrays, nothing that could run code.

numpy trusts the pickles it reads: it reads as many objects as a shape declares and dereferences any number
that a dtype declares to be an object. The C unpickler crashes when it hashes deeply nested tuples, and
allocates any amount of memory for memo indices. So this module uses Python's own unpickler, restricted to the
instructions that numpy writes, and creates only objects that were checked.
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
    r"|_codecs\.encode|__builtin__\.bytes"  # both create bytes
)
# Names of pickletools; first all instructions that push a plain value.
_ALLOWED_INSTRUCTIONS = {
    opcode.name
    for opcode in pickletools.opcodes
    if opcode.arg and not opcode.stack_before and opcode.stack_after not in ([], [pickletools.anyobject])
}
_ALLOWED_INSTRUCTIONS |= {"NONE", "NEWTRUE", "NEWFALSE", "MARK", "PROTO", "FRAME", "STOP", "GLOBAL", "STACK_GLOBAL"}
_ALLOWED_INSTRUCTIONS |= {"EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "LIST", "EMPTY_DICT"}
_ALLOWED_INSTRUCTIONS |= {"DICT", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "REDUCE", "BUILD", "MEMOIZE"}
_ALLOWED_INSTRUCTIONS |= {"PUT", "BINPUT", "LONG_BINPUT", "GET", "BINGET", "LONG_BINGET"}
_ALLOWED_DTYPES = re.compile(r"b1|[iu][1248]|f[248]|[SU]\d{1,7}|O8?")
_FEATURE_KEYS = ("features", "feature", "image_feat")  # keys of MMF if a dictionary replaces the array
_PythonUnpickler: Any = pickle._Unpickler
_MAX_DEPTH = 30  # nesting of containers
_MAX_PARTS = 2_000_000  # instructions, each of which may need 100 times its size in memory
_MAX_EMPTY_CELLS = 1 << 20  # product of the nonzero dimensions of an array without bytes


class UnsafePickleError(pickle.UnpicklingError):
    """A pickle was not written by numpy, and loading it could run any code."""


class DamagedPickleError(ValueError):
    """A pickle is damaged.

    Attributes:
        reason: What is wrong with it.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"cannot be read: {reason}")
        self.reason = reason


class _NotFromNumpyError(ValueError):
    """A pickle has contents that numpy does not write; it may be damaged or malicious."""


def _unsafe_pickle_error(reason: str) -> UnsafePickleError:
    return UnsafePickleError(f"{reason} (only plain arrays are loaded)")


class _GlobalName(str):
    """Name of a Python object in a pickle; the object itself is never loaded."""


class _PickleFile(io.BytesIO):
    def readline(self, size: int | None = -1, /) -> bytes:
        """Return a line that ends in a newline; the unpickler removes the last byte without checking it."""
        if not (line := super().readline(size)).endswith(b"\n"):
            raise ValueError("no newline found")
        return line


class _SafeUnpickler(_PythonUnpickler):  # type: ignore[misc]
    """Unpickler for one pickle, with a limit for the bytes of its arrays plus the number of its values.

    Each ``load_...`` method executes one instruction of the pickle. It raises an error if numpy would not write
    this instruction.
    """

    def __init__(self, file: _PickleFile, budget: int) -> None:
        super().__init__(file)
        self.read, self.readline, self._budget = file.read, file.readline, budget
        self._array_dtypes: dict[int, object] = {}  # dtypes of arrays by id()

    def find_class(self, module: str, name: str, /) -> Any:
        """Return an allowed name without loading its object."""
        if not _ALLOWED_GLOBALS.fullmatch(f"{module}.{name}"):
            raise _unsafe_pickle_error(f"refers to {f'{module}.{name}':.100}")
        return _GlobalName(name)

    def load(self) -> Any:
        """Return the unpickled value like the base class, but limit the number of instructions."""
        self.metastack: list[list[Any]] = []
        self.stack: list[Any] = []
        self.append = self.stack.append
        read, dispatch = self.read, self.dispatch
        try:
            for _ in range(_MAX_PARTS):
                dispatch[read(1)](self)
        except pickle._Stop as stop:  # type: ignore[attr-defined]
            return stop.value
        raise ValueError("too many instructions")

    def load_frame(self) -> None:
        """Ignore a frame, so that the file position shows the place of an error."""
        self.read(8)

    def load_bytearray8(self) -> None:
        """Push a bytearray; the base class allocates the memory before it reads the bytes."""
        size = int.from_bytes(self.read(8), "little")
        self.append(bytearray(self.read(size)))

    def load_setitem(self) -> None:
        """Set an item of a dictionary; raise an error if the key is not a string."""
        _require_text_keys(self.stack[-3], self.stack[-2:-1])
        super().load_setitem()

    def load_setitems(self) -> None:
        """Set items of a dictionary; raise an error if a key is not a string."""
        _require_text_keys(self.metastack[-1][-1], self.stack[::2])
        super().load_setitems()

    def load_dict(self) -> None:
        """Push a dictionary of the items on the stack; raise an error if a key is not a string."""
        _require_text_keys({}, self.stack[::2])
        super().load_dict()

    def load_reduce(self) -> None:
        """Push the result of a call; raise an error if numpy would not write this call."""
        arguments, name = self.stack.pop(), self.stack.pop()
        match type(name) is _GlobalName and name, arguments:
            case "encode", (str(text), "latin1"):
                self.spend_budget(len(text))
                value: Any = text.encode("latin1")
            case "bytes", ():
                value = b""
            case "dtype", (str(code), 0, 1):  # or False and True
                value = _make_dtype(code)
            case "scalar", (dtype, data):
                value = self._make_array(data, dtype, (), "C")[()]
            case "_frombuffer", (data, dtype, shape, order):
                value = self._make_array(data, dtype, shape, order)
            case "_frombuffer", (data, dtype, shape, "K", axes):
                value = self._make_array(data, dtype, shape, "C").transpose(axes)
            case "_reconstruct", ("ndarray", (0,), b"b"):
                value = _make_empty_array()
            case _:
                raise _unsafe_pickle_error(f"has an invalid call of {name if type(name) is _GlobalName else 'a value'}")
        self.append(value)

    def load_build(self) -> None:
        """Set the state of a dtype or an array; raise an error if numpy would not write this state."""
        import numpy as np

        state, target = self.stack.pop(), self.stack[-1]
        match state, target:
            case (1, shape, dtype, bool(is_fortran), data), np.ndarray():
                # numpy.save wraps a dictionary in an array of objects.
                if not (dtype == "O" and shape == () and type(data) is list and [*map(type, data)] == [dict]):
                    self._make_array(data, dtype, shape, "F" if is_fortran else "C")
            case _, np.dtype() if id(target) not in self._array_dtypes:
                dtype_state: Any = target.__reduce__()[2]
                if state not in [(dtype_state[0], order, *dtype_state[2:]) for order in "<>|="]:
                    raise _unsafe_pickle_error(f"changes the dtype {target}")
            case _:
                _refuse_instruction("BUILD", self)
        target.__setstate__(state)

    def _make_array(self, data: Any, dtype: Any, shape: Any, order: object) -> Any:
        import numpy as np

        if not isinstance(dtype, np.dtype) or type(data) not in (bytes, bytearray):
            raise _unsafe_pickle_error("creates an array from something other than bytes")
        self._array_dtypes[id(dtype)] = dtype
        array = make_plain_array(data, dtype, shape, order)
        self.spend_budget(array.nbytes)  # numpy gives a size to a dtype without one
        return array

    def require_plain(self, value: Any, depth: int = _MAX_DEPTH) -> None:
        """Raise if the value contains a name, is nested too deeply, or has too many parts."""
        self.spend_budget(1)
        if not depth:
            raise _NotFromNumpyError("nested too deeply")
        if type(value) is _GlobalName:
            raise _unsafe_pickle_error(f"contains {value}")
        if getattr(value, "dtype", None) == "O":
            value = value.item()
        if isinstance(value, (dict, list, tuple)):
            for part in value.values() if isinstance(value, dict) else value:
                self.require_plain(part, depth - 1)

    def spend_budget(self, size: int) -> None:
        """Count values or bytes; raise an error if the pickle is too small to contain this many."""
        self._budget -= size
        if self._budget < 0:
            raise _NotFromNumpyError("contents are larger than the pickle")


def _refuse_instruction(name: str, _unpickler: _SafeUnpickler) -> None:
    raise _unsafe_pickle_error(f"has an unexpected instruction {name}")


def _refuse_end(_unpickler: _SafeUnpickler) -> None:
    raise ValueError("ends too early")


_SafeUnpickler.dispatch = {b"": _refuse_end} | {
    opcode.code.encode("latin1"): getattr(_SafeUnpickler, _PythonUnpickler.dispatch[ord(opcode.code)].__name__)
    if opcode.name in _ALLOWED_INSTRUCTIONS
    else partial(_refuse_instruction, opcode.name)
    for opcode in pickletools.opcodes
}


def _require_text_keys(target: object, keys: Sequence[object]) -> None:
    """Reject items of objects other than dictionaries, and keys other than strings."""
    # Hashing a deeply nested tuple as a key could exhaust the stack.
    if type(target) is not dict:
        raise _unsafe_pickle_error("sets items of an object that is not a dictionary")
    if any(type(key) is not str for key in keys):
        raise _unsafe_pickle_error("has keys that are not strings")


def _make_empty_array() -> Any:
    import numpy as np

    return np.ndarray((0,), "b")


def _make_dtype(code: str) -> Any:
    import numpy as np  # imported late: pickles without arrays do not need numpy

    if not _ALLOWED_DTYPES.fullmatch(code):
        raise _unsafe_pickle_error(f"creates the dtype {code:.40}")
    return np.dtype(code, copy=True)  # a copy, since its state may be changed


def make_plain_array(data: bytes | bytearray, dtype: Any, shape: Any, order: object) -> Any:
    """Return an array of numbers or text; raise an error for another dtype or a wrong size."""
    import numpy as np

    if dtype.kind not in "biufSU":
        raise _unsafe_pickle_error(f"creates an array with the dtype {dtype!s:.40}")
    if type(shape) is not tuple or len(shape) > 32 or any(type(n) is not int or n >> 60 for n in shape):
        raise _NotFromNumpyError("invalid array shape")
    cells = math.prod(n or 1 for n in shape)
    if math.prod(shape) * dtype.itemsize != len(data) or cells > max(len(data), _MAX_EMPTY_CELLS):
        raise _NotFromNumpyError(f"array of shape {shape} has {len(data)} bytes")
    array: Any = np.ndarray(shape, dtype, data, order="F" if order == "F" else "C").copy("K")
    if dtype.kind == "U" and array.size:
        try:
            array.tolist()
        except (ValueError, SystemError) as error:  # some code points are not characters
            raise _NotFromNumpyError(str(error)) from None
    return array


def load_pickle(pickled: bytes | memoryview) -> Any:
    """Return the value like ``pickle.loads``; raise an UnsafePickleError or a DamagedPickleError."""
    file = _PickleFile(pickled)
    try:
        reader = _SafeUnpickler(file, 3 * len(pickled))  # a memo repeats values at almost no cost
        value = reader.load()
        reader.require_plain(value)
    except (UnsafePickleError, MemoryError):
        raise
    except _NotFromNumpyError as error:
        raise _unsafe_pickle_error(f"was not written by numpy: {error}") from error
    except Exception as error:  # a damaged pickle may raise any exception
        message = "unknown instruction" if isinstance(error, KeyError) else str(error) or type(error).__name__
        raise DamagedPickleError(f"{message} at position {max(0, file.tell() - 1)}") from error
    return value


def load_npy(content: bytes) -> Any:
    """Return the array in an ``.npy`` file, like ``numpy.load``.

    Args:
        content: Content of the file. It may contain a pickled dictionary, which ``numpy.save`` wraps in an
            array of objects.

    Returns:
        The array.

    Raises:
        UnsafePickleError: Loading it with numpy could run code.
        ValueError: The file is damaged; numpy may raise other exceptions, too.
    """
    import numpy as np

    file = io.BytesIO(content)
    np.lib.format.read_magic(file)
    try:
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    except (MemoryError, RecursionError):  # raised by Python's parser for deeply nested expressions
        raise ValueError("the .npy header is nested too deeply") from None
    if dtype.hasobject:
        if not isinstance(array := load_pickle(file.read()), np.ndarray):
            raise ValueError(f"contains {type(array).__name__} instead of an array")
        return array
    return make_plain_array(file.read(), dtype, shape, "F" if is_fortran else "C")


def require_features(record: Any) -> Any:
    """Return a record of an LMDB; raise a ValueError if it has no features that MMF can use."""
    import numpy as np

    features = record.get("features") if isinstance(record, dict) else None
    if isinstance(features, np.ndarray) and features.dtype == "O":  # of other datasets; see load_npy
        features = next((features.item()[name] for name in _FEATURE_KEYS if name in features.item()), None)
    if not isinstance(features, np.ndarray) or features.ndim < 2 or features.dtype.kind not in "biuf":
        raise ValueError("has no features (an array of numbers, one row per region)")
    return record


@contextmanager
def translate_pickle_errors(
    path: Path, part: str = "", damage: tuple[type[Exception], ...] = (ValueError,)
) -> Iterator[None]:
    """Convert errors of unpickling to an UnsafeFeaturesError or a DamagedFeaturesError.

    Args:
        path: The file, for the message.
        part: Part of the file, for the message, with ``: `` at the end.
        damage: Exceptions that mean damage.

    Yields:
        Nothing.

    Raises:
        UnsafeFeaturesError: Loading the file could run code.
        DamagedFeaturesError: The file is damaged.
        MemoryError: There is not enough memory.
    """
    try:
        yield
    except UnsafePickleError as error:
        message = f"rejected because it could run code: {part}{error}"
        raise UnsafeFeaturesError(message, prefix=f"{path}:") from None
    except MemoryError:
        raise
    except damage as error:
        raise DamagedFeaturesError(f"{path}: damaged: {part}{error}") from None
