"""Cache and data folders that MMF could not create, on real file systems."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mmf_win.errors import DataError, MmfwError, ResourceError
from mmf_win.files import to_mmfw_error
from mmf_win.paths import MmfPaths
from mmf_win.unpacking.staging import open_staging, require_creatable_folders
from tests.worlds import mounts


def _folder_error(cache: Path, data: Path) -> MmfwError:
    with pytest.raises(MmfwError) as caught:
        require_creatable_folders(MmfPaths(cache, data, cache))
    return caught.value


def test_creatable_folders_are_accepted_and_not_created(tmp_path: Path) -> None:
    require_creatable_folders(MmfPaths(tmp_path, tmp_path / "a" / "b", tmp_path))
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("variable", ["MMF_CACHE_DIR", "MMF_DATA_DIR"])
@pytest.mark.parametrize("below", ["", "cache/mmf"])
def test_file_in_place_of_a_folder_is_rejected_with_its_variable(tmp_path: Path, variable: str, below: str) -> None:
    file, folder = tmp_path / "file", tmp_path / "file" / below
    file.touch()
    error = _folder_error(*([folder, tmp_path] if variable == "MMF_CACHE_DIR" else [tmp_path, folder]))
    assert type(error) is DataError and str(folder) in str(error) and variable in str(error.hint)


@pytest.mark.skipif(sys.platform == "win32", reason="symbolic links need rights on Windows")
def test_broken_link_is_rejected(tmp_path: Path) -> None:
    link = tmp_path / "cache"
    link.symlink_to(tmp_path / "unmounted")
    assert str(link) in str(_folder_error(link, tmp_path))


def test_existing_folder_on_a_read_only_disk_is_accepted(small_disk: Path) -> None:
    existing = small_disk / "cache"
    existing.mkdir()
    mounts.remount(small_disk, "ro")
    require_creatable_folders(MmfPaths(existing, existing, existing))
    error = _folder_error(small_disk / "other" / "cache", existing)
    assert type(error) is DataError and "Read-only" in str(error)


def test_full_disk_raises_resource_error(small_disk: Path) -> None:
    mounts.remount(small_disk, "nr_inodes=2")
    (small_disk / "file").touch()
    error = _folder_error(small_disk / "cache", small_disk)
    assert type(error) is ResourceError and "No space left" in str(error)


@pytest.mark.skipif(sys.platform == "win32", reason="symbolic links need rights on Windows")
def test_hint_for_a_broken_link_mentions_the_disk(tmp_path: Path) -> None:
    (tmp_path / "images").symlink_to(tmp_path / "unmounted")
    with pytest.raises(OSError, match="exists") as caught, open_staging(tmp_path) as staging:
        (staging.new_dir / "1").touch()
        staging.install([(staging.new_dir / "1", tmp_path / "images" / "1")])
    error = to_mmfw_error(caught.value)
    assert str(tmp_path / "images") in str(error) and "mount the disk" in str(error.hint)
