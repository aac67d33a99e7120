"""Environment variables that name the run to use: one run takes it, several are rejected."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmf_win.runs.folder import Run
from mmf_win.tracking.tracker import create_tracker
from mmf_win.tracking.upload import Uploader, UploadOptions, load_upload_states
from tests.tracking.test_clearml import ClearMLStub, stub  # noqa: F401
from tests.tracking.test_clearml import push as push_to_clearml
from tests.tracking.test_destinations import mmfw_home, push  # noqa: F401
from tests.tracking.test_mlflow import upload
from tests.tracking.test_wandb import list_folders, read_records_of_kind, read_series, training_points
from tests.worlds.mlflow_server import MlflowExperiment, requires_mlflow_server
from tests.worlds.report_world import START_TIME, ReportWorld
from tests.worlds.tools import MmfwRunner, requires_package
from tests.worlds.torch_files import write_checkpoint

pytestmark = pytest.mark.wide
requires_wandb, requires_clearml = requires_package("wandb"), requires_package("clearml")
VARIABLES = {"mlflow": "MLFLOW_RUN_ID", "clearml": "CLEARML_TASK_ID", "wandb": "WANDB_RUN_ID"}


def make_sweep(world: ReportWorld) -> Path:
    """Create a sweep of two runs."""
    sweep = world.save / "sweeps" / "grid"
    for number, task in enumerate(("lr=1", "lr=2")):
        run = world.add_run(f"sweeps/grid/{task}/mmbt_grid", created=START_TIME + number)
        (run.path.parents[1] / "param").write_text("lr: 1\n", encoding="utf-8")
    (sweep / "sweep.yaml").write_text("template: {train: mmfw train x}\n---\nlr: [1, 2]\n", encoding="utf-8")
    return sweep


@requires_mlflow_server
def test_named_mlflow_run_is_used_and_kept(
    world: ReportWorld, mlflow: MlflowExperiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = world.add_run()
    assert upload(run)
    first = mlflow.only_run().info.run_id
    experiment = mlflow.client.create_experiment(f"{mlflow.experiment} elsewhere")
    named = mlflow.client.create_run(experiment, run_name="mine").info.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", named)
    assert upload(run), "the named run must receive the data"
    [sent] = load_upload_states(run)
    assert sent.id == named and (sent.link or "").endswith(f"experiments/{experiment}/runs/{named}")
    stored_run = mlflow.client.get_run(named)
    assert (stored_run.info.run_name, stored_run.info.status) == ("mine", "FINISHED")
    assert len(mlflow.client.get_metric_history(named, "train/loss")) == 12
    assert not upload(run)
    monkeypatch.delenv("MLFLOW_RUN_ID")
    assert not upload(run)
    run.outcome_file.unlink()
    assert upload(run), "the changed state must be sent"
    assert load_upload_states(run)[0].id == named and mlflow.client.get_run(named).info.status == "KILLED"
    assert mlflow.only_run().info.run_id == first


@requires_mlflow_server
def test_deleted_mlflow_run_or_one_of_another_training_is_rejected(
    world: ReportWorld, mlflow: MlflowExperiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, other = world.add_run(), world.add_run("other", created=START_TIME + 1)
    assert upload(run)
    stored_run = mlflow.only_run().info.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", stored_run)
    with pytest.raises(Exception, match="MLFLOW_RUN_ID names a run of another training"):
        upload(other)
    mlflow.client.delete_run(stored_run)
    (run.reports / "more.metrics.json").write_text("{}", encoding="utf-8")
    with pytest.raises(Exception, match="must be in the 'active'"):
        upload(run)
    assert mlflow.runs() == [] and load_upload_states(other) == []


@requires_wandb
def test_run_of_a_wandb_agent_is_used_and_kept(world: ReportWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    run = world.add_run()
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name, value in {"RUN_ID": "agent1", "SWEEP_ID": "sw33p", "PROJECT": "theirs"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    [sent], _ = push(world, "--to", "wandb")
    [folder] = list_folders(run)
    [run_record] = read_records_of_kind(folder, "run")
    assert sent["id"] == run_record.run_id == "agent1" and (run_record.sweep_id, run_record.project) == (
        "sw33p",
        "theirs",
    )
    assert read_series(folder, "train/loss") == training_points(run, "loss")
    monkeypatch.delenv("WANDB_RUN_ID")
    assert not push(world, "--to", "wandb")[0][0]["new"]
    run.outcome_file.unlink()
    [sent], _ = push(world, "--to", "wandb")
    assert sent["id"] == "agent1" and len(list_folders(run)) == 2
    assert {read_records_of_kind(folder, "run")[0].run_id for folder in list_folders(run)} == {"agent1"}


@requires_wandb
def test_wandb_sweep_without_a_run_id_creates_no_random_run(
    world: ReportWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = world.add_run()
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SWEEP_ID", "sw33p")
    tracker = create_tracker("wandb")
    run.tracking.mkdir()
    uploader = Uploader(run, tracker, UploadOptions())
    [sent], _ = push(world, "--to", "wandb")
    [run_record] = read_records_of_kind(list_folders(run)[0], "run")
    assert run_record.run_id == sent["id"] and len(sent["id"]) == 32 and run_record.project == "hateful-memes"
    assert uploader.upload_state.id is None and run_record.sweep_id == ""


@pytest.mark.parametrize("name", VARIABLES)
def test_named_run_is_rejected_if_several_are_sent(
    world: ReportWorld, mmfw: MmfwRunner, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package, variable in VARIABLES.items():
        pytest.importorskip(package)
        monkeypatch.setenv(variable, "given" if package == name else "")
    monkeypatch.setattr("mmf_win.tracking.tracker.Tracker.require_usable", lambda self: None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    sweep, other = make_sweep(world), world.add_run("other")
    tasks = [Run(path) for path in sweep.glob("*/mmbt_grid/*")]
    for run in tasks:
        write_checkpoint(run.checkpoints / "best.ckpt", 20)
    for arguments in (
        ("track", "push", sweep, "--to", name),
        ("predict", *(run.path for run in tasks), "--track", name),
        ("sweep", "run", "mmbt_grid", "--seeds", "1-2", "--track", name, "--dry-run"),
        ("train", "mmbt_grid", "--track", name, "--save-dir", sweep / "lr=1"),
    ):
        mmfw(*arguments, *(() if "train" in arguments else ("--save-dir", world.save)), code=2)
        assert f"{VARIABLES[name]} names one run" in mmfw.err and f"unset {VARIABLES[name]}" in mmfw.err
    assert load_upload_states(other) == []


@requires_clearml
def test_named_task_is_used_for_a_run_of_a_sweep_and_rejected_offline(
    world: ReportWorld,
    stub: ClearMLStub,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_sweep(world)
    task_id = stub._tasks_create(name="queued", tags=[], status="in_progress")["id"]
    monkeypatch.setenv("CLEARML_TASK_ID", task_id)
    [sent] = push_to_clearml(world, "sweeps/grid/lr=1")
    assert sent["id"] == task_id == stub.task()["id"]
    monkeypatch.setenv("CLEARML_OFFLINE_MODE", "1")
    assert "CLEARML_TASK_ID names one run" in push_to_clearml(world, "sweeps/grid/lr=1", code=2)
