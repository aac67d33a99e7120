"""From an archive, in any shape that people have, to MMF's layout; all of it or nothing."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
import zipfile
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import py7zr
import pytest

from mmf_win.console import Progress
from mmf_win.dataset import convert as convert_module
from mmf_win.dataset.check import SplitSummary
from mmf_win.dataset.convert import Conversion, convert
from mmf_win.errors import ArchiveError, DatasetError, PasswordError, ResourceError, UsageError
from mmf_win.paths import Places
from mmf_win.unpacking.staging import staging
from tests.worlds import hostile
from tests.worlds.memes import (
    PASSWORD,
    PHASE_1,
    PHASE_2,
    Files,
    encrypted_zip,
    jsonl,
    laid_out,
    lay_out,
    memes,
    tar_gz,
    tree,
    with_packed_images,
)
from tests.worlds.tools import call, requires_tool


def names_on_disk(places: Places) -> set[str]:
    return set(tree(places.data_dir)) if places.data_dir.exists() else set()


# --- every shape of source -------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [PHASE_1, PHASE_2], ids=["phase 1", "phase 2"])
@pytest.mark.parametrize("top", ["data/", "hateful_memes/", "", "a b/данные/", "img/"])
def test_both_phases_under_any_top_folder(
    phase: dict[str, range], top: str, user_dir: Path, places: Places
) -> None:
    files = memes(phase, top=top)
    convert(encrypted_zip(user_dir / "a.zip", files), places, password=PASSWORD)
    assert tree(places.dataset.root) == laid_out(files)


def test_what_a_conversion_tells(archive: Path, places: Places) -> None:
    result = convert(archive, places, password=PASSWORD)
    assert result.splits == {
        "train": SplitSummary(rows=6, hateful=3, benign=3, missing=0),
        "dev_seen": SplitSummary(rows=3, hateful=2, benign=1, missing=0),
        "dev_unseen": SplitSummary(rows=4, hateful=2, benign=2, missing=0),
        "test_seen": SplitSummary(rows=2, hateful=None, benign=None, missing=0),
        "test_unseen": SplitSummary(rows=3, hateful=None, benign=None, missing=0),
    }
    assert result.shared_ids == {"dev_seen & dev_unseen": 2}
    assert (result.images, result.extra_images, result.already_done) == (16, 0, False)
    assert (result.known, len(result.sha256 or "")) == (False, 64)
    assert result.target == places.dataset.root
    assert Conversion.from_json(result.to_json()) == result


@pytest.mark.parametrize("name", ["img.tar.gz", "img.tgz"])
def test_images_packed_inside(name: str, user_dir: Path, places: Places) -> None:
    files = memes()
    path = encrypted_zip(user_dir / "a.zip", with_packed_images(files, name=f"data/{name}"))
    convert(path, places, password=PASSWORD)
    assert tree(places.dataset.root) == laid_out(files)


def test_a_folder(user_dir: Path, places: Places) -> None:
    lay_out(memes(), user_dir / "unpacked")
    result = convert(user_dir / "unpacked", places)
    assert tree(places.dataset.root) == laid_out(memes())
    assert (result.sha256, result.known) == (None, None)
    assert convert(user_dir / "unpacked", places).already_done


def test_a_folder_in_the_layout_of_mmf(user_dir: Path, places: Places) -> None:
    files = laid_out(memes())
    convert(lay_out(files, user_dir / "other" / "defaults"), places)
    assert tree(places.dataset.root) == files


def test_a_tar_gz(user_dir: Path, places: Places) -> None:
    (user_dir / "a.tar.gz").write_bytes(tar_gz(memes()))
    convert(user_dir / "a.tar.gz", places)
    assert tree(places.dataset.root) == laid_out(memes())


@requires_tool("zip", "7z")
@pytest.mark.parametrize(
    "command",
    [
        ["zip", "-rq", "-P", "secret", "a.bin.zip", "data"],
        ["7z", "a", "-tzip", "-psecret", "-mem=AES256", "a.bin.zip", "data"],
        ["7z", "a", "-t7z", "-psecret", "-mhe=on", "a.bin.zip", "data"],
    ],
    ids=["zip", "7z aes", "7z"],
)
def test_archives_of_other_programs(command: list[str], user_dir: Path, places: Places) -> None:
    lay_out(memes(), user_dir)
    call(*command, cwd=user_dir)
    convert(user_dir / "a.bin.zip", places, password="secret")
    assert tree(places.dataset.root) == laid_out(memes())


def test_litter_of_macos_is_ignored(user_dir: Path, places: Places) -> None:
    litter = {f"__MACOSX/data/img/._{n:05}.png": b"x" for n in range(40)}
    litter |= {"data/img/._00001.png": b"x", "__MACOSX/data/._train.jsonl": b"x", "data/.DS_Store": b"x"}
    convert(encrypted_zip(user_dir / "a.zip", {**litter, **memes()}), places, password=PASSWORD)
    assert tree(places.dataset.root) == laid_out(memes())


def test_images_that_no_split_names_come_along_and_are_counted(user_dir: Path, places: Places) -> None:
    files = {**memes(), "data/img/99999.png": b"extra"}
    result = convert(encrypted_zip(user_dir / "a.zip", files), places, password=PASSWORD)
    assert (result.images, result.extra_images) == (17, 1)
    assert (places.dataset.images / "img" / "99999.png").read_bytes() == b"extra"


def test_the_archive_is_neither_moved_nor_changed(archive: Path, places: Places) -> None:
    before = archive.read_bytes(), archive.stat().st_mtime_ns
    convert(archive, places, password=PASSWORD)
    assert (archive.read_bytes(), archive.stat().st_mtime_ns) == before


# --- what is refused, before anything is written ---------------------------------------------------------


@pytest.mark.parametrize("password", [None, "wrong"])
def test_a_wrong_password_writes_nothing(password: str | None, archive: Path, places: Places) -> None:
    with pytest.raises(PasswordError):
        convert(archive, places, password=password)
    assert not places.data_dir.exists()


def test_an_archive_of_something_else(user_dir: Path, places: Places) -> None:
    path = hostile.plain_zip(user_dir / "a.zip", {"holiday/1.png": b"x", "holiday/2.png": b"x"})
    with pytest.raises(DatasetError, match="not the Hateful Memes dataset") as caught:
        convert(path, places)
    assert "holiday/1.png" in (caught.value.hint or "")
    assert not places.data_dir.exists()


def test_annotations_without_images(user_dir: Path, places: Places) -> None:
    files = {name: content for name, content in memes().items() if not name.endswith(".png")}
    with pytest.raises(DatasetError, match="no images"):
        convert(hostile.plain_zip(user_dir / "a.zip", files), places)


def test_a_truncated_archive(archive: Path, places: Places) -> None:
    with pytest.raises(ArchiveError):
        convert(hostile.cut(archive), places, password=PASSWORD)
    assert not places.data_dir.exists()


def test_a_truncated_archive_inside_is_told_by_the_users_own_names(user_dir: Path, places: Places) -> None:
    files = with_packed_images(memes())
    files["data/img.tar.gz"] = files["data/img.tar.gz"][:3000]
    path = encrypted_zip(user_dir / "a.zip", files)
    with pytest.raises(ArchiveError) as caught:
        convert(path, places, password=PASSWORD)
    assert str(caught.value).startswith(f"{path}: member data/img.tar.gz: not a whole tar.gz")
    assert names_on_disk(places) == set()


def test_a_fake_full_disk_is_noticed_before_anything_is_written(
    archive: Path, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, 1000))
    with pytest.raises(ResourceError, match="are free"):
        convert(archive, places, password=PASSWORD)
    assert not places.data_dir.exists()


def test_a_damaged_image_leaves_nothing_behind(user_dir: Path, places: Places) -> None:
    path = user_dir / "a.zip"
    with zipfile.ZipFile(path, "w") as made:
        for name, content in memes().items():
            made.writestr(name, content)
    hostile.flip_byte(path, path.read_bytes().rindex(memes()["data/img/00016.png"]) + 20)
    with pytest.raises(ArchiveError, match=r"00016\.png"):
        convert(path, places)
    assert names_on_disk(places) == set()


def test_a_bad_row_is_named_by_the_users_own_names(user_dir: Path, places: Places) -> None:
    files = memes()
    files["data/dev_seen.jsonl"] += b'{"id": "x"}\n'
    path = encrypted_zip(user_dir / "a.zip", files)
    with pytest.raises(DatasetError) as caught:
        convert(path, places, password=PASSWORD)
    assert str(caught.value).startswith(f"{path}: data/dev_seen.jsonl:4: ")
    assert names_on_disk(places) == set()


def test_a_meme_twice_in_a_split(user_dir: Path, places: Places) -> None:
    files = memes()
    files["data/train.jsonl"] += files["data/train.jsonl"].splitlines(keepends=True)[1]
    with pytest.raises(DatasetError, match=r"train\.jsonl:7: id 2 is already in line 2"):
        convert(encrypted_zip(user_dir / "a.zip", files), places, password=PASSWORD)


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights on Windows")
def test_a_data_folder_behind_a_link(archive: Path, user_dir: Path, places: Places) -> None:
    (user_dir / "elsewhere").mkdir()
    places.data_dir.symlink_to(user_dir / "elsewhere")
    convert(archive, places, password=PASSWORD)
    assert tree(places.dataset.root) == laid_out(memes())


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights on Windows")
def test_a_link_where_the_images_belong_is_replaced_not_followed(
    archive: Path, user_dir: Path, places: Places
) -> None:
    (user_dir / "private").mkdir()
    places.dataset.images.mkdir(parents=True)
    (places.dataset.images / "img").symlink_to(user_dir / "private")
    convert(archive, places, password=PASSWORD, force=True)
    assert tree(places.dataset.root) == laid_out(memes())
    assert list((user_dir / "private").iterdir()) == []


def test_a_data_folder_that_cannot_be_made(archive: Path, places: Places) -> None:
    places.data_dir.write_bytes(b"a file")
    with pytest.raises(OSError):
        convert(archive, places, password=PASSWORD)
    assert places.data_dir.read_bytes() == b"a file"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not remove open files")
def test_an_archive_that_is_removed_meanwhile(
    archive: Path, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Progress, "advance", lambda self, amount: archive.unlink(missing_ok=True))
    with pytest.raises(FileNotFoundError) as caught:
        convert(archive, places, password=PASSWORD)
    assert caught.value.filename == str(archive)
    assert names_on_disk(places) == set()


def test_a_data_folder_on_a_read_only_disk(archive: Path, small_disk: Path, user_dir: Path) -> None:
    places = Places.resolve(small_disk, user_dir / "save", environ={})
    call("mount", "-o", "remount,ro", str(small_disk), cwd=user_dir)
    with pytest.raises(OSError) as caught:
        convert(archive, places, password=PASSWORD)
    assert caught.value.errno == errno.EROFS


def zip_of(path: Path, files: Files) -> None:
    hostile.plain_zip(path, files)


def zip_of_a_tar_gz_of(path: Path, files: Files) -> None:
    hostile.plain_zip(path, with_packed_images(files))


def tar_gz_of(path: Path, files: Files) -> None:
    path.write_bytes(tar_gz(files))


def seven_zip_of(path: Path, files: Files) -> None:
    with py7zr.SevenZipFile(path, "w") as made:
        for name, content in files.items():
            made.writestr(content, name)


@pytest.mark.parametrize("pack", [zip_of, zip_of_a_tar_gz_of, tar_gz_of, seven_zip_of])
def test_a_bomb_whose_members_are_too_large_only_together_is_refused_before_any_is_written(
    pack: Callable[[Path, Files], None], small_disk: Path, user_dir: Path
) -> None:
    files = {name: bytes(4 << 20) if name.endswith(".png") else content for name, content in memes().items()}
    pack(user_dir / "bomb", files)
    places = Places.resolve(small_disk, user_dir / "save", environ={})
    with pytest.raises(ResourceError, match="are needed"):
        convert(user_dir / "bomb", places)
    assert names_on_disk(places) == set()


def test_a_disk_that_fills_up_meanwhile(
    archive: Path, small_disk: Path, user_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = Places.resolve(small_disk, user_dir / "save", environ={})
    unpack = convert_module._unpack_images

    def fill_the_disk_first(*arguments: Any) -> dict[str, int]:
        filler = (small_disk / "filler").open("wb", buffering=0)
        with filler, contextlib.suppress(OSError):
            while True:
                filler.write(bytes(1000))
        monkeypatch.setattr(convert_module, "require_space", lambda *_: None)
        return unpack(*arguments)

    monkeypatch.setattr(convert_module, "_unpack_images", fill_the_disk_first)
    with pytest.raises(OSError) as caught:
        convert(archive, places, password=PASSWORD)
    assert caught.value.errno == errno.ENOSPC
    assert {path.name for path in places.dataset.root.iterdir()} == {".mmfw-lock"}

    (small_disk / "filler").unlink()
    monkeypatch.undo()
    convert(archive, places, password=PASSWORD)
    assert tree(places.dataset.root) == laid_out(memes())


# --- half an image set -----------------------------------------------------------------------------------


@pytest.fixture
def half(user_dir: Path) -> Path:
    """As public mirrors are: images 1, 2, 8 and 16 are missing."""
    files = memes()
    for id_ in (1, 2, 8, 16):
        del files[f"data/img/{id_:05}.png"]
    return encrypted_zip(user_dir / "mirror.zip", files)


def test_missing_images_are_counted_for_each_split(half: Path, places: Places) -> None:
    with pytest.raises(DatasetError) as caught:
        convert(half, places, password=PASSWORD)
    for part in (
        "train 2 of 6",
        "dev_seen 1 of 3",
        "dev_unseen 1 of 4",
        "test_unseen 1 of 3",
        "img/00001.png",
    ):
        assert part in str(caught.value)
    assert "test_seen" not in str(caught.value)
    assert "--allow-missing" in (caught.value.hint or "")
    assert names_on_disk(places) == set()


def test_memes_without_an_image_can_be_left_out(half: Path, places: Places) -> None:
    result = convert(half, places, password=PASSWORD, allow_missing=True)
    assert result.splits["train"] == SplitSummary(rows=4, hateful=2, benign=2, missing=2)
    train = places.dataset.split("train").read_bytes()
    assert train == b"".join(memes()["data/train.jsonl"].splitlines(keepends=True)[2:])
    assert places.dataset.split("test_seen").read_bytes() == memes()["data/test_seen.jsonl"]
    assert convert(half, places, password=PASSWORD).already_done


# --- again, and over another dataset ---------------------------------------------------------------------


def test_a_second_conversion_does_nothing(
    archive: Path, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = convert(archive, places, password=PASSWORD)
    monkeypatch.setattr("mmf_win.dataset.convert.open_with_progress", None)  # it is not even opened
    again = convert(archive, places)
    assert again.already_done
    assert again.splits == first.splits


def test_a_copied_archive_is_known_by_its_hash(archive: Path, places: Places) -> None:
    convert(archive, places, password=PASSWORD)
    os.utime(archive, (1, 1))
    assert convert(archive, places).already_done


@pytest.mark.parametrize("broken", ["images/img/00003.png", "annotations/dev_seen.jsonl"])
def test_a_dataset_that_lost_a_file_is_converted_again(broken: str, archive: Path, places: Places) -> None:
    convert(archive, places, password=PASSWORD)
    (places.dataset.root / broken).unlink()
    assert not convert(archive, places, password=PASSWORD).already_done
    assert tree(places.dataset.root) == laid_out(memes())


def test_another_dataset_is_replaced_only_by_force(archive: Path, user_dir: Path, places: Places) -> None:
    old = memes(PHASE_1)
    convert(encrypted_zip(user_dir / "old.zip", old), places, password=PASSWORD)
    with pytest.raises(DatasetError) as caught:
        convert(archive, places, password=PASSWORD)
    assert "--force" in (caught.value.hint or "")
    assert tree(places.dataset.root) == laid_out(old)

    convert(archive, places, password=PASSWORD, force=True)
    assert tree(places.dataset.root) == laid_out(memes())  # nothing of phase 1 is left


def test_a_conversion_of_mmf_itself_is_not_overwritten(archive: Path, places: Places) -> None:
    lay_out(laid_out(memes(PHASE_1)), places.dataset.root)
    with pytest.raises(DatasetError, match="there is a dataset already"):
        convert(archive, places, password=PASSWORD)


def test_force_keeps_what_is_not_images_or_annotations(archive: Path, places: Places) -> None:
    others = {
        "features/detectron.lmdb/data.mdb": b"features",
        "extras/vocabs/vocabulary_100k.txt": b"words",
        "annotations/my_split.jsonl": b"",
        "images/hateful_memes.zip": b"MMF has moved somebody's archive here",
    }
    lay_out({**laid_out(memes(PHASE_1)), **others}, places.dataset.root)
    convert(archive, places, password=PASSWORD, force=True)
    assert tree(places.dataset.root) == {**laid_out(memes()), **others}


def test_force_that_fails_leaves_the_old_dataset(archive: Path, user_dir: Path, places: Places) -> None:
    old = memes(PHASE_1)
    convert(encrypted_zip(user_dir / "old.zip", old), places, password=PASSWORD)
    data = jsonl([{"id": 1, "img": "img/nowhere.png", "text": ""}])
    bad = encrypted_zip(user_dir / "bad.zip", {**memes(), "data/train.jsonl": data})
    with pytest.raises(DatasetError):
        convert(bad, places, password=PASSWORD, force=True)
    assert tree(places.dataset.root) == laid_out(old)
    assert convert(user_dir / "old.zip", places).already_done


def test_a_move_that_fails_puts_everything_back(
    archive: Path, user_dir: Path, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = memes(PHASE_1)
    convert(encrypted_zip(user_dir / "old.zip", old), places, password=PASSWORD)
    rename = Path.rename

    def refuse_one(self: Path, target: Path) -> Path:
        if self.name == "dev_unseen.jsonl":
            raise OSError("no")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse_one)
    with pytest.raises(OSError, match="no"):
        convert(archive, places, password=PASSWORD, force=True)
    assert tree(places.dataset.root) == laid_out(old)
    assert convert(user_dir / "old.zip", places).already_done


# --- one at a time ---------------------------------------------------------------------------------------


def test_two_conversions_at_once_do_not_mix(archive: Path, places: Places) -> None:
    with staging(places.dataset.root), pytest.raises(UsageError, match="another mmfw"):
        convert(archive, places, password=PASSWORD)
    convert(archive, places, password=PASSWORD)
    assert tree(places.dataset.root) == laid_out(memes())


@pytest.mark.skipif(sys.platform == "win32", reason="Windows refuses a lock for no other reason")
def test_a_fake_disk_without_locks_is_not_taken_for_another_mmfw(
    archive: Path, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> NoReturn:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with pytest.raises(OSError, match="No locks available"):
        convert(archive, places, password=PASSWORD)
