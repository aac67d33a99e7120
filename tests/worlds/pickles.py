"""Pickles for the reader of region features: malicious pickles, and pickles of numpy with a few changed bytes.

``python -m tests.worlds.pickles`` reads numbers and names of cases from stdin and prints the result of each.
"""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from tests.worlds import feature_files

_EXTRA_MEMORY_BYTES = 2 << 30
_GLOBALS = (
    *(b"cnumpy\nndarray\n", b"cnumpy\ndtype\n", b"c_codecs\nencode\n", b"c__builtin__\nbytes\n"),
    *(b"cnumpy.core.multiarray\n_reconstruct\n", b"cnumpy.core.multiarray\nscalar\n"),
    *(b"cnumpy._core.numeric\n_frombuffer\n", b"cbuiltins\nlist\n", b"cnumpy\nload\n"),
)
_DTYPES = ("f4", "f8", "O", "O8", "V8", "S8", "U2", "U999999999", "M8[s]", "b1", "O,O", "T", "c8", "i8", "S0", "i7")
_ADDRESSES = bytes(range(8, 16))


def _encode_value(value: object) -> bytes:
    """Return the instructions for a plain value; a :class:`Code` stands for itself."""
    return value.code if isinstance(value, Code) else pickle.dumps(value, 3)[2:-1].replace(b"q\x00", b"")


class UnusualObject:
    """Object whose pickle contains a call that numpy does not write."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __reduce__(self) -> tuple[Any, ...]:
        return self.parts


class Code:
    """Instructions of a pickle."""

    def __init__(self, code: bytes) -> None:
        self.code = code


def call_global(name: bytes, *args: object) -> Code:
    """Return code that calls one of numpy's functions."""
    return Code(name + b"(" + b"".join(map(_encode_value, args)) + b"tR")


def set_state(built: Code, *parts: object) -> Code:
    """Return code that sets the state of an object."""
    return Code(built.code + b"(" + b"".join(map(_encode_value, parts)) + b"tb")


def dtype_code(code: object = "O", *parts: object) -> Code:
    """Return code for a dtype with an optional state."""
    dtype = call_global(b"cnumpy\ndtype\n", code, False, True)
    return set_state(dtype, *parts) if parts else dtype


def array_code(*parts: object) -> Code:
    """Return code for an array in the form of numpy's ``__reduce__``, with this state."""
    name = b"cnumpy.core.multiarray\n_reconstruct\n"
    empty = call_global(name, Code(b"cnumpy\nndarray\n"), Code(b"K\x00\x85"), Code(b"C\x01b"))
    return set_state(empty, *parts)


def array_from_bytes_code(*parts: object) -> Code:
    """Return code for an array in the form of protocol 5."""
    return call_global(b"cnumpy.core.numeric\n_frombuffer\n", *parts)


def make_pickle(code: Code | bytes) -> bytes:
    """Return a pickle with these instructions."""
    return b"\x80\x05" + (code.code if isinstance(code, Code) else code) + b"."


_DTYPE_STATE = (
    3,
    "|",
    Code(b"N"),
    ("a",),
    Code(b"}\x8c\x01a" + dtype_code("f8").code + b"J\x00\x00\x00\x10\x86s"),
    8,
    1,
    0,
)

