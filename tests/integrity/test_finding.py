"""A folder is compared with what it should hold."""

from __future__ import annotations

from pathlib import Path

from mmf_win.integrity.digest import file_digest
from mmf_win.integrity.finding import Difference, differences

EXPECTED = {"a.txt": b"one", "пакет/b.py": b"two"}


def _identity(path: Path) -> str:
    return file_digest(path).hex()


def _world(root: Path) -> dict[str, str]:
    for path, content in EXPECTED.items():
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_bytes(content)
    return {path: _identity(root / path) for path in EXPECTED}


def test_a_whole_folder_has_no_differences(user_dir: Path) -> None:
    assert not list(differences(user_dir, _world(user_dir), _identity))


def test_missing_and_changed_files_are_named(user_dir: Path) -> None:
    expected = _world(user_dir)
    (user_dir / "a.txt").unlink()
    (user_dir / "пакет/b.py").write_bytes(b"twO")
    assert list(differences(user_dir, expected, _identity)) == [
        Difference("missing", "a.txt"),
        Difference("changed", "пакет/b.py"),
    ]


def test_a_stray_module_is_named_since_python_would_import_it(user_dir: Path) -> None:
    expected = _world(user_dir)
    (user_dir / "пакет/a.py").touch()
    assert [str(found) for found in differences(user_dir, expected, _identity)] == ["extra: пакет/a.py"]


def test_caches_and_notes_beside_the_files_are_let_be(user_dir: Path) -> None:
    expected = _world(user_dir)
    (user_dir / "__pycache__").mkdir()
    (user_dir / "__pycache__/b.cpython-311.pyc").touch()
    (user_dir / "notes.md").touch()
    assert not list(differences(user_dir, expected, _identity))


def test_a_folder_in_the_place_of_a_file_is_a_missing_file(user_dir: Path) -> None:
    expected = _world(user_dir)
    (user_dir / "a.txt").unlink()
    (user_dir / "a.txt").mkdir()
    assert list(differences(user_dir, expected, _identity)) == [Difference("missing", "a.txt")]


def test_progress_is_told_in_bytes(user_dir: Path) -> None:
    (user_dir / "big").write_bytes(b"x" * 3_000_000)
    pieces: list[int] = []
    file_digest(user_dir / "big", progress=pieces.append)
    assert sum(pieces) == 3_000_000
    assert len(pieces) > 1
