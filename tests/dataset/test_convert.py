"""From an archive, in any shape that people have, to MMF's layout; all of it or nothing."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections import namedtuple
from pathlib import Path
from typing import Any, NoReturn

import pytest

from mmf_win.archives import Extracted
from mmf_win.archives.zipcrypto import write_encrypted_zip
from mmf_win.console import Progress
from mmf_win.dataset import convert as convert_module
from mmf_win.dataset.check import SplitSummary
from mmf_win.dataset.convert import Conversion, convert
from mmf_win.errors import ArchiveError, DatasetError, PasswordError, ResourceError, UsageError
from mmf_win.paths import Places
from mmf_win.unpacking.journal import Journal
from mmf_win.unpacking.staging import Staging, staging, staging_folder
from tests.worlds import hostile
from tests.worlds.memes import (
    PHASE_1,
    PHASE_2,
    Files,
    jsonl,
    lay_out,
    memes,
    tar_gz,
    tree,
    with_packed_images,
)
from tests.worlds.tools import call, requires_tool

PASSWORD = "пароль 密码"


@pytest.fixture
def places(user_dir: Path) -> Places:
    return Places.resolve(user_dir / "data dir", user_dir / "save", environ={})


@pytest.fixture
def archive(user_dir: Path) -> Path:
    """The second phase in an encrypted zip."""
    return make_zip(user_dir / "hateful memes 恶意.zip", memes())


def make_zip(path: Path, files: Files) -> Path:
    write_encrypted_zip(path, files, PASSWORD)
    return path


def expected(files: Files) -> Files:
    """Where MMF wants what is in ``files``."""
    places = {}
    for name, content in files.items():
        if name.endswith(".jsonl"):
            places[f"annotations/{name.rpartition('/')[2]}"] = content
        elif name.endswith(".png"):
            places[f"images/img/{name.rpartition('/')[2]}"] = content
    return places


def names_on_disk(places: Places) -> set[str]:
    return set(tree(places.data_dir)) if places.data_dir.exists() else set()


# --- every shape of source -------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [PHASE_1, PHASE_2], ids=["phase 1", "phase 2"])
@pytest.mark.parametrize("top", ["data/", "hateful_memes/", "", "a b/данные/", "img/"])
def test_both_phases_under_any_top_folder(
    phase: dict[str, range], top: str, user_dir: Path, places: Places
) -> None:
    files = memes(phase, top=top)
    convert(make_zip(user_dir / "a.zip", files), places, password=PASSWORD)
    assert tree(places.dataset.root) == expected(files)


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
    path = make_zip(user_dir / "a.zip", with_packed_images(files, name=f"data/{name}"))
    convert(path, places, password=PASSWORD)
    assert tree(places.dataset.root) == expected(files)


def test_a_folder(user_dir: Path, places: Places) -> None:
    lay_out(memes(), user_dir / "unpacked")
    result = convert(user_dir / "unpacked", places)
    assert tree(places.dataset.root) == expected(memes())
    assert (result.sha256, result.known) == (None, None)
    assert convert(user_dir / "unpacked", places).already_done


def test_a_folder_in_the_layout_of_mmf(user_dir: Path, places: Places) -> None:
    files = expected(memes())
    convert(lay_out(files, user_dir / "other" / "defaults"), places)
    assert tree(places.dataset.root) == files


def test_a_tar_gz(user_dir: Path, places: Places) -> None:
    (user_dir / "a.tar.gz").write_bytes(tar_gz(memes()))
    convert(user_dir / "a.tar.gz", places)
    assert tree(places.dataset.root) == expected(memes())


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
    assert tree(places.dataset.root) == expected(memes())


def test_litter_of_macos_is_ignored(user_dir: Path, places: Places) -> None:
    litter = {f"__MACOSX/data/img/._{n:05}.png": b"x" for n in range(40)}
    litter |= {"data/img/._00001.png": b"x", "__MACOSX/data/._train.jsonl": b"x", "data/.DS_Store": b"x"}
    convert(make_zip(user_dir / "a.zip", {**litter, **memes()}), places, password=PASSWORD)
    assert tree(places.dataset.root) == expected(memes())


def test_images_that_no_split_names_come_along_and_are_counted(user_dir: Path, places: Places) -> None:
    files = {**memes(), "data/img/99999.png": b"extra"}
    result = convert(make_zip(user_dir / "a.zip", files), places, password=PASSWORD)
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
    path = make_zip(user_dir / "a.zip", files)
    with pytest.raises(DatasetError) as caught:
        convert(path, places, password=PASSWORD)
    assert str(caught.value).startswith(f"{path}: data/dev_seen.jsonl:4: ")
    assert names_on_disk(places) == set()


def test_a_meme_twice_in_a_split(user_dir: Path, places: Places) -> None:
    files = memes()
    files["data/train.jsonl"] += files["data/train.jsonl"].splitlines(keepends=True)[1]
    with pytest.raises(DatasetError, match=r"train\.jsonl:7: id 2 is already in line 2"):
        convert(make_zip(user_dir / "a.zip", files), places, password=PASSWORD)


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights on Windows")
def test_a_data_folder_behind_a_link(archive: Path, user_dir: Path, places: Places) -> None:
    (user_dir / "elsewhere").mkdir()
    places.data_dir.symlink_to(user_dir / "elsewhere")
    convert(archive, places, password=PASSWORD)
    assert tree(places.dataset.root) == expected(memes())


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights on Windows")
def test_a_link_where_the_images_belong_is_replaced_not_followed(
    archive: Path, user_dir: Path, places: Places
) -> None:
    (user_dir / "private").mkdir()
    places.dataset.images.mkdir(parents=True)
    (places.dataset.images / "img").symlink_to(user_dir / "private")
    convert(archive, places, password=PASSWORD, force=True)
    assert tree(places.dataset.root) == expected(memes())
    assert list((user_dir / "private").iterdir()) == []


def test_a_data_folder_that_cannot_be_made(archive: Path, places: Places) -> None:
    places.data_dir.write_bytes(b"a file")
    with pytest.raises(OSError):
        convert(archive, places, password=PASSWORD)
    assert places.data_dir.read_bytes() == b"a file"


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
    assert tree(places.dataset.root) == expected(memes())


# --- half an image set -----------------------------------------------------------------------------------


@pytest.fixture
def half(user_dir: Path) -> Path:
    """As public mirrors are: images 1, 2, 8 and 16 are missing."""
    files = memes()
    for id_ in (1, 2, 8, 16):
        del files[f"data/img/{id_:05}.png"]
    return make_zip(user_dir / "mirror.zip", files)


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
    assert tree(places.dataset.root) == expected(memes())


def test_another_dataset_is_replaced_only_by_force(archive: Path, user_dir: Path, places: Places) -> None:
    old = memes(PHASE_1)
    convert(make_zip(user_dir / "old.zip", old), places, password=PASSWORD)
    with pytest.raises(DatasetError) as caught:
        convert(archive, places, password=PASSWORD)
    assert "--force" in (caught.value.hint or "")
    assert tree(places.dataset.root) == expected(old)

    convert(archive, places, password=PASSWORD, force=True)
    assert tree(places.dataset.root) == expected(memes())  # nothing of phase 1 is left


def test_a_conversion_of_mmf_itself_is_not_overwritten(archive: Path, places: Places) -> None:
    lay_out(expected(memes(PHASE_1)), places.dataset.root)
    with pytest.raises(DatasetError, match="there is a dataset already"):
        convert(archive, places, password=PASSWORD)


def test_force_keeps_what_is_not_images_or_annotations(archive: Path, places: Places) -> None:
    others = {
        "features/detectron.lmdb/data.mdb": b"features",
        "extras/vocabs/vocabulary_100k.txt": b"words",
        "annotations/my_split.jsonl": b"",
        "images/hateful_memes.zip": b"MMF has moved somebody's archive here",
    }
    lay_out({**expected(memes(PHASE_1)), **others}, places.dataset.root)
    convert(archive, places, password=PASSWORD, force=True)
    assert tree(places.dataset.root) == {**expected(memes()), **others}


def test_force_that_fails_leaves_the_old_dataset(archive: Path, user_dir: Path, places: Places) -> None:
    old = memes(PHASE_1)
    convert(make_zip(user_dir / "old.zip", old), places, password=PASSWORD)
    data = jsonl([{"id": 1, "img": "img/nowhere.png", "text": ""}])
    bad = make_zip(user_dir / "bad.zip", {**memes(), "data/train.jsonl": data})
    with pytest.raises(DatasetError):
        convert(bad, places, password=PASSWORD, force=True)
    assert tree(places.dataset.root) == expected(old)
    assert convert(user_dir / "old.zip", places).already_done


def test_a_move_that_fails_puts_everything_back(
    archive: Path, user_dir: Path, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = memes(PHASE_1)
    convert(make_zip(user_dir / "old.zip", old), places, password=PASSWORD)
    rename = Path.rename

    def refuse_one(self: Path, target: Path) -> Path:
        if self.name == "dev_unseen.jsonl":
            raise OSError("no")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse_one)
    with pytest.raises(OSError, match="no"):
        convert(archive, places, password=PASSWORD, force=True)
    assert tree(places.dataset.root) == expected(old)
    assert convert(user_dir / "old.zip", places).already_done


# --- interrupted and killed ------------------------------------------------------------------------------


def interrupt_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Press Ctrl+C when so many images are complete."""
    note = Journal.note
    left = [count]

    def noting(self: Journal, done: Extracted) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        note(self, done)

    monkeypatch.setattr(Journal, "note", noting)


