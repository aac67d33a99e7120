"""Archives that a conversion refuses without leaving anything behind."""

from __future__ import annotations

import contextlib
import errno
import json
import re
import shutil
import sys
from collections import namedtuple
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import py7zr
import pytest

from mmf_win.console import Progress
from mmf_win.dataset import unpack as unpack_module
from mmf_win.dataset.convert import convert
from mmf_win.errors import ArchiveError, DatasetError, PasswordError, ResourceError
from mmf_win.integrity.manifest import ManifestEntry
from mmf_win.paths import MmfPaths
from tests.worlds import hostile_archives
from tests.worlds.memes import (
    PASSWORD,
    PHASE_1_SPLITS,
    RELEASE_SPLITS,
    Files,
    dataset_files,
    image,
    jsonl,
    make_encrypted_zip,
    mmf_layout,
    read_tree,
    tar_gz,
    with_packed_images,
    write_tree,
)
from tests.worlds.mounts import remount


@pytest.mark.parametrize("password", [None, "wrong"])
def test_dataset_is_not_converted_with_a_wrong_password(
    password: str | None, archive: Path, mmf_paths: MmfPaths
) -> None:
    with pytest.raises(PasswordError):
        convert(archive, mmf_paths, ask=password and (lambda: password))
    assert not mmf_paths.data_dir.exists()


def test_archive_of_something_else_is_refused(user_dir: Path, mmf_paths: MmfPaths) -> None:
    path = hostile_archives.write_zip(user_dir / "a.zip", {"holiday/1.png": b"x", "holiday/2.png": b"x"})
    with pytest.raises(DatasetError, match="not the Hateful Memes dataset") as caught:
        convert(path, mmf_paths)
    assert "holiday/1.png" in (caught.value.hint or "")
    assert not mmf_paths.data_dir.exists()


def test_dataset_written_by_mmfw_in_the_source_is_ignored(user_dir: Path) -> None:
    source = write_tree(dataset_files(top=""), user_dir / "set")
    convert(source, MmfPaths(user_dir, source / "old", user_dir))
    mmf_paths = MmfPaths(user_dir, source / "new", user_dir)
    convert(source, mmf_paths)
    assert read_tree(mmf_paths.dataset.root) == mmf_layout(dataset_files(top=""))


def test_folder_with_two_datasets_is_refused(user_dir: Path, mmf_paths: MmfPaths) -> None:
    write_tree(dataset_files(top="a/"), user_dir / "both")
    write_tree(dataset_files(top="b/old/"), user_dir / "both")
    with pytest.raises(DatasetError, match="contains several datasets: a, b/old"):
        convert(user_dir / "both", mmf_paths)
    assert not mmf_paths.data_dir.exists()
    convert(user_dir / "both" / "a", mmf_paths)


@pytest.mark.parametrize(
    ("split", "column", "message"),
    [
        ("dev", "hateful", "train.csv:2: 2 of 2 rows have no label; the columns are image, text, hateful"),
        ("val", "label", "val.csv: not the name of a split"),
        ("Validation", "label", "Validation.csv: not the name of a split"),
    ],
)
def test_tables_with_unknown_names_or_columns_are_refused(
    user_dir: Path, mmf_paths: MmfPaths, split: str, column: str, message: str
) -> None:
    table = f"image,text,{column}\n1.png,a,1\n2.png,b,0\n".encode()
    files = {"train.csv": table, f"{split}.csv": table, "1.png": image(1), "2.png": image(2)}
    with pytest.raises(DatasetError, match=message) as caught:
        convert(write_tree(files, user_dir / "own"), mmf_paths)
    assert "label" in (caught.value.hint or "") or "rename it to dev" in (caught.value.hint or "")
    assert not mmf_paths.dataset.annotations.exists()


def test_split_names_are_case_insensitive(user_dir: Path, mmf_paths: MmfPaths) -> None:
    table = b"image,text,label\n1.png,a,1\n2.png,b,0\n"
    files = {"Train.CSV": table, "Dev.csv": table, "1.png": image(1), "2.png": image(2)}
    convert(write_tree(files, user_dir / "own"), mmf_paths)
    assert {file.name for file in mmf_paths.dataset.annotations.iterdir()} == {"train.jsonl", "dev.jsonl"}


