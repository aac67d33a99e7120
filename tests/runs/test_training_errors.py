"""What ``mmfw train`` and ``mmfw predict`` refuse before a worker starts; nothing of it needs torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmf_win.cli import main
from mmf_win.errors import MmfError
from mmf_win.locking import locked
from mmf_win.paths import Places
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
    annotations = Places.resolve(tmp_path / "данные").dataset.annotations
    annotations.mkdir(parents=True)
    for split in ("train", "dev", "test"):
        line = '{"id": 1, "img": "img/00001.png", "text": ""}\n'
        (annotations / f"{split}.jsonl").write_text(line, encoding="utf-8")
    return tmp_path / "данные"


@pytest.fixture
def run(tmp_path: Path, data: Path) -> Run:
    """A run that was asked for and never saved a checkpoint."""
    run = Run.create(tmp_path / "save", "mmbt_grid")
    splits = {"train": "train", "val": "dev", "test": "test"}
    run.save_request(Request(preset="mmbt_grid", model="mmbt", splits=splits, data_dir=str(data)))
    return run


def said(capsys: pytest.CaptureFixture[str], code: int, *words: str) -> str:
    assert main(list(words)) == code
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["train"], 2, ["mmfw train --list"]),
        (["train", "vilbret"], 2, ["did you mean vilbert?"]),
        (["train", "mmbt_grid", "--data-dir", "."], 3, ["no Hateful Memes dataset", "mmfw convert --zip"]),
        (["train", "--resume", "best", "--save-dir", "nothing"], 2, ["no run yet", "--save-dir "]),
        (["predict", "mmbt_grid", "--save-dir", "nothing"], 2, ["mmfw train mmbt_grid --save-dir"]),
    ],
)
def test_what_is_not_there_is_told_with_the_next_step(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    told: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    error = said(capsys, code, *words)
    assert all(word in error for word in told), error


def test_a_run_without_a_checkpoint(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    save = str(run.path.parent.parent)
    for words in (["train", "--resume", "last"], ["predict"]):
        assert f"run {run.id} has no checkpoint" in said(capsys, 3, *words, "--save-dir", save)


def test_an_unreadable_checkpoint_and_a_split_that_is_not_there(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    save = str(run.path.parent.parent)
    checkpoint(run.checkpoints / "best.ckpt", 3)
    error = said(capsys, 3, "predict", "--split", "test_seen", "--save-dir", save)
    assert "there is no such split" in error and "train, dev, test" in error
    (run.checkpoints / "best.ckpt").write_bytes(b"half a fi")
    assert "best.ckpt: it is cut off" in said(capsys, 3, "predict", "--save-dir", save)


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


def test_a_run_that_is_being_trained_is_left_alone(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
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
