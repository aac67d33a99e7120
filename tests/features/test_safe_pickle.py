"""Safe unpickling of region features: no code is run, and declared array sizes are not trusted."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")

from mmf_win.features.safe_pickle import UnsafePickleError, load_npy, load_pickle  # noqa: E402
from tests.worlds import pickles  # noqa: E402
from tests.worlds.pickles import UnusualObject  # noqa: E402

_OBJECTS = (3, "|", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 1, 0)
_PART = (3, "|", (np.dtype("O"), (1,)), None, None, 8, 1, 0)
_NO_OBJECTS = (3, "|", None, None, None, -1, -1, 0)
_OTHERWISE = {
    **dict.fromkeys(("a large bytearray", "large bytes", "many digits", "many marks", "many parts"), "damaged"),
    **dict.fromkeys(("a large frame", "a large memo"), "read"),  # they only declare a size that is not used
}


_READ_WITH_LITTLE_MEMORY = """
import mmap, pickle, resource, sys
from pathlib import Path
import numpy as np
from mmf_win.features import builder, lmdb_file
from mmf_win.compat import mmf_data
from mmf_win.features.safe_pickle import load_npy, load_pickle

folder = Path(sys.argv[1])
array = np.zeros((10_000, 1000))
np.save(folder / "a.npy", array)
record = pickle.dumps({"features": array})
lmdb_file.write_lmdb(folder / "a.lmdb", [("a", record)], 100 << 20)
content, np = (folder / "a.npy").read_bytes(), mmf_data.SimpleNamespace(np=np)
mmf_data._restrict_loaders(np)
del array
used = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE

def limited(more, do):
    resource.setrlimit(resource.RLIMIT_AS, (used + more, resource.RLIM_INFINITY))
    try:
        do()
    except MemoryError:
        print("MemoryError")