def test_unlabelled_test_set_is_a_warning(
    user_dir: Path, mmf_paths: MmfPaths, caplog: pytest.LogCaptureFixture
) -> None:
    table = "image,text,{}\n1.png,a,1\n2.png,b,0\n"
    label_columns = {"train": "label", "dev": "label", "test": "hateful"}
    files = {f"{split}.csv": table.format(column).encode() for split, column in label_columns.items()}
    convert(write_tree({**files, "1.png": image(1), "2.png": image(2)}, user_dir / "own"), mmf_paths)
    assert "test.csv:2: 2 of 2 rows have no label; the columns are image, text, hateful" in caplog.text


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        ({"label": None}, ":1: 3 of 3 rows have no label; the columns are id, img, text", "a label, 0 or 1|add labels"),
        (
            {"label": None, "gold_hate": 1},
            ":1: 3 of 3 rows have no label; .*gold_hate",
            'rename "gold_hate" to "label"',
        ),
        ({"label": None, "hateful": 1}, ":1: 3 of 3 rows have no label", 'rename "hateful" to "label"'),
        ({"label": None, "labels": [0, 1]}, ":1: 3 of 3 rows have no label", 'rename "labels" to "label"'),
        ({"label": [0, 1, 1]}, r':1: "label" must be 0 or 1, not \[0, 1, 1\]', "use the majority"),
        ({"id": "covid_1"}, ':1: "id" must be an integer', "as CSV"),
        ({"img": None, "image": "a"}, ':1: no column "img"; the columns are .*image', 'rename "image" to "img"'),
        (
            {"img": None, "filename": "a", "path": "b"},
            ':1: no column "img"; the columns are ',
            'rename "filename" to "img"',
        ),
        ({"text": None, "Caption": "a"}, ':1: no column "text"', 'rename "Caption" to "text"'),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_json_lines_with_other_columns_are_refused_with_a_hint(
    changes: dict[str, object], message: str, hint: str, user_dir: Path, mmf_paths: MmfPaths
) -> None:
    files, name = dataset_files(), "hateful_memes/dev_seen.jsonl"
    rows = [json.loads(line) | changes for line in files[name].decode().splitlines()]
    files[name] = jsonl([{k: v for k, v in row.items() if v is not None} for row in rows])
    with pytest.raises(DatasetError, match=rf"{name}{message}") as caught:
        convert(hostile_archives.write_zip(user_dir / "a.zip", files), mmf_paths)
    assert re.search(hint, str(caught.value.hint))
    assert not mmf_paths.dataset.annotations.exists()


def test_row_without_label_is_refused_except_in_a_test_split(user_dir: Path, mmf_paths: MmfPaths) -> None:
    files = dataset_files()
    for split in ("dev_seen", "test_seen"):
        first_line, *other_lines = files[f"hateful_memes/{split}.jsonl"].splitlines(keepends=True)
        unlabelled = json.loads(first_line) | {"label": None}
        files[f"hateful_memes/{split}.jsonl"] = b"".join([jsonl([unlabelled]), *other_lines])
    with pytest.raises(DatasetError, match=r"dev_seen\.jsonl:1: 1 of 3 rows have no label"):
        convert(hostile_archives.write_zip(user_dir / "a.zip", files), mmf_paths)
    files["hateful_memes/dev_seen.jsonl"] = dataset_files()["hateful_memes/dev_seen.jsonl"]
    assert convert(hostile_archives.write_zip(user_dir / "b.zip", files), mmf_paths).splits["test_seen"].rows == 2


def test_annotations_without_images_are_refused(user_dir: Path, mmf_paths: MmfPaths) -> None:
    files = {name: content for name, content in dataset_files().items() if not name.endswith(".png")}
    with pytest.raises(DatasetError, match="no images"):
        convert(hostile_archives.write_zip(user_dir / "a.zip", files), mmf_paths)


def files_without_split(split: str, splits: Mapping[str, range], readme: str = "") -> Files:
    files = dataset_files({name: ids for name, ids in splits.items() if name != split})
    return files | {"hateful_memes/README.md": readme.encode()}


@pytest.mark.parametrize(
    ("files", "missing"),
    [
        (files_without_split("dev_unseen", RELEASE_SPLITS), "dev_unseen"),
        (files_without_split("test", PHASE_1_SPLITS, "`train.jsonl`, `dev.jsonl` and `test.jsonl`"), "test"),
        (dataset_files() | {"hateful_memes/dev_seen.jsonl": b"\n"}, "dev_seen"),
    ],
    ids=["other splits of the release exist", "named in the README", "split without rows"],
)
def test_dataset_without_a_split_is_refused_unless_allowed(
    files: Files, missing: str, user_dir: Path, mmf_paths: MmfPaths
) -> None:
    path = hostile_archives.write_zip(user_dir / "a.zip", files)
    with pytest.raises(DatasetError, match=rf"splits are missing or empty: {missing}$"):
        convert(path, mmf_paths)
    assert read_tree(mmf_paths.data_dir) == {}
    assert missing not in convert(path, mmf_paths, allow_missing=True).splits
    assert not mmf_paths.dataset.annotation_file(missing).exists()


