"""Pickles for the reader of region features: hostile ones, and real ones with a few bytes changed.

``python -m tests.worlds.pickles`` reads numbers and names of cases, and says what became of each.
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

from tests.worlds import npy

_ROOM = 2 << 30
_NAMES = (
    *(b"cnumpy\nndarray\n", b"cnumpy\ndtype\n", b"c_codecs\nencode\n", b"c__builtin__\nbytes\n"),
    *(b"cnumpy.core.multiarray\n_reconstruct\n", b"cnumpy.core.multiarray\nscalar\n"),
    *(b"cnumpy._core.numeric\n_frombuffer\n", b"cbuiltins\nlist\n", b"cnumpy\nload\n"),
)
_TYPES = (
    "f4",
    "f8",
    "O",
    "O8",
    "V8",
    "S8",
    "U2",
    "U999999999",
    "M8[s]",
    "b1",
    "O,O",
    "T",
    "c8",
    "i8",
    "S0",
    "i7",
)
_ADDRESSES = bytes(range(8, 16))


def _value(value: object) -> bytes:
    """The instructions for a plain value, or given ones."""
    return value.code if isinstance(value, Code) else pickle.dumps(value, 3)[2:-1].replace(b"q\x00", b"")


class Code:
    """Instructions of a pickle."""

    def __init__(self, code: bytes) -> None:
        self.code = code


def call(name: bytes, *args: object) -> Code:
    """What calls a name of numpy's."""
    return Code(name + b"(" + b"".join(map(_value, args)) + b"tR")


def state(built: Code, *parts: object) -> Code:
    """What gives a state to what was built."""
    return Code(built.code + b"(" + b"".join(map(_value, parts)) + b"tb")


def dtype(code: object = "O", *parts: object) -> Code:
    """A type, and its state."""
    made = call(b"cnumpy\ndtype\n", code, False, True)
    return state(made, *parts) if parts else made


def array(*parts: object) -> Code:
    """An array as ``__reduce__`` of numpy tells it, with this state."""
    name = b"cnumpy.core.multiarray\n_reconstruct\n"
    empty = call(name, Code(b"cnumpy\nndarray\n"), Code(b"K\x00\x85"), Code(b"C\x01b"))
    return state(empty, *parts)


def from_bytes(*parts: object) -> Code:
    """An array as protocol 5 tells it."""
    return call(b"cnumpy.core.numeric\n_frombuffer\n", *parts)


def whole(code: Code | bytes) -> bytes:
    """A pickle of these instructions alone."""
    return b"\x80\x05" + (code.code if isinstance(code, Code) else code) + b"."


_FIELDS = (
    3,
    "|",
    Code(b"N"),
    ("a",),
    Code(b"}\x8c\x01a" + dtype("f8").code + b"J\x00\x00\x00\x10\x86s"),
    8,
    1,
    0,
)

