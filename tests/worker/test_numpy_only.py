"""Region features are unpickled without running what is in them."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

np = pytest.importorskip("numpy")

from mmf_win.worker.numpy_only import Refused, loads  # noqa: E402

_OBJECTS = (3, "|", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 1, 0)
_PART = (3, "|", (np.dtype("O"), (1,)), None, None, 8, 1, 0)
_NO_OBJECTS = (3, "|", None, None, None, -1, -1, 0)


class Made:
    """What a pickle makes of these parts, which numpy does not write."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __reduce__(self) -> tuple[Any, ...]:
        return self.parts


_OF_OBJECTS = Made(np.dtype, ("O",))


@pytest.mark.parametrize(
    ("name", "state"),
    [("f8", _OBJECTS), ("S8", _OBJECTS), ("V8", _OBJECTS), ("V8", _PART), ("O", _NO_OBJECTS)],
)
def test_a_type_whose_numbers_would_be_taken_for_addresses_is_refused(
    name: str, state: tuple[Any, ...]
) -> None:
    with pytest.raises(Refused, match="it changes the type"):
        loads(pickle.dumps({"features": Made(np.dtype, (name, False, True), state)}))


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
    with pytest.raises((Refused, ValueError)):
        loads(pickle.dumps({"features": made}))


def test_what_is_no_array_gets_no_state() -> None:
    with pytest.raises(Refused, match="it changes"):
        loads(b"\x80\x04\x8c\x05numpy\x8c\x05dtype\x93}b.")


@pytest.mark.parametrize("kind", ["<f4", ">f8", "?", "i8", "u1", "c8", "f2", "S3", "<U2", ">U2", "O"])
@pytest.mark.parametrize("protocol", range(3, 6))
def test_what_numpy_writes_of_plain_arrays_is_read(kind: str, protocol: int) -> None:
    array = np.ones((2, 3)).astype(kind)
    found = loads(pickle.dumps({"features": array}, protocol))["features"]
    assert type(found) is np.ndarray
    assert (found.dtype.str[1:], found.tolist()) == (array.dtype.str[1:], array.tolist())


def test_a_name_that_is_cut_off_is_damaged_and_not_refused() -> None:
    with pytest.raises(ValueError, match="cut off"):
        loads(b"\x80\x04cnump")