def extracted_by(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the images that are extracted from now on."""
    names: list[str] = []
    note = Journal.note

    def noting(self: Journal, done: Extracted) -> None:
        names.append(done.target.name)
        note(self, done)

    monkeypatch.setattr(Journal, "note", noting)
    return names


def test_ctrl_c_leaves_nothing_that_looks_finished(
    archive: Path, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(5, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        convert(archive, places, password=PASSWORD)
    assert {path.name for path in places.dataset.root.iterdir()} == {".mmfw-lock", ".mmfw-staging"}


def test_ctrl_c_while_bytes_are_written_stops_at_once(
    archive: Path, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: Progress, amount: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Progress, "advance", interrupt)
    with pytest.raises(KeyboardInterrupt):
        convert(archive, places, password=PASSWORD)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("mmfw")]


def test_an_interrupted_conversion_goes_on_where_it_ended(
    archive: Path, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt_after(5, patch)
        convert(archive, places, password=PASSWORD)

    again = extracted_by(monkeypatch)
    result = convert(archive, places, password=PASSWORD)
    assert len(again) == 16 - 5
    assert tree(places.dataset.root) == expected(memes())
    assert result.sha256 == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert convert(archive, places).already_done


def test_what_changed_after_an_interruption_is_extracted_again(
    archive: Path, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyboardInterrupt):
        convert_until_it_is_moved(archive, places)
    here = staging_folder(places.dataset.root)
    images = here / "new" / "img"
    hostile.flip_byte(images / "00001.png", 100)
    hostile.cut(images / "00002.png")
    (images / "00003.png").unlink()
    with (here / "journal").open("a", encoding="utf-8") as journal:
        journal.write('{"name": "img/00004.png", "si')  # torn by a power cut

    again = extracted_by(monkeypatch)
    convert(archive, places, password=PASSWORD)
    assert sorted(again) == ["00001.png", "00002.png", "00003.png"]
    assert tree(places.dataset.root) == expected(memes())


def convert_until_it_is_moved(archive: Path, places: Places) -> None:
    """Press Ctrl+C when all images are extracted, before anything is moved."""
    with pytest.MonkeyPatch.context() as patch:

        def interrupt(self: Staging, moves: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(Staging, "install", interrupt)
        convert(archive, places, password=PASSWORD)


def test_what_another_archive_has_left_is_not_used(
    archive: Path, user_dir: Path, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt_after(5, patch)
        convert(make_zip(user_dir / "old.zip", memes(PHASE_1)), places, password=PASSWORD)
    again = extracted_by(monkeypatch)
    convert(archive, places, password=PASSWORD)
    assert len(again) == 16
    assert tree(places.dataset.root) == expected(memes())


def test_packed_images_are_not_unpacked_twice(
    user_dir: Path, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_zip(user_dir / "a.zip", with_packed_images(memes()))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt_after(6, patch)
        convert(path, places, password=PASSWORD)
    again = extracted_by(monkeypatch)
    result = convert(path, places, password=PASSWORD)
    assert "img.tar.gz" not in again and len(again) == 16 - 5
    assert tree(places.dataset.root) == expected(memes())
    assert result.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


_DIE = """\
import os, signal, sys
from pathlib import Path
from mmf_win.dataset.convert import convert
from mmf_win.unpacking.journal import Journal
from mmf_win.paths import Places

def die():
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))  # on Windows every kill is a hard one

