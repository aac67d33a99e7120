"""Names from outside, whatever they are: what is written is legal on every system, or the name is refused."""

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


def assert_legal(name: str) -> None:
    """By what Python itself knows of Windows, and by the limits of Linux and macOS."""
    if sys.version_info >= (3, 13):
        assert not ntpath.isreserved(name)
    else:
        assert not PureWindowsPath(name).is_reserved()
    assert PureWindowsPath(name).parts == (name,), "one name, without a drive"
    assert name not in (".", "..") and name == name.rstrip(". ")
    assert not set(name) & set('<>:"/\\|?*') and min(name) >= " "
    assert len(name.encode()) <= 255


@settings(max_examples=100)
@example("nul .txt")
@example("con" + " " * 300 + "x")
@given(names.filter(lambda name: "\0" not in name))
def test_a_made_name_is_legal_and_stays_as_it_is(name: str) -> None:
    made = portable_name(name)
    assert_legal(made)
    assert portable_name(made) == made


@settings(max_examples=40)
@given(names)
def test_long_names_that_differ_at_their_ends_stay_different(name: str) -> None:
    made = {short_portable_name(name + "梗" * 40 + end, suffix) for end in "ab" for suffix in ("", "-published")}
    assert len(made) == 4
    assert sum(part.endswith("-published") for part in made) == 2
    assert all(short_portable_name(part) == part for part in made), "none is cut again"


@settings(max_examples=40)
@given(names, names)
def test_all_files_of_a_prediction_get_names_that_the_disk_takes(name: str, table: str) -> None:
    # By such a prefix Windows takes paths of more than 260 characters, whatever its settings.
    temp = "\\\\?\\" + gettempdir() if sys.platform == "win32" else None
    with TemporaryDirectory(dir=temp) as folder:
        run = Run.create(Path(folder), name)
        with run.reserve_prediction_file(short_portable_name(f"memes-{table}")) as csv:
            beside = (user_annotations_path(csv), metrics_file.metrics_path(csv), csv.with_suffix(".html"))
            for path in (csv, *(path.with_name(f"{path.name}.01234567.part") for path in beside)):
                path.touch()
        written = [*run.reports.iterdir(), run.path.parent, run.path]
        assert len(written) == 6, "what reserved the name is gone"
        for path in written:
            assert_legal(path.name)


@settings(max_examples=100)
@given(names)
def test_a_name_in_an_archive_is_legal_or_has_a_problem(name: str) -> None:
    try:
        safe = safe_name(name)
    except ValueError:
        return
    if find_name_problem(safe) is None:
        for part in safe.split("/"):
            assert_legal(part)


@pytest.mark.parametrize("name", ["img/con.png", "img/COM¹.png", "img/nul .png", "img/" + "图" * 90 + ".png"])
def test_a_dataset_with_an_image_that_not_every_system_takes_is_refused(user_dir: Path, name: str) -> None:
    files = dataset_files()
    files["hateful_memes/" + name] = b""
    places = MmfPaths.resolve(user_dir / "data", user_dir / "save")
    with pytest.raises(ArchiveError) as caught:
        convert(hostile_archives.write_zip(user_dir / "a.zip", files), places)
    assert name in str(caught.value)
    assert read_tree(places.data_dir) == {}


def test_a_device_is_no_image_of_own_memes(user_dir: Path) -> None:
    table = user_dir / "memes.jsonl"
    table.write_bytes(jsonl([{"img": os.devnull, "text": "a"}]))  # NUL on Windows
    with pytest.raises(DatasetError, match=rf"1 of 1 images are missing: {os.devnull} \(line 1\)"):
        resolve_image_paths(read_table(table), table)
