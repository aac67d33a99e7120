"""Extraction of an archive with a manifest: in one pass, all or nothing, also after a crash."""

from __future__ import annotations

import errno
import gzip
import logging
import shutil
import subprocess
import sys
import tarfile
import threading
from collections import namedtuple
from importlib import import_module
from pathlib import Path
from random import Random

import pytest

from mmf_win.errors import ArchiveError, ResourceError
from mmf_win.integrity.manifest import MANIFEST_NAME, Manifest, ManifestSource
from mmf_win.integrity.verify import LOCK_NAME, find_damage
from mmf_win.unpacking import extract as extract_module
from mmf_win.unpacking.extract import extract_verified
from mmf_win.unpacking.staging import staging_folder
from tests.unpacking.conftest import ENTRIES, FILES, MANIFEST_FILES, file_identities, sha256, write_tar_gz
from tests.worlds import hostile_archives
from tests.worlds.extractions import interrupt_after
from tests.worlds.flush_recorder import FlushRecorder
from tests.worlds.memes import read_tree, tar_gz, write_tree
from tests.worlds.mounts import remount

# --- extracted files ---------------------------------------------------------------------------------------


def test_extracted_files_are_recorded_and_not_read_again(
    archive: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = extract_verified(archive, folder)
    assert read_tree(folder) == FILES
    assert manifest.files == ENTRIES
    assert (manifest.hash_origin, manifest.source) == ("archive", ManifestSource.from_path(archive, sha256(archive)))
    loaded = Manifest.load(folder)
    assert loaded == manifest
    with monkeypatch.context() as patch:  # hashing would fail
        patch.setattr(import_module("mmf_win.integrity.verify"), "file_digest", None)
        assert find_damage(loaded) == []
    assert find_damage(manifest, full=True) == []


def test_zip_tar_and_folder_get_a_manifest(user_dir: Path, folder: Path) -> None:
    extract_verified(hostile_archives.write_zip(user_dir / "a.zip", FILES), folder / "zip")
    (user_dir / "archive").write_bytes(gzip.decompress(tar_gz(FILES)))
    extract_verified(user_dir / "archive", folder / "tar")
    manifest = extract_verified(write_tree(FILES, user_dir / "mine"), folder / "copy")
    assert read_tree(folder / "zip") == read_tree(folder / "tar") == read_tree(folder / "copy") == FILES
    assert (manifest.files, manifest.hash_origin) == (ENTRIES, "recorded")


def test_files_are_flushed_before_they_are_moved(archive: Path, folder: Path, flush_recorder: FlushRecorder) -> None:
    extract_verified(archive, folder)
    assert all(flush_recorder.is_flushed(folder / name) for name in [*FILES, *MANIFEST_FILES])
    assert all(rename.is_flushed for rename in flush_recorder.renames)


def test_members_are_chosen_and_renamed(archive: Path, folder: Path) -> None:
    extract_verified(archive, folder, choose=lambda name: {"z/last": "first"}.get(name))
    assert read_tree(folder) == {"first": FILES["z/last"]}


def test_other_files_in_the_folder_are_kept(archive: Path, folder: Path) -> None:
    write_tree({"mine.txt": b"mine", "z/mine.txt": b"mine", "fc7_w.pkl": b"old"}, folder)
    extract_verified(archive, folder)
    assert read_tree(folder) == {**FILES, "mine.txt": b"mine", "z/mine.txt": b"mine"}


def test_second_extraction_writes_nothing(archive: Path, folder: Path, written_names: list[str]) -> None:
    extract_verified(archive, folder)
    before = file_identities(folder)
    written_names.clear()
    extract_verified(archive, folder)
    assert (file_identities(folder), written_names) == (before, [])


def test_different_archive_replaces_the_first(archive: Path, user_dir: Path, folder: Path) -> None:
    extract_verified(archive, folder)
    other = write_tar_gz(user_dir / "other.tar.gz", {"fc7_w.pkl": b"other"})
    manifest = extract_verified(other, folder)
    assert list(manifest.files) == ["fc7_w.pkl"]
    assert (folder / "fc7_w.pkl").read_bytes() == b"other"


# --- damaged and hostile archives --------------------------------------------------------------------------


def require_only_lock_file(folder: Path) -> None:
    assert [path.name for path in folder.iterdir()] == [LOCK_NAME]


def test_only_the_published_archive_is_accepted(archive: Path, folder: Path) -> None:
    with pytest.raises(ArchiveError, match=f"SHA-256 {sha256(archive)}, expected 000"):
        extract_verified(archive, folder, expected_sha256="0" * 64)
    require_only_lock_file(folder)
    assert extract_verified(archive, folder, expected_sha256=sha256(archive)).hash_origin == "published"


@pytest.mark.parametrize("share", [0.0001, 0.3, 0.999])
def test_truncated_archive_is_rejected(share: float, archive: Path, folder: Path) -> None:
    with pytest.raises(ArchiveError, match="not a valid tar"):
        extract_verified(hostile_archives.truncate_file(archive, share), folder)
    require_only_lock_file(folder)


def test_flipped_byte_in_the_archive_is_detected_or_harmless(user_dir: Path) -> None:
    small = {"a": Random(3).randbytes(600), "b/c": b"text " * 200}
    intact = tar_gz(small)
    for at in range(0, len(intact), 7):
        path = user_dir / "a.tar.gz"
        path.write_bytes(intact[:at] + bytes([intact[at] ^ 0x10]) + intact[at + 1 :])
        folder = user_dir / str(at)
        try:
            extract_verified(path, folder)
        except ArchiveError:
            assert not (folder / MANIFEST_NAME).exists() and read_tree(folder) == {}
        else:
            assert read_tree(folder) == small  # gzip's header has an unused name and time


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        *(
            (hostile_archives.tar_member(name), r"outside.* rejected")
            for name in ("../outside", "/etc/outside", "a/../../outside", "C:\\outside")
        ),
        *((hostile_archives.tar_member(name), "Windows") for name in ("con.txt", "ab:c", "trailing.")),
        (hostile_archives.tar_member("link", tarfile.SYMTYPE, link="/etc/passwd"), "symbolic links are not supported"),
        *((hostile_archives.tar_member(name), "have the same target file") for name in ("good", "GOOD")),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_hostile_member_is_rejected(member: tarfile.TarInfo, reason: str, user_dir: Path, folder: Path) -> None:
    hostile_archives.write_zeros_tar(user_dir / "a.tar", hostile_archives.tar_member("good"), member)
    with pytest.raises(ArchiveError, match=reason):
        extract_verified(user_dir / "a.tar", folder)
    require_only_lock_file(folder)
    assert not list(user_dir.rglob("outside"))


# --- a disk that is full or read-only ----------------------------------------------------------------------


def test_archive_that_does_not_fit_is_not_extracted(small_disk: Path, user_dir: Path) -> None:
    path = write_tar_gz(user_dir / "a.tar.gz", {"zeros": bytes(100 << 20)})
    plain = user_dir / "a.tar"
    plain.write_bytes(gzip.decompress(path.read_bytes()))
    for archive in (plain, path):
        with pytest.raises(ResourceError, match="not enough disk space"):
            extract_verified(archive, small_disk / "features")
        require_only_lock_file(small_disk / "features")


def test_total_size_of_members_is_checked_before_writing(
    user_dir: Path, folder: Path, written_names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = hostile_archives.write_zip(user_dir / "a.zip", {name: bytes(10_000) for name in "abc"})
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, (64 << 20) + 25_000))
    with pytest.raises(ResourceError, match="not enough disk space"):
        extract_verified(archive, folder)
    assert written_names == []
    require_only_lock_file(folder)