HOSTILE = {
    "too few objects": whole(array(1, (100_000,), dtype(), False, [None])),
    "bytes for objects": whole(array(1, (1,), dtype(), False, _ADDRESSES)),
    "objects of bytes": whole(from_bytes(_ADDRESSES, dtype(), (1,), "C")),
    "an object of bytes": whole(call(b"cnumpy.core.multiarray\nscalar\n", dtype(), _ADDRESSES)),
    "called directly": whole(call(b"cnumpy\nndarray\n", (1,), dtype(), _ADDRESSES)),
    "fields": whole(array(1, (1,), dtype("V8", *_FIELDS), False, bytes(8))),
    "a field written to": whole(
        array(1, (1,), dtype("V8", *_FIELDS), False, bytes(8)).code + b"\x8c\x01aK\x07s"
    ),
    "an array written to": whole(array(1, (1,), dtype("f8"), False, bytes(8)).code + b"K\x00K\x07s"),
    "arrays in arrays": whole(
        b"N" + 20_000 * (b"q\x00" + array(1, (), dtype(), False, Code(b"]h\x00a")).code)
    ),
    "an array of an array's bytes": whole(
        array(1, (2,), dtype("f8"), False, bytes(16)).code
        + b"q\x00" + from_bytes(Code(b"h\x00"), dtype("f8"), (2,), "C").code
        + b"h\x00(" + b"".join(map(_value, (1, (9999,), dtype("f8"), False, bytes(79_992)))) + b"tb\x86"
    ),
    "a key of tuples": whole(b"})" + 300_000 * b"\x85" + b"Ns"),
    "a set of tuples": whole(b"\x8f()" + 300_000 * b"\x85" + b"\x90"),
    "lists in lists": whole(200_000 * b"]" + 199_999 * b"a"),
    "a list in itself": whole(b"]q\x00h\x00a"),
    "doubled again and again": whole(b"]q\x00" + b"".join(b"](h\x00h\x00eq\x00" for _ in range(25))),
    "one array of the same bytes after another": whole(
        _value(bytes(1 << 20)) + b"q\x00]"
        + 5000 * (from_bytes(Code(b"h\x00"), dtype("i1"), (1 << 20,), "C").code + b"a")
    ),
    "one text encoded again and again": whole(
        _value("x" * (1 << 20)) + b"q\x00]" + 5000 * (call(_NAMES[2], Code(b"h\x00"), "latin1").code + b"a")
    ),
    "a large bytearray": whole(b"\x96" + (1 << 40).to_bytes(8, "little") + b"a"),
    "large bytes": whole(b"\x8e" + (1 << 40).to_bytes(8, "little") + b"a"),
    "a large frame": whole(b"\x95" + (1 << 40).to_bytes(8, "little") + b"N"),
    "a large memo": whole(b"Nr\xff\xff\xff\x7f"),
    "a large type": whole(array(1, (1,), dtype("S2000000000"), False, b"")),
    "many of nothing": whole(array(1, (1 << 40, 1 << 40, 0), dtype("f4"), False, b"")),
    "many without bytes": whole(array(1, (1 << 40,), dtype("S0"), False, b"")),
    "many made of nothing": whole(b"]" + 50 * (from_bytes(b"", dtype("S0"), (1 << 20,), "C").code + b"a")),
    "text of a type that changes": whole(
        dtype("U1").code + b"q\x00" + from_bytes("a".encode("utf-32-le"), Code(b"h\x00"), (1,), "C").code
        + state(Code(b"h\x00"), 3, ">", None, None, None, 4, 4, 8).code + b"\x87"
    ),
    "fewer than none": whole(array(1, (-1,), dtype("f4"), False, b"")),
    "many digits": whole(b"L" + 1_000_000 * b"9" + b"L\n"),
    "many marks": whole(2_100_000 * b"("),
    "many parts": whole(2_100_000 * b"}\x94"),
    "a state of a function": whole(b"cnumpy\ndtype\n" + b"N}\x8c\x0c__defaults__)s\x86b"),
    "an extension": whole(b"\x82\x01"),
    "an object of a class": whole(b"cnumpy\ndtype\n)\x81"),
    "an instance": whole(b"(icnumpy\ndtype\n"),
    "another's number": whole(b"Pabc\n"),
    "text of no character": whole(array(1, (1,), dtype("U1"), False, b"\xff\xff\xff\xff")),
}  # fmt: skip


@cache
def real() -> list[bytes]:
    """What numpy writes of a record and of a list of keys, by each protocol."""
    import numpy as np

    record = {**npy.info(2, classes=3), "features": np.ones((2, 4), dtype=">f4"), "feature_path": "a"}
    record |= {"image_width": np.float32(3), "none": np.ones((0, 4)), "text": np.array(["ab", "c"])}
    keys = [b"00001", b"00002"]
    return [pickle.dumps(value, protocol) for value in (record, keys) for protocol in range(6)]


def made(chance: Random) -> bytes:
    """A pickle that nobody should trust."""
    kind = chance.random()
    if kind < 0.01:
        return chance.choice(list(HOSTILE.values()))
    if kind < 0.5:
        return _mutated(chance, chance.choice(real()))
    if kind < 0.7:
        return whole(_array(chance))
    parts = [
        *(*_NAMES, *(_value(value) for value in (0, 7, "O", "f4", "a", b"", bytes(8), None, (1,), (0,)))),
        *(b"(", b"t", b"]", b"}", b")", b"\x85", b"\x86", b"\x87", b"R", b"b", b"a", b"e", b"s", b"u", b"d"),
        *(b"q\x00", b"q\x01", b"h\x00", b"h\x01", b"0", b"2", b"\x94", b"\x8f", b"\x81", _array(chance).code),
    ]
    return whole(b"".join(chance.choice(parts) for _ in range(chance.randrange(60))))


