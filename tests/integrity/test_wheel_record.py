"""The list that a wheel carries of its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmf_win.integrity.wheel_record import read_record, record_identity


def test_a_record_names_every_file_but_itself(tmp_path: Path) -> None:
    record = tmp_path / "RECORD"
    record.write_text('a.py,sha256=abc,3\n"b,c.py",sha256=def,4\nm.dist-info/RECORD,,\n', encoding="utf-8")
    assert read_record(record) == {"a.py": "sha256=abc", "b,c.py": "sha256=def"}


def test_the_identity_of_an_empty_file_is_the_one_that_wheels_carry(tmp_path: Path) -> None:
    (tmp_path / "e").touch()
    assert record_identity(tmp_path / "e") == "sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"


def test_something_else_is_not_taken_for_a_record(tmp_path: Path) -> None:
    (tmp_path / "RECORD").write_text("hello\n", encoding="utf-8")
    with pytest.raises(ValueError, match="not the RECORD"):
        read_record(tmp_path / "RECORD")