def test_phase_1_without_its_test_split_is_accepted(user_dir: Path, mmf_paths: MmfPaths) -> None:
    path = hostile_archives.write_zip(user_dir / "a.zip", files_without_split("test", PHASE_1_SPLITS))
    assert list(convert(path, mmf_paths).splits) == ["train", "dev"]


def test_release_is_accepted_if_its_readme_mentions_phase_1_files(user_dir: Path, mmf_paths: MmfPaths) -> None:
    path = hostile_archives.write_zip(
        user_dir / "a.zip", files_without_split("", RELEASE_SPLITS, "Once `dev.jsonl` and `test.jsonl`.")
    )
    assert convert(path, mmf_paths).splits.keys() == RELEASE_SPLITS.keys()


def test_empty_training_split_is_never_allowed(user_dir: Path, mmf_paths: MmfPaths) -> None:
    path = hostile_archives.write_zip(user_dir / "a.zip", dataset_files() | {"hateful_memes/train.jsonl": b""})
    with pytest.raises(DatasetError, match="no memes in train"):
        convert(path, mmf_paths, allow_missing=True)


def test_too_large_annotations_are_refused(user_dir: Path, mmf_paths: MmfPaths) -> None:
    files = dataset_files() | {"hateful_memes/dev_seen.jsonl": b"\n" * (65 << 20)}
    with pytest.raises(DatasetError, match=r"dev_seen\.jsonl: 65\.0 MiB"):
        convert(hostile_archives.write_zip(user_dir / "a.zip", files), mmf_paths)
    assert read_tree(mmf_paths.data_dir) == {}


def test_truncated_nested_archive_is_named_as_a_member(user_dir: Path, mmf_paths: MmfPaths) -> None:
    files = with_packed_images(dataset_files())
    files["hateful_memes/img.tar.gz"] = files["hateful_memes/img.tar.gz"][:3000]
    path = make_encrypted_zip(user_dir / "a.zip", files)
    with pytest.raises(ArchiveError) as caught:
        convert(path, mmf_paths, ask=lambda: PASSWORD)
    assert str(caught.value).startswith(f"{path}: member hateful_memes/img.tar.gz: not a valid tar.gz")
    assert read_tree(mmf_paths.data_dir) == {}


def test_full_disk_is_detected_before_anything_is_written(
    archive: Path, mmf_paths: MmfPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, 1000))
    with pytest.raises(ResourceError, match="not enough disk space"):
        convert(archive, mmf_paths, ask=lambda: PASSWORD)
    assert not mmf_paths.data_dir.exists()


def test_damaged_image_leaves_no_files(user_dir: Path, mmf_paths: MmfPaths) -> None:
    path = hostile_archives.write_zip(user_dir / "a.zip", dataset_files())
    hostile_archives.flip_byte(path, path.read_bytes().rindex(dataset_files()["hateful_memes/img/00016.png"]) + 20)
    with pytest.raises(ArchiveError, match=r"00016\.png"):
        convert(path, mmf_paths)
    assert read_tree(mmf_paths.data_dir) == {}


def test_invalid_row_is_named_with_archive_and_member(user_dir: Path, mmf_paths: MmfPaths) -> None:
    files = dataset_files()
    files["hateful_memes/dev_seen.jsonl"] += b'{"id": "x"}\n'
    path = make_encrypted_zip(user_dir / "a.zip", files)
    with pytest.raises(DatasetError) as caught:
        convert(path, mmf_paths, ask=lambda: PASSWORD)
    assert str(caught.value).startswith(f"{path}: hateful_memes/dev_seen.jsonl:4: ")
    assert read_tree(mmf_paths.data_dir) == {}


