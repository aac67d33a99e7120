"""Archives of memes that are refused: following the hint converts the dataset."""

from __future__ import annotations

import gzip
import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mmf_win.paths import MmfPaths
from tests.worlds import hostile_archives
from tests.worlds.memes import Files, dataset_files, mmf_layout, read_tree, write_tree
from tests.worlds.tools import MmfwRunner, requires_tool, run_program, split_command

MEMES = dataset_files()


def make_deflate64_zip(folder: Path) -> Path:
    """Make a zip with Deflate64, which Windows Explorer uses for large files."""
    write_tree(MEMES, folder)
    run_program("7z", "a", "-tzip", "-mm=Deflate64", "a.zip", "hateful_memes", cwd=folder)
    return folder / "a.zip"


def make_split_7z(folder: Path) -> Path:
    """Make a 7z that is split into several files."""
    write_tree(MEMES, folder)
    run_program("7z", "a", "-v2k", "a.7z", "hateful_memes", cwd=folder)
    return folder / "a.7z.001"


def make_first_of_two_zips(folder: Path) -> Path:
    """Make the first of the two zips into which Google Drive packs a folder."""
    first = {name: content for name, content in MEMES.items() if not name.endswith("1.png")}
    others = {name: content for name, content in MEMES.items() if name.endswith("1.png")}
    hostile_archives.write_zip(folder / "memes-20240101T000000Z-002.zip", others)
    return hostile_archives.write_zip(folder / "memes-20240101T000000Z-001.zip", first)


def make_folder_of_both_zips(folder: Path) -> Path:
    """Make a folder that contains both zips."""
    make_first_of_two_zips(folder)
    return folder


def make_second_of_two_zips(folder: Path) -> Path:
    """Make the second zip, which has no annotations."""
    make_first_of_two_zips(folder)
    return folder / "memes-20240101T000000Z-002.zip"


def make_zip_without_images(folder: Path) -> Path:
    """Make a zip that has only annotations."""
    hostile_archives.write_zip(folder / "memes-002.zip", {n: c for n, c in MEMES.items() if n.endswith(".png")})
    return hostile_archives.write_zip(
        folder / "memes-001.zip", {n: c for n, c in MEMES.items() if n.endswith(".jsonl")}
    )


def make_gzip_of_zip(folder: Path) -> Path:
    """Make a gzip of a zip."""
    (folder / "a.zip.gz").write_bytes(gzip.compress(hostile_archives.write_zip(folder / "b.zip", MEMES).read_bytes()))
    (folder / "b.zip").unlink()
    return folder / "a.zip.gz"


def make_zip_with_invalid_name(folder: Path) -> Path:
    """Make a zip with an image whose name is invalid on Windows."""
    return hostile_archives.write_zip(folder / "a.zip", {**MEMES, "hateful_memes/img/aux.png": b"an image"})


def unpack_all(folder: Path) -> None:
    """Follow the hints before ``mmfw convert`` with 7-Zip."""
    for path in sorted(folder.glob("*.*")):
        if path.suffix in (".zip", ".gz"):
            run_program("7z", "x", "-y", "-oFOLDER", path, cwd=folder)
    for path in (folder / "FOLDER").rglob("aux.png"):
        path.unlink()


CASES: dict[Callable[[Path], Path], str] = {
    make_deflate64_zip: "unsupported compression: Deflate64",
    make_split_7z: "one part of a split archive",
    make_first_of_two_zips: "images are missing",
    make_folder_of_both_zips: "no train.jsonl",
    make_second_of_two_zips: "no train.jsonl",
    make_zip_without_images: "contains annotations but no images",
    make_gzip_of_zip: "no tar header",
    make_zip_with_invalid_name: "name is not allowed on Windows",
}


@requires_tool("7z")
@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_refused_archive_is_converted_by_following_the_hint(
    make: Callable[[Path], Path], user_dir: Path, mmfw: MmfwRunner
) -> None:
    folder_options = ["--data-dir", user_dir / "data"]
    folder = user_dir / "downloads"
    folder.mkdir()
    path = make(folder)
    mmfw("convert", path, *folder_options, code=3)
    assert CASES[make] in mmfw.err and "again" not in mmfw.err and "complete copy" not in mmfw.err
    [command] = re.findall("`mmfw (convert .*?)`", mmfw.err)
    if unpacking := re.findall("`7z (.*?)`", mmfw.err):
        run_program("7z", *split_command(unpacking[0]), "-oFOLDER", cwd=folder)
    else:
        unpack_all(folder)
    [file, *_] = sorted((folder / "FOLDER").iterdir())
    placeholders = {"FOLDER": folder / "FOLDER", "FILE": file}
    mmfw(*(placeholders.get(word, word) for word in split_command(command)), *folder_options)
    assert read_tree(MmfPaths(user_dir, user_dir / "data", user_dir).dataset.root) == mmf_layout(MEMES)


def test_incomplete_copy_must_be_replaced(user_dir: Path, mmfw: MmfwRunner) -> None:
    path = make_first_of_two_zips(user_dir)
    shutil.copy(path, user_dir / "memes-v2.zip")
    mmfw("convert", user_dir / "memes-v2.zip", "--data-dir", user_dir / "data", code=3)
    assert "hint: use a complete copy, or exclude these memes with --allow-missing" in mmfw.err


def test_features_in_an_unsupported_archive_are_extracted_from_a_folder(user_dir: Path, mmfw: MmfwRunner) -> None:
    features: Files = {"detectron.lmdb/data.mdb": bytes(range(256)) * 64}
    path = hostile_archives.declare_method(hostile_archives.write_zip(user_dir / "features.zip", features), 9)
    folder_options = ["--data-dir", user_dir / "data"]
    mmfw("features", "extract", path, *folder_options, code=3)
    [command] = re.findall("`mmfw (.*?)`", mmfw.err)
    placeholders = {"FOLDER": write_tree(features, user_dir / "unpacked")}
    mmfw(*(placeholders.get(word, word) for word in split_command(command)), *folder_options)


@pytest.mark.parametrize("make", [make_split_7z, make_gzip_of_zip], ids=lambda make: make.__name__)
@requires_tool("7z")
def test_hint_for_unreadable_features_names_the_command_that_was_run(
    make: Callable[[Path], Path], user_dir: Path, mmfw: MmfwRunner
) -> None:
    path = make(user_dir)
    mmfw("features", "extract", path, "--data-dir", user_dir / "data", code=3)
    assert re.findall("`(mmfw .*?) F[A-Z]*`", mmfw.err) == ["mmfw features extract"]


def test_error_about_hostile_features_names_the_archive(user_dir: Path, mmfw: MmfwRunner) -> None:
    lmdb = pytest.importorskip("lmdb")
    folder = user_dir / "made" / "detectron.lmdb"
    folder.mkdir(parents=True)
    # With `create`, lmdb would create the folder itself, which fails on Windows for names that are not ASCII.
    with (
        lmdb.open(str(folder), map_size=1 << 20, lock=False, create=False) as environment,
        environment.begin(write=True) as transaction,
    ):
        transaction.put(b"keys", pickle.dumps(os.getcwd))
    path = hostile_archives.write_zip(
        user_dir / "features.zip", {"detectron.lmdb/data.mdb": (folder / "data.mdb").read_bytes()}
    )
    mmfw("features", "extract", path, "--data-dir", user_dir / "data", code=3)
    message = f"error: {path}: rejected because it could run code: key list: "
    assert mmfw.err.startswith(message) and "use features from a source that you trust" in mmfw.err
