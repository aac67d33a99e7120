"""Cache and data folders that MMF could not make, on real file systems."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mmf_win.errors import DataError, MmfwError, ResourceError
from mmf_win.files import to_mmfw_error
from mmf_win.paths import MmfPaths
from mmf_win.unpacking.staging import open_staging, require_creatable_folders
from tests.worlds import mounts


def _refused(cache: Path, data: Path) -> MmfwError:
    with pytest.raises(MmfwError) as caught:
        require_creatable_folders(MmfPaths(cache, data, cache))
    return caught.value


def test_folders_that_exist_or_can_be_made_are_taken_and_nothing_is_left(tmp_path: Path) -> None:
    require_creatable_folders(MmfPaths(tmp_path, tmp_path / "a" / "b", tmp_path))
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("variable", ["MMF_CACHE_DIR", "MMF_DATA_DIR"])
@pytest.mark.parametrize("below", ["", "cache/mmf"])
def test_a_file_in_place_of_a_folder_is_refused_with_its_variable(
    tmp_path: Path, variable: str, below: str
) -> None:
    file, folder = tmp_path / "file", tmp_path / "file" / below
    file.touch()
    error = _refused(*([folder, tmp_path] if variable == "MMF_CACHE_DIR" else [tmp_path, folder]))
    assert type(error) is DataError and str(folder) in str(error) and variable in str(error.hint)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows lets few users make a symbolic link")
def test_a_link_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "cache"
    link.symlink_to(tmp_path / "unmounted")
    assert str(link) in str(_refused(link, tmp_path))


def test_a_disk_that_may_only_be_read_is_enough_for_a_folder_that_exists(small_disk: Path) -> None:
    existing = small_disk / "cache"
    existing.mkdir()
    mounts.remount(small_disk, "ro")
    require_creatable_folders(MmfPaths(existing, existing, existing))
    error = _refused(small_disk / "other" / "cache", existing)
    assert type(error) is DataError and "Read-only" in str(error)


def test_a_full_disk_is_a_lack_of_resources(small_disk: Path) -> None:
    mounts.remount(small_disk, "nr_inodes=2")
    (small_disk / "file").touch()
    error = _refused(small_disk / "cache", small_disk)
    assert type(error) is ResourceError and "No space left" in str(error)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows lets few users make a symbolic link")
def test_where_a_link_leads_nowhere_the_hint_names_the_disk(tmp_path: Path) -> None:
    (tmp_path / "images").symlink_to(tmp_path / "unmounted")
    with pytest.raises(OSError, match="exists") as caught, open_staging(tmp_path) as here:
        (here.new_dir / "1").touch()
        here.install([(here.new_dir / "1", tmp_path / "images" / "1")])
    error = to_mmfw_error(caught.value)
    assert str(tmp_path / "images") in str(error) and "mount the disk" in str(error.hint)
