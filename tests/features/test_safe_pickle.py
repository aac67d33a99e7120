"""Region features are unpickled without running what is in them or trusting what they say of arrays."""

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

_OBJECTS = (3, "|", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 1, 0)
_PART = (3, "|", (np.dtype("O"), (1,)), None, None, 8, 1, 0)
_NO_OBJECTS = (3, "|", None, None, None, -1, -1, 0)
_OTHERWISE = {
    **dict.fromkeys(
        ("a large bytearray", "large bytes", "many digits", "many marks", "many parts"), "damaged"
    ),
    **dict.fromkeys(("a large frame", "a large memo"), "read"),  # they only announce what is not there
}


class Made:
    """What a pickle makes of these parts, which numpy does not write."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __reduce__(self) -> tuple[Any, ...]:
        return self.parts


_STARVED = """
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
lmdb_file.write(folder / "a.lmdb", [("a", record)], 100 << 20)
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

_OF_OBJECTS = Made(np.dtype, ("O",))


@pytest.mark.parametrize(
    ("name", "state"),
    [("f8", _OBJECTS), ("S8", _OBJECTS), ("V8", _OBJECTS), ("V8", _PART), ("O", _NO_OBJECTS)],
)
def test_a_type_whose_numbers_would_be_taken_for_addresses_is_refused(
    name: str, state: tuple[Any, ...]
) -> None:
    with pytest.raises(UnsafePickleError, match="the type"):
        load_pickle(pickle.dumps({"features": Made(np.dtype, (name, False, True), state)}))


@pytest.mark.parametrize(
    "made",
    [
        Made(np.ndarray, ((1,), _OF_OBJECTS, bytes(range(8)))),
        Made(np.ndarray, ((1,), Made(np.dtype, ([("a", "O")],)), bytes(range(8)))),
        Made(np.ndarray, ((1,), Made(np.dtype, ("T",)), bytes(range(16)))),
        Made(np.dtype, ("O,O",)),
        Made(np.dtype, ({"names": ["a"], "formats": ["O"]},)),
        Made(np.ones(1).__reduce_ex__(5)[0], (bytes(range(8)), _OF_OBJECTS, (1,), "C")),
    ],
)
def test_an_array_of_addresses_is_never_made(made: Made) -> None:
    with pytest.raises(UnsafePickleError):
        load_pickle(pickle.dumps({"features": made}))


def test_what_is_no_array_gets_no_state() -> None:
    with pytest.raises(UnsafePickleError, match="instruction BUILD"):
        load_pickle(b"\x80\x04\x8c\x05numpy\x8c\x05dtype\x93}b.")


@pytest.fixture(scope="module")
def reader() -> Iterator[pickles.PickleReader]:
    """Another process, which a pickle may end."""
    reader = pickles.PickleReader()
    yield reader
    reader.close()


@pytest.mark.parametrize("name", pickles.HOSTILE_PICKLES)
def test_a_pickle_that_would_end_the_process_or_fill_the_memory_is_refused(
    reader: pickles.PickleReader, name: str
) -> None:
    assert reader.read(name) == _OTHERWISE.get(name, "refused")


@pytest.mark.parametrize("kind", ["<f4", ">f8", "?", "i8", "u1", "f2", "S3", "<U2", ">U2", "U0"])
@pytest.mark.parametrize("protocol", range(6))
def test_what_numpy_writes_of_plain_arrays_is_read(kind: str, protocol: int) -> None:
    array = np.ones((2, 3, 4)).astype(kind)
    number, none = array[0, 0, 0], array[:0]
    told = {"all": array, "columns": np.asfortranarray(array), "turned": array.transpose(1, 0, 2)}
    told |= {"number": number, "none": none, "again": array, "lists": [(1, [number])]}
    found = load_pickle(pickle.dumps(told, protocol))
    for name in ("all", "columns", "turned", "none"):
        assert type(found[name]) is np.ndarray
        assert found[name].flags.writeable
        assert (found[name].dtype.str[1:], found[name].shape) == (array.dtype.str[1:], told[name].shape)
        assert found[name].tolist() == told[name].tolist()
    assert found["again"] is found["all"]
    assert found["lists"] == [(1, [number])]
    assert type(found["number"]) is type(number) and found["number"] == number


def test_what_numpy_wrote_in_2020_is_read() -> None:
    """Its types had numbers where there are truth values now."""
    record = pickle.dumps({"features": np.ones((2, 3), "f4")}, 3).replace(b"numpy._core", b"numpy.core")
    assert record.count(b"\x89\x88\x87") == 1
    assert (
        load_pickle(record.replace(b"\x89\x88\x87", b"K\x00K\x01\x87"))["features"].tolist() == [[1] * 3] * 2
    )


@pytest.mark.parametrize("protocol", [3, 4])
def test_damage_is_told_by_its_position_in_the_record(protocol: int) -> None:
    record = bytearray(pickle.dumps({"features": np.ones((2, 3))}, protocol))
    record[-3] = 255
    with pytest.raises(ValueError, match=f"unknown instruction at position {len(record) - 3}$"):
        load_pickle(bytes(record))
    with pytest.raises(ValueError, match="ends too early"):
        load_pickle(bytes(record[:-9]))
    with pytest.raises(ValueError, match="ends too early at position 0"):
        load_pickle(b"")


def test_a_name_that_is_cut_off_is_damaged_and_not_refused() -> None:
    with pytest.raises(ValueError, match="no newline"):
        load_pickle(b"\x80\x04cnump")


@pytest.mark.parametrize("kind", ["O", "f4,i4", "M8[s]", "(2,)O"])
def test_other_files_of_arrays_are_refused(kind: str, tmp_path: Any) -> None:
    np.save(tmp_path / "a.npy", np.zeros(3, kind))
    with pytest.raises(UnsafePickleError):
        load_npy((tmp_path / "a.npy").read_bytes())


@pytest.mark.skipif(sys.platform != "linux", reason="needs limits, which Windows has not")
def test_a_lack_of_memory_is_called_neither_damage_nor_hostile(user_dir: Path) -> None:
    pytest.importorskip("lmdb")
    done = subprocess.run([sys.executable, "-c", _STARVED, str(user_dir)], capture_output=True, text=True)
    told = done.stdout.splitlines()
    assert (told[:3], done.returncode) == (["MemoryError"] * 3, 0), done.stderr
    assert [json.loads(line)["kind"] for line in told[3:]] == ["ResourceError"] * 3
