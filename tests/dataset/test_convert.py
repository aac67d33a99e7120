"""Conversion of archives in many forms to MMF's layout, completely or not at all."""

from __future__ import annotations

import errno
import json
import os
import sys
from importlib import import_module
from pathlib import Path

import pytest

from mmf_win.dataset.convert import ConversionResult, convert
from mmf_win.dataset.coverage import SplitSummary
from mmf_win.errors import DatasetError, InUseError
from mmf_win.integrity.manifest import MANIFEST_NAME, Manifest
from mmf_win.integrity.verify import find_damage
from mmf_win.paths import MmfPaths
from mmf_win.records import to_stored
from mmf_win.unpacking.staging import open_staging
from tests.dataset.conftest import verify_dataset
from tests.worlds.memes import (
    PASSWORD,
    PHASE_1_SPLITS,
    RELEASE_SPLITS,
    TOP_FOLDER,
    dataset_files,
    image,
    jsonl,
    make_encrypted_zip,
    mmf_layout,
    read_tree,
    tar_gz,
    with_packed_images,
    without_images,
    write_tree,
)
from tests.worlds.tools import make_failing_function, requires_tool, run_program

# --- forms of the source ---------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [PHASE_1_SPLITS, RELEASE_SPLITS], ids=["phase 1", "release"])
@pytest.mark.parametrize("top", ["data/", "hateful_memes/", "", "a b/данные/", "img/"])
def test_both_phases_are_converted_from_any_top_folder(
    phase: dict[str, range], top: str, user_dir: Path, mmf_paths: MmfPaths
) -> None:
    files = dataset_files(phase, top=top)
    convert(make_encrypted_zip(user_dir / "a.zip", files), mmf_paths, ask=lambda: PASSWORD)
    assert read_tree(mmf_paths.dataset.root) == mmf_layout(files)


def test_conversion_returns_counts_and_does_not_change_the_archive(archive: Path, mmf_paths: MmfPaths) -> None:
    before = archive.read_bytes(), archive.stat().st_mtime_ns
    result = convert(archive, mmf_paths, ask=lambda: PASSWORD)
    assert result.splits == {
        "train": SplitSummary(rows=6, hateful=3, benign=3, missing=0),
        "dev_seen": SplitSummary(rows=3, hateful=2, benign=1, missing=0),
        "dev_unseen": SplitSummary(rows=4, hateful=2, benign=2, missing=0),
        "test_seen": SplitSummary(rows=2, hateful=1, benign=1, missing=0),
        "test_unseen": SplitSummary(rows=3, hateful=1, benign=2, missing=0),
    }
    assert result.shared_ids == {"dev_seen & dev_unseen": 2}
    assert (result.images, result.extra_images, result.already_done) == (16, 0, False)
    assert (result.is_published, len(result.sha256 or "")) == (False, 64)
    remembered = Manifest(mmf_paths.dataset.root, {}, result={"target": "once recorded", **to_stored(result)})
    assert ConversionResult.from_manifest(remembered) == result
    assert (archive.read_bytes(), archive.stat().st_mtime_ns) == before


@requires_tool("sha256sum")
def test_conversion_writes_the_manifest(archive: Path, mmf_paths: MmfPaths) -> None:
    convert(archive, mmf_paths, ask=lambda: PASSWORD)
    manifest = Manifest.load(mmf_paths.dataset.root)
    assert manifest is not None and manifest.source is not None
    assert (manifest.hash_origin, manifest.verified_against) == ("archive", f"the archive {archive.name}")
    assert manifest.source.path == str(archive)
    assert manifest.files.keys() == mmf_layout(dataset_files()).keys()
    run_program("sha256sum", "--check", "--strict", "--quiet", MANIFEST_NAME, cwd=mmf_paths.dataset.root)


