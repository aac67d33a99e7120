"""Extraction of region features, completely or not at all, with MMF's marker."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from mmf_win.dataset.region_features import extract_features
from mmf_win.errors import ArchiveError, DatasetError, PasswordError
from mmf_win.files import read_json
from mmf_win.integrity.manifest import Manifest, ManifestEntry, ManifestSource
from mmf_win.paths import MmfPaths
from tests.worlds import hostile_archives
from tests.worlds.memes import PASSWORD, Files, make_encrypted_zip, read_tree, tar_gz, write_tree

LMDB: Files = {"data.mdb": bytes(range(256)) * 64, "lock.mdb": b"lock"}
DATA = {"data.mdb": LMDB["data.mdb"]}  # LMDB creates its lock file again if needed


def write_archive(path: Path, top: str = "", **more: bytes) -> Path:
    files = {f"{top}detectron.lmdb/{name}": content for name, content in LMDB.items()}
    path.write_bytes(tar_gz({**files, **more}))
    return path


@pytest.mark.parametrize("top", ["", "./", "hateful_memes/defaults/features/"])
def test_features_are_extracted_from_any_top_folder(top: str, user_dir: Path, mmf_paths: MmfPaths) -> None:
    archive = write_archive(user_dir / "features 特征.tar.gz", top, readme=b"ignored")
    folder = extract_features(archive, mmf_paths, version=None)
    assert folder == mmf_paths.dataset.features / "detectron.lmdb"
    assert read_tree(folder) == DATA
    manifest = Manifest.load(mmf_paths.dataset.features)
    assert manifest is not None
    assert manifest.files == {
        "detectron.lmdb/data.mdb": ManifestEntry(hashlib.sha256(LMDB["data.mdb"]).hexdigest(), len(LMDB["data.mdb"]))
    }
    assert manifest.source == ManifestSource.from_path(archive, hashlib.sha256(archive.read_bytes()).hexdigest())
    assert manifest.hash_origin == "archive"


def test_marker_for_mmf_can_be_added_later(user_dir: Path, mmf_paths: MmfPaths) -> None:
    archive = write_archive(user_dir / "features.tar.gz")
    marker = mmf_paths.dataset.features / ".built.json"
    extract_features(archive, mmf_paths, version=None)
    assert not marker.exists()
    extract_features(archive, mmf_paths, version="1.0_2020_05_11")
    assert read_json(marker)["version"] == "1.0_2020_05_11"
    assert isinstance(read_json(marker)["created_at"], str)


def test_second_extraction_of_features_does_nothing(
    user_dir: Path, mmf_paths: MmfPaths, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    archive = write_archive(user_dir / "features.tar.gz")
    extract_features(archive, mmf_paths, version="1")
    monkeypatch.setattr("mmf_win.unpacking.extract.open_archive", None)  # the archive must not be opened
    extract_features(archive, mmf_paths, version="1")
    assert "already extracted from this archive" in caplog.text


def test_truncated_lmdb_is_extracted_again(user_dir: Path, mmf_paths: MmfPaths) -> None:
    archive = write_archive(user_dir / "features.tar.gz")
    folder = extract_features(archive, mmf_paths, version="1")
    hostile_archives.truncate_file(folder / "data.mdb")
    extract_features(archive, mmf_paths, version="1")
    assert (folder / "data.mdb").read_bytes() == LMDB["data.mdb"]


@pytest.mark.parametrize("existing", [b"other", LMDB["data.mdb"]], ids=["others", "unpacked by another tool"])
def test_features_from_another_source_are_replaced_only_with_force(
    existing: bytes, user_dir: Path, mmf_paths: MmfPaths
) -> None:
    write_tree({"detectron.lmdb/data.mdb": existing}, mmf_paths.dataset.features)
    archive = write_archive(user_dir / "features.tar.gz")
    with pytest.raises(DatasetError, match="features already exist"):
        extract_features(archive, mmf_paths, version=None)
    folder = extract_features(archive, mmf_paths, version=None, force=True)
    assert read_tree(folder) == DATA
    assert Manifest.load(mmf_paths.dataset.features) is not None


def test_missing_archive_is_reported_before_existing_features(user_dir: Path, mmf_paths: MmfPaths) -> None:
    write_tree({"detectron.lmdb/data.mdb": b"other"}, mmf_paths.dataset.features)
    with pytest.raises(ArchiveError, match=r"typo\.tar\.gz: file or folder not found"):
        extract_features(user_dir / "typo.tar.gz", mmf_paths, version=None)


def test_encrypted_archive_requires_its_password(user_dir: Path, mmf_paths: MmfPaths) -> None:
    files = {f"detectron.lmdb/{name}": content for name, content in LMDB.items()}
    archive = make_encrypted_zip(user_dir / "features.zip", files)
    for ask in (None, lambda: "wrong"):
        with pytest.raises(PasswordError, match=r"features\.zip"):
            extract_features(archive, mmf_paths, version="1", ask=ask)
    assert read_tree(mmf_paths.data_dir) == {}
    target = extract_features(archive, mmf_paths, version="1", ask=lambda: PASSWORD)
    assert (target / "data.mdb").read_bytes() == LMDB["data.mdb"]


def test_archive_without_features_is_refused(user_dir: Path, mmf_paths: MmfPaths) -> None:
    (user_dir / "a.tar.gz").write_bytes(tar_gz({"data/train.jsonl": b""}))
    with pytest.raises(DatasetError, match=r"no detectron\.lmdb"):
        extract_features(user_dir / "a.tar.gz", mmf_paths, version="1")


def test_archive_with_two_sets_of_features_is_refused(user_dir: Path, mmf_paths: MmfPaths) -> None:
    archive = write_archive(user_dir / "a.tar.gz", "old/", **{"new/detectron.lmdb/data.mdb": b"new"})
    with pytest.raises(ArchiveError, match=r"old/.*new/.*have the same target file"):
        extract_features(archive, mmf_paths, version="1")
    assert read_tree(mmf_paths.data_dir) == {}


def test_folder_of_features_is_copied(user_dir: Path, mmf_paths: MmfPaths) -> None:
    write_tree({f"detectron.lmdb/{name}": content for name, content in LMDB.items()}, user_dir / "mine")
    folder = extract_features(user_dir / "mine", mmf_paths, version=None)
    assert read_tree(folder) == DATA
    manifest = Manifest.load(mmf_paths.dataset.features)
    assert manifest is not None and manifest.hash_origin == "recorded"
