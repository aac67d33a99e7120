"""Errors of ``mmfw train`` and ``mmfw predict`` before a worker starts; needs no torch."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from mmf_win.errors import MmfEnvironmentError, UsageError
from mmf_win.locking import file_lock
from mmf_win.paths import MmfPaths
from mmf_win.protocol import AttemptOutcome, AttemptRequest
from mmf_win.protocol.attempt import TrainTask
from mmf_win.runs import preflight, training
from mmf_win.runs.folder import Run, training_lock
from mmf_win.runs.history import run_state
from mmf_win.runs.plan import Plan, RunJob
from mmf_win.runs.request import CommandOptions, RunRequest
from mmf_win.upstream.install import MmfInstall
from tests.worlds.event_log import EventLog
from tests.worlds.memes import RUN_SPLITS, write_tree
from tests.worlds.tools import MmfwRunner
from tests.worlds.torch_files import write_checkpoint


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a data folder that contains only annotation files."""
    names = ("train.jsonl", "dev.jsonl", "test.jsonl")
    files = dict.fromkeys(names, b'{"id": 1, "img": "img/00001.png", "text": ""}\n')
    write_tree(files, MmfPaths.resolve(tmp_path / "данные").dataset.annotations)
    return tmp_path / "данные"


@pytest.fixture
def run(tmp_path: Path, data: Path) -> Run:
    """Return a run without checkpoints."""
    run = Run.create(tmp_path / "save", "mmbt_grid")
    run.save_request(RunRequest(preset="mmbt_grid", model="mmbt", splits=RUN_SPLITS, data_dir=str(data)))
    return run


def test_run_without_checkpoint_is_an_error(run: Run, mmfw: MmfwRunner) -> None:
    for arguments in (["train", "--resume", "last"], ["predict"]):
        error = mmfw(*arguments, "--save-dir", run.path.parents[1], code=3)
        assert f"run {run.id} has no checkpoint" in error


@pytest.mark.parametrize("name", ["current.ckpt", "models/model_4.ckpt"])
def test_folder_with_name_of_checkpoint_is_rejected(run: Run, mmfw: MmfwRunner, name: str) -> None:
    write_checkpoint(run.checkpoints / "best.ckpt", 3)
    folder = run.checkpoints / name
    folder.mkdir(parents=True)
    assert f"{folder}: is a folder, not a file" in mmfw("train", "--resume", run.path, code=3)
    assert f"{folder}: is a folder" in mmfw("predict", "--checkpoint", folder, run.path, code=3)


@pytest.mark.skipif(sys.platform != "linux", reason="names are Unicode on Windows and macOS")
@pytest.mark.parametrize("arguments", [("train", "mmbt_grid"), ("predict",), ("train", "--resume", "last")])
def test_path_that_is_not_utf8_is_rejected(
    data: Path, tmp_path: Path, arguments: tuple[str, ...], mmfw: MmfwRunner
) -> None:
    run = Run.create(tmp_path / os.fsdecode(b"\xff"), "mmbt_grid")
    run.save_request(RunRequest(preset="mmbt_grid", model="mmbt", splits=RUN_SPLITS, data_dir=str(data)))
    write_checkpoint(run.checkpoints / "best.ckpt", 3)
    error = mmfw(*arguments, "--data-dir", data, "--save-dir", run.path.parents[1], code=2)
    assert "not valid UTF-8" in error and str(tmp_path) in error
    assert [path.name for path in run.path.parent.iterdir()] == [run.path.name]


def test_damaged_checkpoint_and_missing_split_are_errors(run: Run, mmfw: MmfwRunner) -> None:
    arguments = ("predict", "--save-dir", run.path.parents[1])
    write_checkpoint(run.checkpoints / "best.ckpt", 3)
    error = mmfw(*arguments, "--split", "test_seen", code=3)
    assert "no split named" in error and "train, dev, test" in error
    (run.checkpoints / "best.ckpt").write_bytes(b"half a fi")
    assert "best.ckpt: truncated" in mmfw(*arguments, code=3)


def test_missing_mmf_is_an_error(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mmfw: MmfwRunner) -> None:
    def raise_not_installed() -> MmfInstall:
        raise MmfEnvironmentError("MMF is not installed", hint="run `mmfw setup`")

    monkeypatch.setattr("mmf_win.runs.plan.require_mmf", raise_not_installed)
    save = tmp_path / "save"
    assert "mmfw setup" in mmfw("train", "mmbt_grid", "--data-dir", data, "--save-dir", save, code=6)
    assert not save.exists(), "a run that did not start must have no folder"


def test_run_in_training_is_not_resumed(run: Run, mmfw: MmfwRunner) -> None:
    write_checkpoint(run.checkpoints / "current.ckpt", 3)
    with file_lock(run.training_lock_file):
        error = mmfw("train", "--resume", "last", "--save-dir", run.path.parents[1], code=8)
    assert f"run {run.id} is being trained" in error
    assert not (run.path / "attempts").exists()


def test_second_concurrent_training_changes_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch, mmfw: MmfwRunner
) -> None:
    monkeypatch.setattr(training, "require_not_training", lambda run: None)  # checked before the other started
    write_checkpoint(run.checkpoints / "current.ckpt", 3)
    AttemptOutcome("ok").save(run.outcome_file)
    with training_lock(run):
        assert run_state(run) == "running"
        error = mmfw("train", "--resume", "last", "--save-dir", run.path.parents[1], code=8)
    assert f"run {run.id} is being trained" in error
    assert run_state(run) == "done"


@pytest.mark.parametrize(("update", "is_refused"), [(5, True), (4, False), (2, False)])
def test_early_stopped_run_resumes_from_best_but_not_last(run: Run, update: int, is_refused: bool) -> None:
    log = EventLog(run.events, "1")
    log.write("train_started", update=0, max_updates=12)
    log.write("train", update=5)
    AttemptOutcome("ok").save(run.outcome_file)
    start = write_checkpoint(run.checkpoints / "model.ckpt", update, best_update=2)
    attempt = AttemptRequest(TrainTask(), "mmbt", "mmf", str(run.path / "attempts" / "2"), checkpoint=str(start))
    early_stop = {"early_stop.enabled": True, "early_stop.patience": 2}
    config = {"checkpoint": {}, "training": early_stop}
    running_job = RunJob(run.request(), CommandOptions(), MmfPaths.resolve(run.path, run.path))
    plan = Plan(running_job, run.request(), attempt, config)
    with pytest.raises(UsageError, match="stopped early at update 5") if is_refused else nullcontext():
        preflight._require_updates_left(plan, total=12)