def test_disk_filled_during_extraction_leaves_no_files(small_disk: Path, user_dir: Path) -> None:
    path = write_tar_gz(user_dir / "a.tar.gz", {f"{number:03}": bytes(1 << 20) for number in range(90)})
    folder = small_disk / "features"
    with pytest.raises(OSError) as caught:
        extract_verified(path, folder)
    assert caught.value.errno == errno.ENOSPC
    assert str(small_disk) in caught.value.filename
    require_only_lock_file(folder)
    remount(small_disk, "size=200m")
    assert len(extract_verified(path, folder).files) == 90


def test_read_only_folder_is_not_changed(archive: Path, small_disk: Path) -> None:
    folder = small_disk / "features"
    extract_verified(archive, folder)
    hostile_archives.truncate_file(folder / "fc7_w.pkl")
    before = read_tree(folder)
    remount(small_disk, "ro")
    with pytest.raises(OSError) as caught:
        extract_verified(archive, folder)
    assert caught.value.errno == errno.EROFS
    assert read_tree(folder) == before


# --- killed and parallel processes -------------------------------------------------------------------------

_CHILD = """\
import os, signal, sys
from pathlib import Path
from mmf_win.archives import Archive
from mmf_win.unpacking.extract import extract_verified

when, extract = sys.argv[3], Archive.extract

def watched(*arguments):
    for number, extracted in enumerate(extract(*arguments)):
        if when == "extracting" and number == 2:
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))  # on Windows, SIGTERM kills too
        if when == "waiting" and number == 0:
            print("started", flush=True)
            sys.stdin.readline()
        yield extracted

Archive.extract = watched
extract_verified(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def child(archive: Path, folder: Path, when: str) -> list[str]:
    return [sys.executable, "-X", "utf8", "-c", _CHILD, str(archive), str(folder), when]


def test_killed_extraction_is_started_again(archive: Path, folder: Path, written_names: list[str]) -> None:
    killed = subprocess.run(
        child(archive, folder, "extracting"), stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    assert killed.returncode != 0
    assert Manifest.load(folder) is None
    assert not (folder / "detectron.lmdb").exists()

    manifest = extract_verified(archive, folder)
    assert len(written_names) == len(FILES)
    assert read_tree(folder) == FILES
    assert manifest.source == ManifestSource.from_path(archive, sha256(archive))
    assert not staging_folder(folder).exists()


def test_ctrl_c_ends_all_threads_and_leaves_no_files(
    archive: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt_after(1, patch)
        extract_verified(archive, folder)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("mmfw")]
    require_only_lock_file(folder)
    extract_verified(archive, folder)
    assert read_tree(folder) == FILES


def test_second_extraction_waits_for_the_first_with_a_message(
    archive: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen(
        child(archive, folder, "waiting"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
    ) as first:
        assert first.stdin is not None and first.stdout is not None
        assert first.stdout.readline() == "started\n"
        messages: list[str] = []

        def record_message(record: logging.LogRecord) -> bool:
            assert first.stdin is not None
            messages.append(record.getMessage())
            first.stdin.close()  # the first one continues
            return True

        monkeypatch.setattr(logging.getLogger("mmf_win.unpacking.staging"), "filters", [record_message])
        monkeypatch.setattr(extract_module, "extract_to_staging", None)  # the second one has nothing to do
        manifest = extract_verified(archive, folder)
    assert first.returncode == 0
    assert messages == [f"{folder}: in use by another mmfw process; waiting for it to finish"]
    assert manifest.files == ENTRIES
    assert read_tree(folder) == FILES