def test_just_converted_files_are_not_read_again(
    archive: Path, mmf_paths: MmfPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.utime(archive, (1_600_000_000, 1_600_000_000))
    convert(archive, mmf_paths, ask=lambda: PASSWORD)
    annotations = [name for name in mmf_layout(dataset_files()) if name.startswith("annotations/")]
    manifest = Manifest.load(mmf_paths.dataset.root)
    assert manifest is not None
    find_damage(manifest, only_files=annotations)  # their mtimes are too recent to be trusted
    monkeypatch.setattr(import_module("mmf_win.integrity.verify"), "file_digest", None)
    assert find_damage(manifest, only_files=manifest.files.keys() - annotations) == []


@pytest.mark.parametrize("name", ["img.tar.gz", "img.tgz"])
def test_nested_archive_of_images_is_unpacked(name: str, user_dir: Path, mmf_paths: MmfPaths) -> None:
    files = dataset_files()
    path = make_encrypted_zip(user_dir / "a.zip", with_packed_images(files, name=f"hateful_memes/{name}"))
    convert(path, mmf_paths, ask=lambda: PASSWORD)
    assert read_tree(mmf_paths.dataset.root) == mmf_layout(files)


def test_folder_is_converted(user_dir: Path, mmf_paths: MmfPaths) -> None:
    write_tree(dataset_files(), user_dir / "unpacked")
    result = convert(user_dir / "unpacked", mmf_paths)
    assert read_tree(mmf_paths.dataset.root) == mmf_layout(dataset_files())
    assert (result.sha256, result.is_published) == (None, None)
    manifest = Manifest.load(mmf_paths.dataset.root)
    assert manifest is not None and manifest.hash_origin == "recorded"
    assert convert(user_dir / "unpacked", mmf_paths).already_done


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights on Windows")
def test_links_in_a_folder_are_followed(user_dir: Path, mmf_paths: MmfPaths) -> None:
    files = write_tree(dataset_files(), user_dir / "unpacked")
    picture = next(files.rglob("00001.png"))
    target = picture.rename(user_dir / "elsewhere.png")
    picture.symlink_to(target)
    (files / "dangling.txt").symlink_to(user_dir / "nowhere")
    convert(files, mmf_paths)
    assert convert(files, mmf_paths).already_done
    target.write_bytes(next(files.rglob("00002.png")).read_bytes())
    with pytest.raises(DatasetError, match="not known to come from this"):
        convert(files, mmf_paths)
    convert(files, mmf_paths, force=True)
    copy = mmf_paths.dataset.images / "img" / "00001.png"
    assert copy.read_bytes() == target.read_bytes() and not copy.is_symlink()


def test_folder_in_mmfs_layout_and_tar_gz_are_converted(user_dir: Path, mmf_paths: MmfPaths) -> None:
    files = mmf_layout(dataset_files())
    convert(write_tree(files, user_dir / "other" / "defaults"), mmf_paths)
    assert read_tree(mmf_paths.dataset.root) == files
    (user_dir / "a.tar.gz").write_bytes(tar_gz(dataset_files()))
    convert(user_dir / "a.tar.gz", mmf_paths, force=True)
    assert read_tree(mmf_paths.dataset.root) == files


@requires_tool("zip", "7z")
@pytest.mark.parametrize(
    "command",
    [
        ["zip", "-rq", "-P", "secret", "a.bin.zip", "hateful_memes"],
        ["7z", "a", "-tzip", "-psecret", "-mem=AES256", "a.bin.zip", "hateful_memes"],
        ["7z", "a", "-t7z", "-psecret", "-mhe=on", "a.bin.zip", "hateful_memes"],
    ],
    ids=["zip", "7z aes", "7z"],
)
def test_archives_of_other_programs_are_converted(command: list[str], user_dir: Path, mmf_paths: MmfPaths) -> None:
    write_tree(dataset_files(), user_dir)
    run_program(*command, cwd=user_dir)
    convert(user_dir / "a.bin.zip", mmf_paths, ask=lambda: "secret")
    assert read_tree(mmf_paths.dataset.root) == mmf_layout(dataset_files())


def test_macos_metadata_files_are_ignored(user_dir: Path, mmf_paths: MmfPaths) -> None:
    names = [f"__MACOSX/hateful_memes/img/._{n:05}.png" for n in range(40)]
    names += [f"__MACOSX/{TOP_FOLDER}._train.jsonl", f"{TOP_FOLDER}img/._00001.png", f"{TOP_FOLDER}.DS_Store"]
    litter = dict.fromkeys(names, b"x")
    convert(make_encrypted_zip(user_dir / "a.zip", litter | dataset_files()), mmf_paths, ask=lambda: PASSWORD)
    assert read_tree(mmf_paths.dataset.root) == mmf_layout(dataset_files())


def test_extra_images_are_kept_and_counted(user_dir: Path, mmf_paths: MmfPaths) -> None:
    files = {**dataset_files(), "hateful_memes/img/99999.png": image(99999)}
    result = convert(make_encrypted_zip(user_dir / "a.zip", files), mmf_paths, ask=lambda: PASSWORD)
    assert (result.images, result.extra_images) == (17, 1)
    assert (mmf_paths.dataset.images / "img" / "99999.png").read_bytes() == image(99999)


# --- missing images --------------------------------------------------------------------------------------


def test_missing_images_are_counted_per_split_and_can_be_excluded(user_dir: Path, mmf_paths: MmfPaths) -> None:
    half = make_encrypted_zip(user_dir / "as on mirrors.zip", without_images(dataset_files(), [1, 2, 8, 16]))
    with pytest.raises(DatasetError) as caught:
        convert(half, mmf_paths, ask=lambda: PASSWORD)
    counts = "train 2 of 6, dev_seen 1 of 3, dev_unseen 1 of 4, test_unseen 1 of 3 (img/00001.png"
    assert counts in str(caught.value)
    assert "--allow-missing" in str(caught.value.hint)
    assert read_tree(mmf_paths.data_dir) == {}

    result = convert(half, mmf_paths, ask=lambda: PASSWORD, allow_missing=True)
    assert result.splits["train"] == SplitSummary(4, 2, 2, missing=2, missing_ids=["1", "2"])
    train = mmf_paths.dataset.annotation_file("train").read_bytes()
    assert train == b"".join(dataset_files()["hateful_memes/train.jsonl"].splitlines(keepends=True)[2:])
    assert (
        mmf_paths.dataset.annotation_file("test_seen").read_bytes() == dataset_files()["hateful_memes/test_seen.jsonl"]
    )
    assert convert(half, mmf_paths, ask=lambda: PASSWORD).already_done


# --- repeated conversion and replacement of another dataset ----------------------------------------------


def test_second_conversion_does_nothing(archive: Path, mmf_paths: MmfPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    first = convert(archive, mmf_paths, ask=lambda: PASSWORD)
    monkeypatch.setattr("mmf_win.dataset.convert.open_archive", None)  # the archive must not be opened
    second = convert(archive, mmf_paths)
    assert second.already_done
    assert second.splits == first.splits
    os.utime(archive, (1, 1))  # like a copy, which is recognized by its hash
    assert convert(archive, mmf_paths).already_done


def test_another_dataset_is_replaced_only_by_a_successful_forced_conversion(
    archive: Path, user_dir: Path, mmf_paths: MmfPaths
) -> None:
    old = dataset_files(PHASE_1_SPLITS)
    convert(make_encrypted_zip(user_dir / "old.zip", old), mmf_paths, ask=lambda: PASSWORD)
    with pytest.raises(DatasetError) as caught:
        convert(archive, mmf_paths, ask=lambda: PASSWORD)
    assert "--force" in str(caught.value.hint)
    assert read_tree(mmf_paths.dataset.root) == mmf_layout(old)

    data = jsonl([{"id": 1, "img": "img/nowhere.png", "text": ""}])
    invalid_archive = make_encrypted_zip(user_dir / "bad.zip", {**dataset_files(), "hateful_memes/train.jsonl": data})
    with pytest.raises(DatasetError):
        convert(invalid_archive, mmf_paths, ask=lambda: PASSWORD, force=True)
    assert read_tree(mmf_paths.dataset.root) == mmf_layout(old)
    assert convert(user_dir / "old.zip", mmf_paths).already_done

    convert(archive, mmf_paths, ask=lambda: PASSWORD, force=True)
    assert read_tree(mmf_paths.dataset.root) == mmf_layout(dataset_files())  # nothing of phase 1 is left
    assert verify_dataset(mmf_paths.dataset) == []


def test_dataset_converted_by_mmf_is_not_overwritten(archive: Path, mmf_paths: MmfPaths) -> None:
    write_tree(mmf_layout(dataset_files(PHASE_1_SPLITS)), mmf_paths.dataset.root)
    with pytest.raises(DatasetError, match="a dataset already exists"):
        convert(archive, mmf_paths, ask=lambda: PASSWORD)


def test_force_keeps_features_and_other_files(archive: Path, mmf_paths: MmfPaths) -> None:
    other_files = {
        "features/detectron.lmdb/data.mdb": b"features",
        "extras/vocabs/vocabulary_100k.txt": b"words",
        "annotations/my_split.jsonl": b"",
        "images/hateful_memes.zip": b"MMF has moved somebody's archive here",
    }
    write_tree({**mmf_layout(dataset_files(PHASE_1_SPLITS)), **other_files}, mmf_paths.dataset.root)
    convert(archive, mmf_paths, ask=lambda: PASSWORD, force=True)
    assert read_tree(mmf_paths.dataset.root) == {**mmf_layout(dataset_files()), **other_files}


def test_force_keeps_user_images_even_if_the_manifest_was_edited(
    archive: Path, user_dir: Path, mmf_paths: MmfPaths
) -> None:
    convert(make_encrypted_zip(user_dir / "old.zip", dataset_files(PHASE_1_SPLITS)), mmf_paths, ask=lambda: PASSWORD)
    with (mmf_paths.dataset.root / "SHA256SUMS").open("a", encoding="utf-8") as manifest:
        manifest.write("# a note\n")
    user_image = mmf_paths.dataset.images / "img" / "mine.png"
    user_image.write_bytes(b"mine")
    convert(archive, mmf_paths, ask=lambda: PASSWORD, force=True)
    assert user_image.read_bytes() == b"mine"


def test_force_refuses_to_remove_images_of_unknown_origin(archive: Path, mmf_paths: MmfPaths) -> None:
    files = {**mmf_layout(dataset_files(PHASE_1_SPLITS)), "images/img/mine.png": b"mine"}
    write_tree(files, mmf_paths.dataset.root)
    with pytest.raises(DatasetError, match=r"mine\.png"):
        convert(archive, mmf_paths, ask=lambda: PASSWORD, force=True)
    assert read_tree(mmf_paths.dataset.root) == files
    (mmf_paths.dataset.images / "img").rename(mmf_paths.data_dir / "kept")  # follow the hint
    convert(archive, mmf_paths, ask=lambda: PASSWORD, force=True)


def test_failed_move_restores_the_old_dataset(
    archive: Path, user_dir: Path, mmf_paths: MmfPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = dataset_files(PHASE_1_SPLITS)
    convert(make_encrypted_zip(user_dir / "old.zip", old), mmf_paths, ask=lambda: PASSWORD)
    rename = Path.replace

    def refuse_one(self: Path, target: Path) -> Path:
        if self.name == "dev_unseen.jsonl":
            raise OSError("no")
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", refuse_one)
    with pytest.raises(OSError, match="no"):
        convert(archive, mmf_paths, ask=lambda: PASSWORD, force=True)
    assert read_tree(mmf_paths.dataset.root) == mmf_layout(old)
    assert convert(user_dir / "old.zip", mmf_paths).already_done


# --- concurrent conversions ------------------------------------------------------------------------------


def test_concurrent_conversions_do_not_mix(archive: Path, mmf_paths: MmfPaths) -> None:
    with open_staging(mmf_paths.dataset.root), pytest.raises(InUseError, match="another mmfw"):
        convert(archive, mmf_paths, ask=lambda: PASSWORD)
    convert(archive, mmf_paths, ask=lambda: PASSWORD)
    assert read_tree(mmf_paths.dataset.root) == mmf_layout(dataset_files())


@pytest.mark.skipif(sys.platform == "win32", reason="Windows refuses a lock for no other reason")
def test_disk_without_locks_is_not_reported_as_another_process(
    archive: Path, mmf_paths: MmfPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fcntl.flock", make_failing_function(errno.ENOLCK))
    with pytest.raises(OSError, match="does not support locks"):
        convert(archive, mmf_paths, ask=lambda: PASSWORD)


def test_annotations_in_other_formats_are_not_changed(user_dir: Path, mmf_paths: MmfPaths) -> None:
    """The annotations are a JSON list with indentation and a byte order mark."""
    files = dataset_files()
    for name, content in files.items():
        if name.endswith(".jsonl"):
            rows = [json.loads(line) for line in content.splitlines()]
            files[name] = json.dumps(rows, indent=2).encode("utf-8-sig")
    convert(write_tree(files, user_dir / "unpacked"), mmf_paths)
    expected = mmf_layout(files)
    for split in RELEASE_SPLITS:
        assert mmf_paths.dataset.annotation_file(split).read_bytes() == expected[f"annotations/{split}.jsonl"]
    assert verify_dataset(mmf_paths.dataset, full=True) == []
