"""What ``mmfw train`` and ``mmfw predict`` refuse before a worker starts; nothing of it needs torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmf_win.cli import main
from mmf_win.errors import MmfError
from mmf_win.locking import locked
from mmf_win.protocol import Exit
from mmf_win.runs import needs, training
from mmf_win.runs.folder import Run, training_alone
from mmf_win.runs.history import state
from mmf_win.runs.request import Request
from mmf_win.upstream.install import Installed
from tests.worlds.torch_files import checkpoint


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with annotation files and nothing else."""
    folder = tmp_path / "данные" / "datasets" / "hateful_memes" / "defaults" / "annotations"
    folder.mkdir(parents=True)
    for split in ("train", "dev", "test"):
        (folder / f"{split}.jsonl").write_text(
            '{"id": 1, "img": "img/00001.png", "text": ""}\n', encoding="utf-8"
        )
    return tmp_path / "данные"


@pytest.fixture
def run(tmp_path: Path, data: Path) -> Run:
    """A run that was asked for and never saved a checkpoint."""
    run = Run.create(tmp_path / "save", "mmbt_grid")
    run.save_request(
        Request(
            preset="mmbt_grid",
            model="mmbt",
            splits={"train": "train", "val": "dev", "test": "test"},
            data_dir=str(data),
        )
    )
    return run


def said(capsys: pytest.CaptureFixture[str], code: int, *words: str) -> str:
    assert main(list(words)) == code
    return capsys.readouterr().err


def test_no_preset(capsys: pytest.CaptureFixture[str]) -> None:
    assert "mmfw train --list" in said(capsys, 2, "train")


def test_an_unknown_preset_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean vilbert?" in said(capsys, 2, "train", "vilbret")


def test_no_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = said(capsys, 3, "train", "mmbt_grid", "--data-dir", str(tmp_path))
    assert "no Hateful Memes dataset" in error and "mmfw convert --zip" in error


def test_nothing_to_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = said(capsys, 2, "train", "--resume", "best", "--save-dir", str(tmp_path / "nothing"))
    assert "no run yet" in error and f"--save-dir {tmp_path / 'nothing'}" in error


def test_a_preset_that_was_not_trained_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = said(capsys, 2, "predict", "mmbt_grid", "--save-dir", str(tmp_path / "nothing"))
    assert "mmfw train mmbt_grid --save-dir" in error


def test_a_run_without_a_checkpoint(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    save = str(run.path.parent.parent)
    for words in (["train", "--resume", "last"], ["predict"]):
        assert f"run {run.id} has no checkpoint" in said(capsys, 3, *words, "--save-dir", save)


def test_an_unreadable_checkpoint(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.checkpoints.mkdir()
    (run.checkpoints / "best.ckpt").write_bytes(b"half a fi")
    error = said(capsys, 3, "predict", "--save-dir", str(run.path.parent.parent))
    assert "best.ckpt: it is cut off" in error


def test_no_such_split(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint(run.checkpoints / "best.ckpt", 3)
    error = said(capsys, 3, "predict", "--split", "test_seen", "--save-dir", str(run.path.parent.parent))
    assert "there is no such split" in error and "train, dev, test" in error


def test_mmf_is_missing(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nothing() -> Installed:
        raise MmfError("MMF is not installed", hint="run `mmfw setup`")

    monkeypatch.setattr(needs, "usable_mmf", nothing)
    save = tmp_path / "save"
    error = said(capsys, 6, "train", "mmbt_grid", "--data-dir", str(data), "--save-dir", str(save))
    assert "mmfw setup" in error
    assert not save.exists(), "no run folder for a run that never began"


def test_a_run_that_is_being_trained_is_left_alone(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint(run.checkpoints / "current.ckpt", 3)
    with locked(run.lock):
        error = said(capsys, 2, "train", "--resume", "last", "--save-dir", str(run.path.parent.parent))
    assert f"run {run.id} is being trained" in error
    assert not (run.path / "attempts").exists()


def test_of_two_trainings_that_begin_at_the_same_time_the_second_changes_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(training, "require_idle", lambda run: None)  # it began when the other one did not yet
    checkpoint(run.checkpoints / "current.ckpt", 3)
    Exit("ok").save(run.exit_file)
    with training_alone(run):
        assert state(run) == "running"
        error = said(capsys, 2, "train", "--resume", "last", "--save-dir", str(run.path.parent.parent))
    assert f"run {run.id} is being trained" in error
    assert state(run) == "done"
