"""Reading of records as a type: JSON of earlier and later versions, and invalid records."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mmf_win.files import write_json
from mmf_win.records import decode_json, has_type, read_record


@dataclass(frozen=True)
class Part:
    rows: int | None = None


@dataclass(frozen=True)
class Record:
    name: str
    share: float = 0.0
    part: Part | None = None
    names: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)


def test_record_is_read_with_nested_records(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_json(path, {"name": "猫", "share": 1, "part": {"rows": 3}, "names": ["a"], "counts": {"b": 2}})
    assert read_record(path, Record) == Record("猫", 1.0, Part(3), ("a",), {"b": 2})


def test_fields_of_later_versions_are_ignored() -> None:
    assert decode_json(b'{"name": "a", "later": [1], "part": {"later": 2}}', Record) == Record("a", part=Part())


def test_text_that_is_not_utf8_is_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_json(path, {"name": "a\udcff.png"})
    assert read_record(path, Record) == Record("a\udcff.png")


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_nan_and_infinity_become_none_or_an_error(constant: str) -> None:
    assert decode_json(f'{{"name": "a", "part": {{"rows": {constant}}}}}'.encode(), Record) == Record("a", part=Part())
    with pytest.raises(ValueError, match=r"share"):
        decode_json(f'{{"name": "a", "share": {constant}}}'.encode(), Record)


@pytest.mark.parametrize(
    ("values", "field_path"),
    [
        ({"name": 1}, "name"),
        ({"name": "a", "share": "much"}, "share"),
        ({"name": "a", "part": {"rows": True}}, r"part\.rows"),
        ({"name": "a", "names": ["b", 1]}, r"names\[1\]"),
        ({"name": "a\udcff", "part": {"rows": "x"}}, r"part\.rows"),
        ({"share": 1.0}, "name"),
    ],
)
def test_error_names_the_field(values: object, field_path: str) -> None:
    with pytest.raises(ValueError, match=field_path):
        decode_json(json.dumps(values).encode(), Record)


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b"\xff\xfe", b'{"name": "\xff"}', b"[" * 100_000])
def test_invalid_record_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_json(data, Record)


def test_has_type_checks_items_and_distinguishes_bool_from_int() -> None:
    assert has_type([0, "cpu"], list[int | str])
    assert not has_type([0.5], list[int | str])
    assert not has_type(True, int)