HOSTILE_PICKLES = {
    "too few objects": make_pickle(array_code(1, (100_000,), dtype_code(), False, [None])),
    "bytes instead of objects": make_pickle(array_code(1, (1,), dtype_code(), False, _ADDRESSES)),
    "object array from a buffer": make_pickle(array_from_bytes_code(_ADDRESSES, dtype_code(), (1,), "C")),
    "object scalar from bytes": make_pickle(
        call_global(b"cnumpy.core.multiarray\nscalar\n", dtype_code(), _ADDRESSES)
    ),
    "direct call of ndarray": make_pickle(call_global(b"cnumpy\nndarray\n", (1,), dtype_code(), _ADDRESSES)),
    "dtype with fields": make_pickle(array_code(1, (1,), dtype_code("V8", *_DTYPE_STATE), False, bytes(8))),
    "item assignment to a field": make_pickle(
        array_code(1, (1,), dtype_code("V8", *_DTYPE_STATE), False, bytes(8)).code + b"\x8c\x01aK\x07s"
    ),
    "item assignment to an array": make_pickle(
        array_code(1, (1,), dtype_code("f8"), False, bytes(8)).code + b"K\x00K\x07s"
    ),
    "deeply nested arrays": make_pickle(
        b"N" + 20_000 * (b"q\x00" + array_code(1, (), dtype_code(), False, Code(b"]h\x00a")).code)
    ),
    "array that shares the buffer of another array": make_pickle(
        array_code(1, (2,), dtype_code("f8"), False, bytes(16)).code
        + b"q\x00" + array_from_bytes_code(Code(b"h\x00"), dtype_code("f8"), (2,), "C").code
        + b"h\x00("
        + b"".join(map(_encode_value, (1, (9999,), dtype_code("f8"), False, bytes(79_992))))
        + b"tb\x86"
    ),
    "deeply nested tuple as a key": make_pickle(b"})" + 300_000 * b"\x85" + b"Ns"),
    "deeply nested tuple in a set": make_pickle(b"\x8f()" + 300_000 * b"\x85" + b"\x90"),
    "deeply nested lists": make_pickle(200_000 * b"]" + 199_999 * b"a"),
    "list that contains itself": make_pickle(b"]q\x00h\x00a"),
    "lists that double in size": make_pickle(b"]q\x00" + b"".join(b"](h\x00h\x00eq\x00" for _ in range(25))),
    "many arrays of the same bytes": make_pickle(
        _encode_value(bytes(1 << 20)) + b"q\x00]"
        + 5000 * (array_from_bytes_code(Code(b"h\x00"), dtype_code("i1"), (1 << 20,), "C").code + b"a")
    ),
    "many encodings of the same text": make_pickle(
        _encode_value("x" * (1 << 20)) + b"q\x00]"
        + 5000 * (call_global(_GLOBALS[2], Code(b"h\x00"), "latin1").code + b"a")
    ),
    "a large bytearray": make_pickle(b"\x96" + (1 << 40).to_bytes(8, "little") + b"a"),
    "large bytes": make_pickle(b"\x8e" + (1 << 40).to_bytes(8, "little") + b"a"),
    "a large frame": make_pickle(b"\x95" + (1 << 40).to_bytes(8, "little") + b"N"),
    "a large memo": make_pickle(b"Nr\xff\xff\xff\x7f"),
    "a large dtype": make_pickle(array_code(1, (1,), dtype_code("S2000000000"), False, b"")),
    "huge shape without elements": make_pickle(array_code(1, (1 << 40, 1 << 40, 0), dtype_code("f4"), False, b"")),
    "huge array of empty strings": make_pickle(array_code(1, (1 << 40,), dtype_code("S0"), False, b"")),
    "many arrays of empty strings": make_pickle(
        b"]" + 50 * (array_from_bytes_code(b"", dtype_code("S0"), (1 << 20,), "C").code + b"a")
    ),
    "text whose dtype changes": make_pickle(
        dtype_code("U1").code + b"q\x00"
        + array_from_bytes_code("a".encode("utf-32-le"), Code(b"h\x00"), (1,), "C").code
        + set_state(Code(b"h\x00"), 3, ">", None, None, None, 4, 4, 8).code + b"\x87"
    ),
    "negative shape": make_pickle(array_code(1, (-1,), dtype_code("f4"), False, b"")),
    "many digits": make_pickle(b"L" + 1_000_000 * b"9" + b"L\n"),
    "many marks": make_pickle(2_100_000 * b"("),
    "many parts": make_pickle(2_100_000 * b"}\x94"),
    "state of a function": make_pickle(b"cnumpy\ndtype\n" + b"N}\x8c\x0c__defaults__)s\x86b"),
    "extension code": make_pickle(b"\x82\x01"),
    "instance created by NEWOBJ": make_pickle(b"cnumpy\ndtype\n)\x81"),
    "instance created by INST": make_pickle(b"(icnumpy\ndtype\n"),
    "persistent id": make_pickle(b"Pabc\n"),
    "text with an invalid character": make_pickle(array_code(1, (1,), dtype_code("U1"), False, b"\xff\xff\xff\xff")),
}  # fmt: skip


@cache
def numpy_pickles() -> list[bytes]:
    """Return the pickles that numpy writes of a record and of a list of keys, by protocol."""
    import numpy as np

    record = {**feature_files.make_info(2, classes=3), "features": np.ones((2, 4), dtype=">f4"), "feature_path": "a"}
    record |= {"image_width": np.float32(3), "none": np.ones((0, 4)), "text": np.array(["ab", "c"])}
    keys = [b"00001", b"00002"]
    return [pickle.dumps(value, protocol) for value in (record, keys) for protocol in range(6)]


