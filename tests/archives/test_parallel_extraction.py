"""Parallel extraction: in rounds with the C extension, one member per thread without it."""

from __future__ import annotations

import errno
import hashlib
import os
import sys
import threading
import tracemalloc
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from mmf_win.archives import open_archive, zip_extract
from mmf_win.archives.zipcrypto import write_encrypted_zip
from mmf_win.errors import ArchiveError, PasswordError
from mmf_win.threads import AdvanceCallback, ignore_progress
from tests.worlds import hostile_archives
from tests.worlds.archive_writers import choose_all, choose_members, unpack_all
from tests.worlds.memes import Files, read_tree

PASSWORD = "secret"


@pytest.fixture
def files() -> Files:
    """Return files of very different sizes, some of them compressible."""
    random = Random(1)
    files: Files = {}
    for number in range(250):
        size = int(20_000 ** random.random()) if number % 10 else 0
        content = random.randbytes(size) if number % 3 else b"words " * (size // 6)
        files[f"data/{number // 40}/{number:04}"] = content
    return files


@pytest.fixture
def archive(user_dir: Path, files: Files) -> Path:
    path = user_dir / "a.zip"
    write_encrypted_zip(path, files.items(), PASSWORD)
    return path


@pytest.fixture
def tiny_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the limits so that tiny files need many rounds on several threads."""
    monkeypatch.setattr(zip_extract, "PIECE_BYTES", 1000)
    monkeypatch.setattr(zip_extract, "ARENA_BYTES", 40_000)
    monkeypatch.setattr(zip_extract, "MIN_ROUND_BYTES", 10_000)
    monkeypatch.setattr(zip_extract, "LARGE_MEMBER_BYTES", 8_000)
    monkeypatch.setattr(zip_extract, "default_thread_count", lambda: 3)


@pytest.fixture(params=["C extension", "wheel"])
def either_engine(request: pytest.FixtureRequest, tiny_rounds: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test with and without the C extension."""
    if request.param == "wheel":
        monkeypatch.setitem(sys.modules, "mmf_win.archives._zipcrypto", None)
        monkeypatch.delattr("mmf_win.archives._zipcrypto", raising=False)
        assert "fast-zip-decryption" in zip_extract.decryption_engine()
    else:
        pytest.importorskip("mmf_win.archives._zipcrypto", reason="built without the C extension")


def all_threads_ended() -> bool:
    return not [thread for thread in threading.enumerate() if thread.name.startswith("mmfw")]


@pytest.mark.usefixtures("either_engine")
def test_all_members_are_extracted(archive: Path, files: Files, user_dir: Path) -> None:
    assert unpack_all(archive, user_dir / "out", PASSWORD) == files


@pytest.mark.usefixtures("either_engine")
def test_archive_with_plain_and_encrypted_members_is_extracted(archive: Path, files: Files, user_dir: Path) -> None:
    plain = hostile_archives.write_zip(user_dir / "plain.zip", {f"plain/{n}": c for n, c in files.items()})
    mixed = hostile_archives.join_zips(user_dir / "mixed.zip", archive, plain)
    assert unpack_all(mixed, user_dir / "out", PASSWORD) == files | {f"plain/{n}": c for n, c in files.items()}


@pytest.mark.usefixtures("either_engine")
def test_progress_and_hash_cover_all_bytes(archive: Path, files: Files, user_dir: Path) -> None:
    digest, written = hashlib.sha256(), []
    opened = open_archive(archive, lambda: PASSWORD)
    extracted = list(opened.extract(choose_all(user_dir / "out"), written.append, digest))
    assert sum(written) == sum(map(len, files.values()))
    assert {file.name: file.size for file in extracted} == {name: len(content) for name, content in files.items()}
    assert digest.hexdigest() == hashlib.sha256(archive.read_bytes()).hexdigest()


@pytest.mark.usefixtures("either_engine")
def test_damaged_member_is_named_and_leaves_no_file(archive: Path, files: Files, user_dir: Path) -> None:
    with zipfile.ZipFile(archive) as zip_file:
        largest = max(zip_file.infolist(), key=lambda info: info.compress_size)
    name = largest.filename
    hostile_archives.flip_byte(archive, largest.header_offset + largest.compress_size // 2)
    with pytest.raises(ArchiveError, match=name):
        unpack_all(archive, user_dir / "out", PASSWORD)
    written = read_tree(user_dir / "out")
    assert all(files[name] == content for name, content in written.items()) and name not in written
    assert all_threads_ended()


def interrupt(amount: int) -> None:
    """Raise KeyboardInterrupt like Ctrl+C."""
    raise KeyboardInterrupt


@pytest.mark.usefixtures("either_engine")
@pytest.mark.parametrize("progress", [ignore_progress, interrupt])
def test_stopped_extraction_ends_all_threads(
    progress: AdvanceCallback, archive: Path, files: Files, user_dir: Path
) -> None:
    opened = open_archive(archive, lambda: PASSWORD)
    with suppress(KeyboardInterrupt):
        extracting = opened.extract(choose_all(user_dir / "out"), progress)
        next(iter(extracting))
        assert progress is ignore_progress
        extracting.close()  # type: ignore[attr-defined]
    assert all_threads_ended()
    assert all(files[name] == content for name, content in read_tree(user_dir / "out").items())


@pytest.mark.usefixtures("either_engine")
@pytest.mark.skipif(os.name == "nt" or not Path("/dev/full").exists(), reason="Windows has no /dev/full")
def test_full_disk_raises_os_error(archive: Path, files: Files, user_dir: Path) -> None:
    name = max(files, key=lambda name: len(files[name]))
    target = user_dir / "out" / name
    target.parent.mkdir(parents=True)
    target.symlink_to("/dev/full")
    with pytest.raises(OSError) as caught:
        unpack_all(archive, user_dir / "out", PASSWORD)
    assert caught.value.errno == errno.ENOSPC
    assert not target.is_symlink() and all_threads_ended()


def test_memory_does_not_grow_with_the_member_size(user_dir: Path) -> None:
    path = user_dir / "a.zip"
    write_encrypted_zip(path, [("zeros", bytes(100 << 20))], PASSWORD)
    archive = open_archive(path, lambda: PASSWORD)
    tracemalloc.start()
    list(archive.extract(choose_members({"zeros": user_dir / "zeros"})))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (user_dir / "zeros").stat().st_size == 100 << 20
    assert peak < 30 << 20


@pytest.mark.parametrize(
    "change", [hostile_archives.truncate_file, lambda path: os.utime(path, (1, 1))], ids=["cut", "touched"]
)
def test_archive_changed_during_extraction_raises(
    change: Callable[[Path], object], archive: Path, user_dir: Path
) -> None:
    opened = open_archive(archive, lambda: PASSWORD)
    opened.check_password()
    change(archive)
    with pytest.raises(ArchiveError, match="archive changed while being read"):
        list(opened.extract(choose_all(user_dir / "out")))


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot remove open files")
def test_archive_removed_during_extraction_is_extracted(archive: Path, files: Files, user_dir: Path) -> None:
    opened = open_archive(archive, lambda: PASSWORD)
    extracting = opened.extract(choose_all(user_dir / "out"))
    next(iter(extracting))
    archive.unlink()
    list(extracting)
    assert read_tree(user_dir / "out") == files


def test_wrong_password_writes_nothing(archive: Path, user_dir: Path) -> None:
    with pytest.raises(PasswordError):
        unpack_all(archive, user_dir / "out", "wrong")
    assert not (user_dir / "out").exists()