note = Journal.note
noted = []

def noting(self, done):
    if {when!r} == "extracting" and len(noted) == 5:
        die()
    noted.append(done)
    note(self, done)

def rename(self, target):
    if {when!r} == "moving" and target.name == "train.jsonl":
        die()
    os.rename(self, target)

Journal.note = noting
Path.rename = rename
convert(Path({archive!r}), Places.resolve(Path({data!r}), Path("save")), password={password!r})
"""


@pytest.mark.parametrize(("when", "left"), [("extracting", 16 - 5), ("moving", 16)])
def test_a_killed_conversion_looks_unfinished_and_the_next_one_succeeds(
    when: str, left: int, archive: Path, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = _DIE.format(when=when, archive=str(archive), data=str(places.data_dir), password=PASSWORD)
    killed = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", script],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert killed.returncode != 0
    assert not places.dataset.record.exists()
    assert not places.dataset.split("train").exists()
    assert (places.dataset.images / "img").exists() == (when == "moving")

    again = extracted_by(monkeypatch)
    result = convert(archive, places, password=PASSWORD)
    assert not result.already_done
    assert len(again) == left
    assert tree(places.dataset.root) == expected(memes())
    assert sorted(p.name for p in places.dataset.root.iterdir() if p.name.startswith(".")) == [".mmfw-lock"]


def test_two_conversions_at_once_do_not_mix(archive: Path, places: Places) -> None:
    with staging(places.dataset.root), pytest.raises(UsageError, match="another mmfw"):
        convert(archive, places, password=PASSWORD)
    convert(archive, places, password=PASSWORD)
    assert tree(places.dataset.root) == expected(memes())


@pytest.mark.skipif(sys.platform == "win32", reason="Windows refuses a lock for no other reason")
def test_a_fake_disk_without_locks_is_not_taken_for_another_mmfw(
    archive: Path, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> NoReturn:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with pytest.raises(OSError, match="No locks available"):
        convert(archive, places, password=PASSWORD)