def random_pickle(rng: Random) -> bytes:
    """Return a random malicious or damaged pickle."""
    kind = rng.random()
    if kind < 0.01:
        return rng.choice(list(HOSTILE_PICKLES.values()))
    if kind < 0.5:
        return _mutate(rng, rng.choice(numpy_pickles()))
    if kind < 0.7:
        return make_pickle(_random_array(rng))
    parts = [
        *(*_GLOBALS, *(_encode_value(value) for value in (0, 7, "O", "f4", "a", b"", bytes(8), None, (1,), (0,)))),
        *(b"(", b"t", b"]", b"}", b")", b"\x85", b"\x86", b"\x87", b"R", b"b", b"a", b"e", b"s", b"u", b"d"),
        *(b"q\x00", b"q\x01", b"h\x00", b"h\x01", b"0", b"2", b"\x94", b"\x8f", b"\x81", _random_array(rng).code),
    ]
    return make_pickle(b"".join(rng.choice(parts) for _ in range(rng.randrange(60))))


def _random_array(rng: Random) -> Code:
    """Return code for an array with random, mostly inconsistent parts."""
    size = rng.choice((0, 1, 8, 8, 64))
    shape = rng.choice(((), (1,), (8,), (2, 4), (9999,), (1 << 62,), (-1,), (0, 1 << 40), (0,), 8, None))
    kind: object = dtype_code(rng.choice(_DTYPES))
    if rng.random() < 0.4:
        state = [3, rng.choice("<>|=x"), None, None, None, -1, -1, 0]
        state[rng.randrange(8)] = rng.choice((0, 1, 8, -1, 1 << 40, None, ("a",), "|", dtype_code("O")))
        kind = dtype_code(rng.choice(_DTYPES), *state)
    data: object = rng.choice((bytes(size), [None] * size, {}, [{}], "x" * size, bytearray(size)))
    if isinstance(data, bytearray):
        data = Code(b"\x96" + size.to_bytes(8, "little") + bytes(size))
    parts = (data, kind, shape, rng.choice("CFK"))
    built = array_from_bytes_code(*parts) if rng.random() < 0.4 else array_code(1, shape, kind, False, data)
    if rng.random() < 0.3:
        built = Code(b"]q\x00" + built.code + b"q\x01h\x01ah\x01" + built.code + rng.choice((b"b", b"s", b"\x86")))
    return built


def _mutate(rng: Random, pickled: bytes) -> bytes:
    data = bytearray(pickled)
    for _ in range(rng.choice((1, 1, 2, 8))):
        start = rng.randrange(len(data))
        end = start + rng.randrange(8)
        data[start:end] = rng.choice((bytes([rng.randrange(256)]), b"", data[:end], b"\x85R", b"b", b"h\x00"))
        if not data:
            break
    return bytes(data)


def read_pickle(pickled: bytes) -> str:
    """Read a pickle as mmfw does, use the loaded value, and return ``read``, ``refused`` or ``damaged``."""
    from mmf_win.features.safe_pickle import UnsafePickleError, load_npy, load_pickle

    file = io.BytesIO()
    _write_npy_header(file)
    with suppress(Exception):  # an error of numpy about the header
        load_npy(file.getvalue() + pickled)
    try:
        loaded = load_pickle(pickled)
    except (UnsafePickleError, ValueError) as error:
        return "refused" if isinstance(error, UnsafePickleError) else "damaged"
    repr(loaded)
    pickle.dumps(loaded)
    return "read"


def _write_npy_header(file: io.BytesIO) -> None:
    """Write the header of an object array."""
    import numpy as np

    header: Any = {"descr": "|O", "fortran_order": False, "shape": ()}
    np.lib.format.write_array_header_1_0(file, header)


class PickleReader:
    """Child process that reads pickles; it is restarted if a pickle has crashed it."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[str] | None = None

    def read(self, case: int | str) -> str:
        """Read the random pickle of a number or the malicious pickle of a name, and return the result.

        Raises:
            AssertionError: The pickle has crashed the child process.
        """
        if self._child is None:
            command = [sys.executable, "-m", "tests.worlds.pickles"]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "cwd": Path(__file__).parents[2]}
            self._child = subprocess.Popen(command, encoding="utf-8", **pipes)  # type: ignore[call-overload]
        print(case, file=self._child.stdin, flush=True)
        if not (result := self._child.stdout.readline()):
            code = self._child.wait()
            self._child = None
            raise AssertionError(f"{case}: the reader ended with {code}")
        return str(result).strip()

    def close(self) -> None:
        """End the process."""
        if self._child is not None:
            self._child.communicate()


def main() -> None:
    """Read the pickles of the cases from stdin and print their results."""
    import numpy as np

    np.ones((2, 2)) @ np.ones((2, 2))
    if sys.platform == "linux":
        import resource

        used_bytes = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used_bytes + _EXTRA_MEMORY_BYTES, used_bytes + _EXTRA_MEMORY_BYTES))
    for line in sys.stdin:
        case = line.strip()
        print(read_pickle(random_pickle(Random(int(case))) if case.isdecimal() else HOSTILE_PICKLES[case]), flush=True)


if __name__ == "__main__":
    main()
