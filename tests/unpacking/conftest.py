"""An archive to extract, and helpers that inspect the extracted files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from random import Random

import pytest

from mmf_win.integrity.manifest import MANIFEST_NAME, ManifestEntry
from mmf_win.integrity.verify import LOCK_NAME
from tests.worlds.extractions import record_written_names
from tests.worlds.memes import Files, tar_gz

FILES: Files = {
    "detectron.lmdb/data.mdb": Random(1).randbytes(3_000_000),
    "detectron.lmdb/注.txt": b"note",
    "fc7_w.pkl": Random(2).randbytes(20_000),
    "z/empty": b"",
    "z/last": bytes(5000),
}
ENTRIES = {name: ManifestEntry(hashlib.sha256(content).hexdigest(), len(content)) for name, content in FILES.items()}
MANIFEST_FILES = {MANIFEST_NAME, "SHA256SUMS.json"}


@pytest.fixture
def archive(user_dir: Path) -> Path:
    return write_tar_gz(user_dir / "features 特征.tar.gz", FILES)


@pytest.fixture
def folder(user_dir: Path) -> Path:
    return user_dir / "data dir" / "features"


@pytest.fixture
def written_names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that records the names of written files."""
    return record_written_names(monkeypatch)


def write_tar_gz(path: Path, files: Files) -> Path:
    path.write_bytes(tar_gz(files))
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def file_identities(folder: Path) -> dict[str, tuple[int, int]]:
    """Return inode and mtime of each file, which change when it is written again."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.name not in (*MANIFEST_FILES, LOCK_NAME)]
    states = {file.relative_to(folder).as_posix(): file.stat() for file in files}
    return {name: (state.st_ino, state.st_mtime_ns) for name, state in states.items()}