@pytest.mark.parametrize("written", ["img\\\\{}", "{}", "/home/me/memes/img/{}", "images/{}", "img/1.png"])
def test_hint_names_existing_images_under_other_names(written: str, user_dir: Path, mmf_paths: MmfPaths) -> None:
    files = dataset_files()
    name = "hateful_memes/train.jsonl"
    files[name] = files[name].replace(b"img/00001.png", written.format("00001.png").encode())
    with pytest.raises(DatasetError, match="train 1 of 6") as caught:
        convert(hostile_archives.write_zip(user_dir / "a.zip", files), mmf_paths)
    assert '"img/00001.png"' in (caught.value.hint or "")


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights on Windows")
def test_data_folder_behind_a_link_is_used(archive: Path, user_dir: Path, mmf_paths: MmfPaths) -> None:
    (user_dir / "elsewhere").mkdir()
    mmf_paths.data_dir.symlink_to(user_dir / "elsewhere")
    convert(archive, mmf_paths, ask=lambda: PASSWORD)
    assert read_tree(mmf_paths.dataset.root) == mmf_layout(dataset_files())


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights on Windows")
def test_link_in_place_of_the_images_is_replaced_and_not_followed(
    archive: Path, user_dir: Path, mmf_paths: MmfPaths
) -> None:
    (user_dir / "private").mkdir()
    mmf_paths.dataset.images.mkdir(parents=True)
    (mmf_paths.dataset.images / "img").symlink_to(user_dir / "private")
    convert(archive, mmf_paths, ask=lambda: PASSWORD, force=True)
    assert read_tree(mmf_paths.dataset.root) == mmf_layout(dataset_files())
    assert list((user_dir / "private").iterdir()) == []


def test_data_folder_that_cannot_be_created_is_an_error(archive: Path, mmf_paths: MmfPaths) -> None:
    mmf_paths.data_dir.write_bytes(b"a file")
    with pytest.raises(OSError):
        convert(archive, mmf_paths, ask=lambda: PASSWORD)
    assert mmf_paths.data_dir.read_bytes() == b"a file"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not remove open files")
def test_archive_removed_during_conversion_is_converted(
    archive: Path, mmf_paths: MmfPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove(self: Progress, amount: int) -> None:
        if self._title == "Converting":
            archive.unlink(missing_ok=True)

    monkeypatch.setattr(Progress, "advance", remove)
    convert(archive, mmf_paths, ask=lambda: PASSWORD)  # the conversion has the archive open
    assert not archive.exists()
    assert read_tree(mmf_paths.dataset.root) == mmf_layout(dataset_files())


def write_seven_zip(path: Path, files: Files) -> None:
    with py7zr.SevenZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(content, name)


@pytest.mark.parametrize(
    "pack",
    [
        hostile_archives.write_zip,
        lambda path, files: hostile_archives.write_zip(path, with_packed_images(files)),
        lambda path, files: path.write_bytes(tar_gz(files)),
        write_seven_zip,
    ],
    ids=["zip", "tar.gz in a zip", "tar.gz", "7z"],
)
def test_archive_bomb_is_refused_before_any_file_is_written(
    pack: Callable[[Path, Files], object], small_disk: Path, user_dir: Path
) -> None:
    files = {name: bytes(4 << 20) if name.endswith(".png") else content for name, content in dataset_files().items()}
    pack(user_dir / "bomb", files)
    mmf_paths = MmfPaths.resolve(small_disk, user_dir / "save")
    with pytest.raises(ResourceError, match="not enough disk space"):
        convert(user_dir / "bomb", mmf_paths)
    assert read_tree(mmf_paths.data_dir) == {}


def test_conversion_on_a_disk_that_fills_up_leaves_no_files(
    archive: Path, small_disk: Path, user_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mmf_paths = MmfPaths.resolve(small_disk, user_dir / "save")
    unpack = unpack_module.extract_to_staging

    def fill_the_disk_first(*arguments: Any, **options: Any) -> dict[str, ManifestEntry]:
        filler = (small_disk / "filler").open("wb", buffering=0)
        with filler, contextlib.suppress(OSError):
            while True:
                filler.write(bytes(1000))
        monkeypatch.setattr("mmf_win.unpacking.extract.require_space", lambda *_: None)
        return unpack(*arguments, **options)

    monkeypatch.setattr(unpack_module, "extract_to_staging", fill_the_disk_first)
    with pytest.raises(OSError) as caught:
        convert(archive, mmf_paths, ask=lambda: PASSWORD)
    assert caught.value.errno == errno.ENOSPC
    assert {path.name for path in mmf_paths.dataset.root.iterdir()} == {".mmfw-lock"}

    (small_disk / "filler").unlink()
    monkeypatch.undo()
    convert(archive, mmf_paths, ask=lambda: PASSWORD)
    assert read_tree(mmf_paths.dataset.root) == mmf_layout(dataset_files())


def test_data_folder_on_a_read_only_disk_is_an_error(archive: Path, small_disk: Path, user_dir: Path) -> None:
    mmf_paths = MmfPaths.resolve(small_disk, user_dir / "save")
    remount(small_disk, "ro")
    with pytest.raises(OSError) as caught:
        convert(archive, mmf_paths, ask=lambda: PASSWORD)
    assert caught.value.errno == errno.EROFS