def _array(chance: Random) -> Code:
    """An array with wild parts."""
    size = chance.choice((0, 1, 8, 8, 64))
    shape = chance.choice(((), (1,), (8,), (2, 4), (9999,), (1 << 62,), (-1,), (0, 1 << 40), (0,), 8, None))
    kind: object = dtype(chance.choice(_TYPES))
    if chance.random() < 0.4:
        own = [3, chance.choice("<>|=x"), None, None, None, -1, -1, 0]
        own[chance.randrange(8)] = chance.choice((0, 1, 8, -1, 1 << 40, None, ("a",), "|", dtype("O")))
        kind = dtype(chance.choice(_TYPES), *own)
    data: object = chance.choice((bytes(size), [None] * size, {}, [{}], "x" * size, bytearray(size)))
    if isinstance(data, bytearray):
        data = Code(b"\x96" + size.to_bytes(8, "little") + bytes(size))
    parts = (data, kind, shape, chance.choice("CFK"))
    built = from_bytes(*parts) if chance.random() < 0.4 else array(1, shape, kind, False, data)
    if chance.random() < 0.3:
        built = Code(
            b"]q\x00" + built.code + b"q\x01h\x01ah\x01" + built.code + chance.choice((b"b", b"s", b"\x86"))
        )
    return built


def _mutated(chance: Random, pickled: bytes) -> bytes:
    data = bytearray(pickled)
    for _ in range(chance.choice((1, 1, 2, 8))):
        place = chance.randrange(len(data))
        end = place + chance.randrange(8)
        data[place:end] = chance.choice(
            (bytes([chance.randrange(256)]), b"", data[:end], b"\x85R", b"b", b"h\x00")
        )
        if not data:
            break
    return bytes(data)


def read(pickled: bytes) -> str:
    """Read a pickle as mmfw does, use all of what comes out, and say what became of it."""
    from mmf_win.features.safe_pickle import UnsafePickleError, load_npy, load_pickle

    file = io.BytesIO()
    _write_npy(file)
    with suppress(Exception):  # numpy's own, of the header
        load_npy(file.getvalue() + pickled)
    try:
        found = load_pickle(pickled)
    except (UnsafePickleError, ValueError) as error:
        return "refused" if isinstance(error, UnsafePickleError) else "damaged"
    repr(found)
    pickle.dumps(found)
    return "read"


def _write_npy(file: io.BytesIO) -> None:
    """The header of an array with an object."""
    import numpy as np

    header: Any = {"descr": "|O", "fortran_order": False, "shape": ()}
    np.lib.format.write_array_header_1_0(file, header)


class Reader:
    """Another process that reads pickles; it may be ended by a signal, and then another takes its place."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[str] | None = None

    def read(self, case: int | str) -> str:
        """Read the pickle of a number or a name, and return what became of it.

        Raises:
            AssertionError: it was not read or refused in the way that it should be.
        """
        if self._child is None:
            command = [sys.executable, "-m", "tests.worlds.pickles"]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "cwd": Path(__file__).parents[2]}
            self._child = subprocess.Popen(command, encoding="utf-8", **pipes)  # type: ignore[call-overload]
        print(case, file=self._child.stdin, flush=True)
        if not (answer := self._child.stdout.readline()):
            code = self._child.wait()
            self._child = None
            raise AssertionError(f"{case}: the reader ended with {code}")
        return str(answer).strip()

    def close(self) -> None:
        """End the process."""
        if self._child is not None:
            self._child.communicate()


def main() -> None:
    """Read the pickles that are asked for."""
    import numpy as np

    np.ones((2, 2)) @ np.ones((2, 2))
    if sys.platform == "linux":
        import resource

        used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + _ROOM, used + _ROOM))
    for line in sys.stdin:
        case = line.strip()
        print(read(made(Random(int(case))) if case.isdecimal() else HOSTILE[case]), flush=True)


if __name__ == "__main__":
    main()
