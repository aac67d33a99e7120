"""Files on two drives of Windows, between which there are no relative paths, links or renames."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from mmf_win.files import link_or_copy
from mmf_win.inputs import verification
from mmf_win.paths import MmfPaths
from tests.worlds import hostile_archives
from tests.worlds.memes import PASSWORD, dataset_files, make_encrypted_zip
from tests.worlds.tools import MmfwRunner

if sys.platform != "win32":
    pytest.skip("only Windows has drives", allow_module_level=True)


@pytest.fixture
def other_drive(user_dir: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Return a folder on the drive of the checkout, which is not that of ``user_dir``."""
    assert request.config.cache is not None
    with TemporaryDirectory(dir=request.config.cache.mkdir("other-drive")) as folder:
        if Path(folder).drive == user_dir.drive:
            pytest.skip("this Windows has its checkout and its temporary folder on one drive")
        yield Path(folder, "Данные 数据")


def test_dataset_is_converted_and_repaired_across_drives(
    user_dir: Path, other_drive: Path, monkeypatch: pytest.MonkeyPatch, mmfw: MmfwRunner
) -> None:
    monkeypatch.setenv("MMF_CACHE_DIR", str(user_dir / "cache"))
    archive, data = make_encrypted_zip(user_dir / "memes.zip", dataset_files()), ["--data-dir", str(other_drive)]
    password = ["--password", PASSWORD]
    mmfw("convert", "--zip", archive, *data, *password)
    hostile_archives.truncate_file(MmfPaths.resolve(other_drive).dataset.images / "img" / "00001.png")
    mmfw("verify", *data, code=3)
    mmfw("repair", *data, *password)
    mmfw("verify", *data)
    mmfw("doctor", *data)


def test_file_is_copied_to_another_drive(user_dir: Path, other_drive: Path) -> None:
    other_drive.mkdir()
    (user_dir / "weights").write_bytes(b"weights")
    link_or_copy(user_dir / "weights", other_drive / "best.ckpt")
    assert (other_drive / "best.ckpt").read_bytes() == b"weights"


def test_annotations_on_another_drive_do_not_belong_to_the_dataset(user_dir: Path, other_drive: Path) -> None:
    annotations = other_drive / "мои.jsonl"
    assert verification._relative_posix_path(annotations, user_dir) == annotations.as_posix()
