"""A folder is compared with what it should hold."""

from __future__ import annotations

from pathlib import Path

from mmf_win.integrity.digest import file_digest
from mmf_win.integrity.finding import differences
from tests.worlds.memes import Files, lay_out

EXPECTED: Files = {"a.txt": b"one", "gone": b"", "пакет/b.py": b"two"}


def _identity(path: Path) -> str:
    return file_digest(path).hex()


def test_missing_changed_and_importable_files_are_named_and_others_let_be(user_dir: Path) -> None:
    lay_out(EXPECTED, user_dir)
    expected = {path: _identity(user_dir / path) for path in EXPECTED}
    lay_out({"пакет/__pycache__/b.cpython-311.pyc": b"", "notes.md": b""}, user_dir)
    assert not list(differences(user_dir, expected, _identity))
    (user_dir / "a.txt").unlink()
    (user_dir / "a.txt").mkdir()  # a folder in the place of a file
    (user_dir / "gone").unlink()
    lay_out({"пакет/b.py": b"twO", "пакет/a.py": b""}, user_dir)
    assert list(map(str, differences(user_dir, expected, _identity))) == [
        "missing: a.txt",
        "missing: gone",
        "changed: пакет/b.py",
        "extra: пакет/a.py",
    ]


def test_progress_is_told_in_bytes(user_dir: Path) -> None:
    (user_dir / "big").write_bytes(b"x" * 3_000_000)
    pieces: list[int] = []
    file_digest(user_dir / "big", progress=pieces.append)
    assert sum(pieces) == 3_000_000
    assert len(pieces) > 1