limited(50 << 20, lambda: load_pickle(record))
limited(50 << 20, lambda: load_npy(content))
limited(100 << 20, lambda: np.np.load(str(folder / "a.npy")))
limited(50 << 20, lambda: lmdb_file.main(folder / "a.lmdb", "keys"))
limited(200 << 20, lambda: lmdb_file.main(folder / "a.lmdb", "records"))
(folder / "a.lmdb").rename(folder / "before")
limited(250 << 20, lambda: builder.main(folder / "a.lmdb", folder))
"""

_OBJECT_DTYPE = UnusualObject(np.dtype, ("O",))


@pytest.mark.parametrize(
    ("name", "state"), [("f8", _OBJECTS), ("S8", _OBJECTS), ("V8", _OBJECTS), ("V8", _PART), ("O", _NO_OBJECTS)]
)
def test_dtype_that_would_dereference_numbers_is_rejected(name: str, state: tuple[Any, ...]) -> None:
    with pytest.raises(UnsafePickleError, match="the dtype"):
        load_pickle(pickle.dumps({"features": UnusualObject(np.dtype, (name, False, True), state)}))


@pytest.mark.parametrize(
    "array",
    [
        UnusualObject(np.ndarray, ((1,), _OBJECT_DTYPE, bytes(range(8)))),
        UnusualObject(np.ndarray, ((1,), UnusualObject(np.dtype, ([("a", "O")],)), bytes(range(8)))),
        UnusualObject(np.ndarray, ((1,), UnusualObject(np.dtype, ("T",)), bytes(range(16)))),
        UnusualObject(np.dtype, ("O,O",)),
        UnusualObject(np.dtype, ({"names": ["a"], "formats": ["O"]},)),
        UnusualObject(np.ones(1).__reduce_ex__(5)[0], (bytes(range(8)), _OBJECT_DTYPE, (1,), "C")),
    ],
)
def test_array_of_addresses_is_never_created(array: UnusualObject) -> None:
    with pytest.raises(UnsafePickleError):
        load_pickle(pickle.dumps({"features": array}))


def test_only_arrays_and_dtypes_get_a_state() -> None:
    with pytest.raises(UnsafePickleError, match="instruction BUILD"):
        load_pickle(b"\x80\x04\x8c\x05numpy\x8c\x05dtype\x93}b.")


@pytest.fixture(scope="module")
def reader() -> Iterator[pickles.PickleReader]:
    """Start another process, which a pickle may crash."""
    reader = pickles.PickleReader()
    yield reader
    reader.close()


@pytest.mark.parametrize("name", pickles.HOSTILE_PICKLES)
def test_pickle_that_would_crash_or_exhaust_memory_is_rejected(reader: pickles.PickleReader, name: str) -> None:
    assert reader.read(name) == _OTHERWISE.get(name, "refused")


@pytest.mark.parametrize("kind", ["<f4", ">f8", "?", "i8", "u1", "f2", "S3", "<U2", ">U2", "U0"])
@pytest.mark.parametrize("protocol", range(6))
def test_plain_arrays_written_by_numpy_are_read(kind: str, protocol: int) -> None:
    array = np.ones((2, 3, 4)).astype(kind)
    number, none = array[0, 0, 0], array[:0]
    values = {"all": array, "columns": np.asfortranarray(array), "transposed": array.transpose(1, 0, 2)}
    values |= {"number": number, "none": none, "again": array, "lists": [(1, [number])]}
    loaded = load_pickle(pickle.dumps(values, protocol))
    for name in ("all", "columns", "transposed", "none"):
        assert type(loaded[name]) is np.ndarray
        assert loaded[name].flags.writeable
        assert (loaded[name].dtype.str[1:], loaded[name].shape) == (array.dtype.str[1:], values[name].shape)
        assert loaded[name].tolist() == values[name].tolist()
    assert loaded["again"] is loaded["all"]
    assert loaded["lists"] == [(1, [number])]
    assert type(loaded["number"]) is type(number) and loaded["number"] == number


def test_pickles_of_numpy_from_2020_are_read() -> None:
    """Pickles of dtypes had integers instead of booleans."""
    record = pickle.dumps({"features": np.ones((2, 3), "f4")}, 3).replace(b"numpy._core", b"numpy.core")
    assert record.count(b"\x89\x88\x87") == 1
    assert load_pickle(record.replace(b"\x89\x88\x87", b"K\x00K\x01\x87"))["features"].tolist() == [[1] * 3] * 2


@pytest.mark.parametrize("protocol", [3, 4])
def test_damage_is_reported_with_its_position(protocol: int) -> None:
    record = bytearray(pickle.dumps({"features": np.ones((2, 3))}, protocol))
    record[-3] = 255
    with pytest.raises(ValueError, match=f"unknown instruction at position {len(record) - 3}$"):
        load_pickle(bytes(record))
    with pytest.raises(ValueError, match="ends too early"):
        load_pickle(bytes(record[:-9]))
    with pytest.raises(ValueError, match="ends too early at position 0"):
        load_pickle(b"")


def test_truncated_name_is_reported_as_damage() -> None:
    with pytest.raises(ValueError, match="no newline"):
        load_pickle(b"\x80\x04cnump")


@pytest.mark.parametrize("kind", ["O", "f4,i4", "M8[s]", "(2,)O"])
def test_arrays_with_other_dtypes_are_rejected(kind: str, tmp_path: Any) -> None:
    np.save(tmp_path / "a.npy", np.zeros(3, kind))
    with pytest.raises(UnsafePickleError):
        load_npy((tmp_path / "a.npy").read_bytes())


@pytest.mark.skipif(sys.platform != "linux", reason="needs memory limits, which Windows does not have")
def test_lack_of_memory_is_reported_as_such(user_dir: Path) -> None:
    pytest.importorskip("lmdb")
    child = subprocess.run(
        [sys.executable, "-c", _READ_WITH_LITTLE_MEMORY, str(user_dir)], capture_output=True, text=True
    )
    lines = child.stdout.splitlines()
    assert (lines[:3], child.returncode) == (["MemoryError"] * 3, 0), child.stderr
    assert [json.loads(line)["kind"] for line in lines[3:]] == ["ResourceError"] * 3
