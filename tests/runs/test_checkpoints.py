"""Choosing a checkpoint by its file alone; the zip files here are laid out as torch lays them out."""

import zipfile
from pathlib import Path

import pytest

from mmf_win.errors import CheckpointError
from mmf_win.runs import checkpoints
from mmf_win.runs.folder import Run


def whole(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"x" * 1000)
    return path


def cut_off(path: Path) -> Path:
    whole(path)
    path.write_bytes(path.read_bytes()[:700])
    return path


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "mmbt" / "2026-01-01T00-00-00")


@pytest.mark.parametrize(
    ("there", "wanted", "chosen"),
    [
        (["best", "current"], "best", "best"),
        (["best", "current"], "last", "current"),
        (["current"], "best", "current"),
    ],
)
def test_best_and_last_are_files_and_a_run_too_short_to_have_a_best_gives_its_last(
    run: Run, there: list[str], wanted: str, chosen: str
) -> None:
    for name in there:
        whole(run.checkpoints / f"{name}.ckpt")
    assert checkpoints.choose(run, wanted) == run.checkpoints / f"{chosen}.ckpt"


def test_a_cut_off_current_checkpoint_falls_back_to_the_newest_intact_one(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    broken = cut_off(run.checkpoints / "current.ckpt")
    whole(run.checkpoints / "models" / "model_9.ckpt")
    newest = whole(run.checkpoints / "models" / "model_10.ckpt")
    assert checkpoints.choose(run, "last") == newest
    [note] = caplog.messages
    assert str(broken) in note and newest.name in note


def test_a_run_without_checkpoints_is_an_error_that_names_it(run: Run) -> None:
    with pytest.raises(CheckpointError, match="mmbt/2026-01-01T00-00-00 has no checkpoint"):
        checkpoints.choose(run, "last")


def test_a_run_whose_checkpoints_are_all_broken_names_the_first(run: Run) -> None:
    cut_off(run.checkpoints / "current.ckpt")
    with pytest.raises(CheckpointError, match=r"current\.ckpt: it is cut off"):
        checkpoints.choose(run, "last")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "cut off or not a checkpoint"),
        (b"hello", "cut off or not a checkpoint"),
        (b"PK\x03\x04 and then nothing", "cut off or not a checkpoint"),
    ],
)
def test_a_file_that_is_no_checkpoint_is_told_apart(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "my model.ckpt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=reason):
        checkpoints.choose(Run(tmp_path), str(path))


def test_a_checkpoint_with_a_damaged_directory_is_told_apart(tmp_path: Path) -> None:
    """Its last record is whole, so that a hasty look takes it for a zip file."""
    path = whole(tmp_path / "damaged.ckpt")
    content = bytearray(path.read_bytes())
    directory = content.index(b"PK\x01\x02")
    content[directory : directory + 4] = b"\0\0\0\0"
    path.write_bytes(content)
    assert checkpoints.problem(path) == "it is cut off or not a checkpoint"


def test_another_zip_file_is_no_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "photos.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.png", b"")
    assert checkpoints.problem(path) == "it is a zip file but not a checkpoint"


def test_a_checkpoint_of_torch_before_1_6_passes(tmp_path: Path) -> None:
    path = tmp_path / "old.pth"
    path.write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.")
    assert checkpoints.problem(path) is None


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere\.ckpt: there is no such file"):
        checkpoints.choose(Run(tmp_path), str(tmp_path / "nowhere.ckpt"))
