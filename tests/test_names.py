"""Portability of names from users: mmfw writes names that every system allows, and refuses the others."""

from __future__ import annotations

import ntpath
import os
import sys
from pathlib import Path, PureWindowsPath
from tempfile import TemporaryDirectory, gettempdir

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mmf_win.archives.names import find_name_problem, safe_name
from mmf_win.dataset.convert import convert
from mmf_win.dataset.user_memes import read_table, resolve_image_paths, user_annotations_path
from mmf_win.errors import ArchiveError, DatasetError
from mmf_win.paths import MmfPaths, portable_name, short_portable_name
from mmf_win.results import metrics_file
from mmf_win.runs.folder import Run
from tests.worlds import hostile_archives
from tests.worlds.memes import dataset_files, jsonl, read_tree

_PIECES = ["con", "NUL", "Aux", "com1", "COM¹", "lpt9", "CONIN$"]
_PIECES += [".", " ", ":", "/", "\\", "?", "\x1f", "\x7f"]
_PIECES += [".json", ".png", "-", "a", "É", "e\u0301", "мем", "梗图" * 40, "x" * 200, "😀" * 70]
names = st.lists(st.sampled_from(_PIECES), max_size=5).map("".join) | st.text(max_size=12)


def assert_portable(name: str) -> None:
    """Check a name by Python's rules for Windows and by the limits of Linux and macOS."""
    if sys.version_info >= (3, 13):
        assert not ntpath.isreserved(name)
    else:
        assert not PureWindowsPath(name).is_reserved()
    assert PureWindowsPath(name).parts == (name,), "the path must be one name without a drive"
    assert name not in (".", "..") and name == name.rstrip(". ")
    assert not set(name) & set('<>:"/\\|?*') and min(name) >= " "
    assert len(name.encode()) <= 255


@settings(max_examples=100)
@example("nul .txt")
@example("con" + " " * 300 + "x")
@given(names.filter(lambda name: "\0" not in name))
def test_portable_name_is_allowed_everywhere_and_stable(name: str) -> None:
    portable = portable_name(name)
    assert_portable(portable)
    assert portable_name(portable) == portable


@settings(max_examples=40)
@given(names)
def test_long_names_with_different_ends_stay_different(name: str) -> None:
    short_names = {short_portable_name(name + "梗" * 40 + end, suffix) for end in "ab" for suffix in ("", "-published")}
    assert len(short_names) == 4
    assert sum(short.endswith("-published") for short in short_names) == 2
    assert all(short_portable_name(short) == short for short in short_names), "a short name must not be shortened again"


@settings(max_examples=40)
@given(names, names)
def test_names_of_prediction_files_are_portable(name: str, table: str) -> None:
    # With this prefix Windows accepts paths of more than 260 characters regardless of its settings.
    parent = "\\\\?\\" + gettempdir() if sys.platform == "win32" else None
    with TemporaryDirectory(dir=parent) as folder:
        run = Run.create(Path(folder), name)
        with run.reserve_prediction_file(short_portable_name(f"memes-{table}")) as csv:
            related_files = (user_annotations_path(csv), metrics_file.metrics_path(csv), csv.with_suffix(".html"))
            for path in (csv, *(path.with_name(f"{path.name}.01234567.part") for path in related_files)):
                path.touch()
        paths = [*run.reports.iterdir(), run.path.parent, run.path]
        assert len(paths) == 6, "the file that reserved the name must be removed"
        for path in paths:
            assert_portable(path.name)


@settings(max_examples=100)
@given(names)
def test_name_in_archive_is_portable_or_has_a_problem(name: str) -> None:
    try:
        safe = safe_name(name)
    except ValueError:
        return
    if find_name_problem(safe) is None:
        for part in safe.split("/"):
            assert_portable(part)


@pytest.mark.parametrize("name", ["img/con.png", "img/COM¹.png", "img/nul .png", "img/" + "图" * 90 + ".png"])
def test_dataset_with_unportable_image_name_is_refused(user_dir: Path, name: str) -> None:
    files = dataset_files()
    files["hateful_memes/" + name] = b""
    mmf_paths = MmfPaths.resolve(user_dir / "data", user_dir / "save")
    with pytest.raises(ArchiveError) as raised:
        convert(hostile_archives.write_zip(user_dir / "a.zip", files), mmf_paths)
    assert name in str(raised.value)
    assert read_tree(mmf_paths.data_dir) == {}


def test_device_is_not_accepted_as_image_of_user_memes(user_dir: Path) -> None:
    table = user_dir / "memes.jsonl"
    table.write_bytes(jsonl([{"img": os.devnull, "text": "a"}]))  # NUL on Windows
    with pytest.raises(DatasetError, match=rf"1 of 1 images are missing: {os.devnull} \(line 1\)"):
        resolve_image_paths(read_table(table), table)
