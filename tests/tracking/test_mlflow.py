"""Runs sent to a real MLflow server and read back with MLflow's own client."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mmf_win.errors import InUseError
from mmf_win.files import write_json
from mmf_win.locking import file_lock
from mmf_win.paths import module_command
from mmf_win.protocol import AttemptOutcome, read_events
from mmf_win.results import metrics_file
from mmf_win.runs.folder import Run, require_unused
from mmf_win.sweeps import folder
from mmf_win.sweeps.folder import SweepFolder, write_yaml
from mmf_win.tracking.mlflow_tracker import MLflowTracker
from mmf_win.tracking.tracker import create_tracker
from mmf_win.tracking.upload import Uploader, UploadOptions, UploadState, load_upload_states
from tests.tracking.conftest import append_events, run_follower
from tests.worlds.browser import launch_browser, requires_browser
from tests.worlds.mlflow_server import MlflowExperiment, requires_mlflow_server
from tests.worlds.proxy import Proxy
from tests.worlds.report_world import SPLIT, START_TIME, ReportWorld, attempt_events
from tests.worlds.tools import MmfwRunner

pytestmark = [pytest.mark.wide, requires_mlflow_server]

# The real follower, killed when it is about to save its upload state for the Nth time.
_KILLED = """\
import os, runpy, signal, sys

left = int(sys.argv.pop(1))

def watch(event, args):
    global left
    if event == "os.rename" and str(args[1]).endswith(".json"):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(watch)
runpy.run_module("mmf_win.tracking.follower", run_name="__main__")
"""


def expected_points(run: Run, name: str, first: int = 0) -> list[tuple[int, int, float]]:
    """Return the expected points of a training series: update, milliseconds and value."""
    events = [event for event in read_events(run.events)[first:] if event["kind"] == "train"]
    return [(event["update"], round(event["t"] * 1000), event[name]) for event in events]


def make_uploader(run: Run, options: UploadOptions | None = None) -> Uploader:
    """Return an uploader in this process."""
    run.tracking.mkdir(exist_ok=True)
    return Uploader(run, create_tracker("mlflow"), options or UploadOptions())


def upload(run: Run) -> bool:
    """Upload the new data."""
    return make_uploader(run).upload_new()


def test_data_of_a_run_is_sent_once(
    world: ReportWorld, mlflow: MlflowExperiment, mmfw: MmfwRunner, tmp_path: Path
) -> None:
    run = world.add_run(overrides=["optimizer.params.lr=5e-5", "env.api_key=hunter2-hunter2", "a.password=pw"])
    csv = world.add_predictions(run)
    scores = {"auroc": 0.71, "f1": 0.5, "threshold": 0.5, "rows": 32, "created": START_TIME + 500.0, "split": SPLIT}
    write_json(metrics_file.metrics_path(csv), {**scores, "members": [{"checkpoint_sha256": "of no checkpoint"}]})
    run.checkpoints.mkdir()
    (run.checkpoints / "config.yaml").write_text("env:\n  api_key: hunter2-hunter2\nlr: 1\n", encoding="utf-8")
    [pushed] = mmfw.json("track", "push", "--to", "mlflow", "--save-dir", world.save)
    stored_run = mlflow.only_run()
    assert pushed["new"] and pushed["id"] == stored_run.info.run_id and stored_run.info.run_name == run.id
    assert mlflow.points("train/loss") == expected_points(run, "loss")
    assert mlflow.points("train/max_mem_mib") == expected_points(run, "max_mem_mib")
    assert [step for step, _, _ in mlflow.points("val/auroc")] == [30, 60, 90, 120]
    assert mlflow.points(f"{SPLIT}/auroc") == [(0, round(1000 * (START_TIME + 500)), 0.71)]
    assert f"{SPLIT}/threshold" not in mlflow.series_names()
    params = stored_run.data.params
    assert (params["preset"], params["optimizer.params.lr"], params["device"]) == ("mmbt_grid", "5e-05", "cuda:0")
    assert (params["env.api_key"], params["a.password"]) == ("<secret>", "<secret>")
    config = mlflow.download_text("config.yaml", tmp_path)
    assert "hunter2" not in config + mlflow.download_text("request.json", tmp_path) and "lr: 1" in config
    names = {f"reports/{csv.name}", f"reports/{metrics_file.metrics_path(csv).name}"}
    assert mlflow.list_files("reports") == names and mlflow.list_files("checkpoints") == set()
    assert (stored_run.info.status, stored_run.data.tags["mmfw.outcome"]) == ("FINISHED", "done")
    [again] = mmfw.json("track", "push", "--to", "mlflow", "--save-dir", world.save)
    assert not again["new"]
    assert mlflow.only_run().to_dictionary() == stored_run.to_dictionary()
    mmfw("track", "status", run.path, "--save-dir", world.save)
    assert "done" in mmfw.out and stored_run.info.run_id in mmfw.out


def test_follower_killed_before_saving_its_state_sends_each_point_once(
    world: ReportWorld, mlflow: MlflowExperiment
) -> None:
    run = world.add_run()
    for kill in range(20):
        append_events(run, attempt_events("1", 120 + 1500 * kill, 120 + 1500 * (kill + 1))[2:])
        arguments = module_command("mmf_win.tracking.follower", "mlflow", str(run.path), "{}")
        command = [sys.executable, "-X", "utf8", "-c", _KILLED, str(3 if kill == 0 else 2), *arguments[7:]]
        killed = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)
        assert killed.returncode == -signal.SIGKILL, killed.stdout
    assert run_follower("mlflow", run).returncode == 0
    for name in ("loss", "lr", "epoch", "updates_per_s"):
        assert mlflow.points(f"train/{name}") == expected_points(run, name)


def test_server_receives_events_from_its_downtime(
    world: ReportWorld, mlflow: MlflowExperiment, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, proxy = world.add_run(), Proxy(server)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", proxy.url)
    script = (
        "import runpy, sys\nfrom mmf_win.tracking import follower\nfollower.POLL_INTERVAL_S = 0.1\n"
        "sys.exit(follower.main())"
    )
    command = [sys.executable, "-X", "utf8", "-c", script, "mlflow", str(run.path), "{}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:

        def wait_for_upload_state(condition: Callable[..., bool]) -> None:
            while not any(map(condition, load_upload_states(run))):
                assert process.poll() is None
                time.sleep(0.02)

        for round_ in range(3):
            wait_for_upload_state(lambda state: state.error is not None)
            append_events(run, attempt_events("1", 120 + 60 * round_, 180 + 60 * round_)[2:])
            events = len(read_events(run.events))
            with proxy.accept_connections():
                wait_for_upload_state(lambda state, count=events: state.events.get("events.jsonl") == count)
                if round_ == 2:
                    process.communicate()
            append_events(run, [{"t": START_TIME, "kind": "note", "attempt": "1", "text": "it is down again"}])
    assert process.returncode == 0
    for name in ("loss", "lr"):
        assert mlflow.points(f"train/{name}") == expected_points(run, name)


def test_run_is_found_by_its_key_after_upload_state_was_lost(world: ReportWorld, mlflow: MlflowExperiment) -> None:
    run = world.add_run()
    assert upload(run)
    before = mlflow.only_run()
    for state_file in run.tracking.glob("*.json"):
        state_file.unlink()
    assert upload(run)
    assert mlflow.points("train/loss") == expected_points(run, "loss")
    assert mlflow.only_run().info.run_id == before.info.run_id


def test_deleted_run_is_created_again(world: ReportWorld, mlflow: MlflowExperiment) -> None:
    run = world.add_run()
    assert upload(run)
    mlflow.client.delete_run(mlflow.only_run().info.run_id)
    assert not upload(run), "the server must not receive a request"
    append_events(run, attempt_events("2", 120, 140))
    assert upload(run)
    assert mlflow.points("train/loss") == expected_points(run, "loss")


def test_resume_from_an_older_checkpoint_starts_another_branch(world: ReportWorld, mlflow: MlflowExperiment) -> None:
    run = world.add_run()
    assert upload(run)
    first = len(read_events(run.events))
    append_events(run, attempt_events("2", 60, 150, seed=1, device="cpu"))
    run.save_request(world_request := run.request())
    assert upload(run)
    assert mlflow.points("train/loss") == expected_points(run, "loss")[:12]
    assert mlflow.points("train/loss/2") == expected_points(run, "loss", first)
    append_events(run, attempt_events("3", 150, 170))  # resumed at the last point, so the branch continues
    append_events(run, attempt_events("4", 100, 120))
    assert upload(run)
    stored_run = mlflow.only_run()
    assert [step for step, _, _ in mlflow.points("train/loss/2")][-3:] == [150, 160, 170]
    assert [step for step, _, _ in mlflow.points("train/loss/3")] == [110, 120]
    assert stored_run.data.tags["resumed_at"] == "60, 100"
    assert (stored_run.data.params["device"], stored_run.data.tags["device"]) == ("cuda:0", "cuda:0")
    assert world_request.created == run.request().created


@pytest.mark.parametrize(
    ("outcome", "status"),
    [(None, "KILLED"), ("interrupted", "KILLED"), ("nan", "FAILED"), ("cuda_oom", "FAILED"), ("ok", "FINISHED")],
)
def test_outcome_of_a_run_becomes_its_status_in_mlflow(
    world: ReportWorld, mlflow: MlflowExperiment, outcome: Any, status: str
) -> None:
    run = world.add_run()
    run.outcome_file.unlink()
    with file_lock(run.training_lock_file):
        assert upload(run)
        assert mlflow.only_run().info.status == "RUNNING"
    if outcome is not None:
        AttemptOutcome(outcome).save(run.outcome_file)
    assert upload(run)
    assert mlflow.only_run().info.status == status
    with file_lock(run.training_lock_file):  # the run is resumed
        assert upload(run)
        assert mlflow.only_run().info.status == "RUNNING"


def test_checkpoint_is_sent_at_most_every_ten_minutes_and_at_the_end(
    world: ReportWorld, mlflow: MlflowExperiment, tmp_path: Path
) -> None:
    run = world.add_run()
    run.checkpoints.mkdir()
    best = run.checkpoints / "best.ckpt"
    best.write_bytes(b"first")
    uploader = make_uploader(run, UploadOptions(models="best"))
    assert uploader.upload_new(600.0)
    assert mlflow.download_text("checkpoints/best.ckpt", tmp_path) == "first"
    best.write_bytes(b"second, which is longer")
    assert not uploader.upload_new(600.0)
    assert uploader.upload_new()
    assert mlflow.download_text("checkpoints/best.ckpt", tmp_path) == "second, which is longer"
    best.write_bytes(b"third")
    uploader.upload_state.models -= 600
    assert not uploader.upload_new(float("inf"))
    assert uploader.upload_new(600.0)
    assert mlflow.download_text("checkpoints/best.ckpt", tmp_path) == "third"


def test_checkpoint_replaced_during_upload_arrives_unchanged(
    world: ReportWorld, mlflow: MlflowExperiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = world.add_run()
    tracker = create_tracker("mlflow")
    run.checkpoints.mkdir()
    last = run.checkpoints / "current.ckpt"
    last.write_bytes(b"old")
    log_artifact = tracker.log_artifact

    def replace_and_log(path: Path, folder: str) -> None:
        if folder == "checkpoints":
            last.with_suffix(".new").write_bytes(b"new")
            last.with_suffix(".new").replace(last)
        log_artifact(path, folder)

    run.tracking.mkdir()
    monkeypatch.setattr(tracker, "log_artifact", replace_and_log)
    assert Uploader(run, tracker, UploadOptions(models="last")).upload_new()
    assert mlflow.download_text("checkpoints/current.ckpt", tmp_path) == "old"
    assert [path.suffix for path in run.tracking.iterdir()] == [".json"]


def test_runs_of_a_sweep_are_its_children(world: ReportWorld, mlflow: MlflowExperiment, mmfw: MmfwRunner) -> None:
    sweep = world.save / "sweeps" / "grid"
    for task in ("lr=1", "lr=2"):
        run = world.add_run(f"sweeps/grid/{task}/mmbt_grid")
        write_yaml(run.path.parents[1] / "param", {"lr": task})
    (sweep / "sweep.yaml").write_text("template: {train: mmfw train x}\n---\nlr: [1, 2]\n", encoding="utf-8")
    pushed = mmfw.json("track", "push", "sweeps/grid", "--to", "mlflow", "--save-dir", world.save)
    assert {upload_record["run"] for upload_record in pushed} == {"sweeps/grid/lr=1", "sweeps/grid/lr=2"}
    runs = {run.info.run_name: run for run in mlflow.runs()}
    parent = runs.pop("sweeps/grid")
    assert len(runs) == 2 and parent.info.status == "FINISHED"
    assert {run.data.tags["mlflow.parentRunId"] for run in runs.values()} == {parent.info.run_id}
    mmfw("sweep", "rm", "grid", "--yes", "--save-dir", world.save)
    assert not sweep.exists()


@requires_browser()
def test_page_of_a_run_shows_the_curve(world: ReportWorld, mlflow: MlflowExperiment, server: str) -> None:
    run = world.add_run()
    assert upload(run)
    info = mlflow.only_run().info
    with launch_browser() as browser:
        page = browser.new_page()
        page.goto(f"{server}/#/experiments/{info.experiment_id}/runs/{info.run_id}/model-metrics")
        page.wait_for_selector("text=loss", timeout=120_000)
        page.wait_for_selector(".plotly .scatterlayer path", timeout=120_000, state="attached")


def test_password_in_the_address_is_in_no_link_and_no_state_file(
    world: ReportWorld, mlflow: MlflowExperiment, server: str, mmfw: MmfwRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = world.add_run()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.replace("//", "//me:hunter2@"))
    mmfw("track", "push", "--to", "mlflow", "--save-dir", world.save, "--json")
    [sent] = load_upload_states(run)
    assert (sent.link or "").startswith(f"{server}/#/") and "hunter2" not in str(sent) + mmfw.out + mmfw.err


@pytest.mark.parametrize("content", [b"{}", b"[]", b"", b"\xff", b'{"members": [], "created": 1, "split": "x"}'])
def test_unreadable_scores_do_not_block_other_data(
    world: ReportWorld, mlflow: MlflowExperiment, content: bytes
) -> None:
    run = world.add_run()
    csv = world.add_predictions(run)
    metrics_file.metrics_path(csv).write_bytes(content)
    assert upload(run)
    assert mlflow.only_run().info.status == "FINISHED" and f"reports/{csv.name}" in mlflow.list_files("reports")


def test_follower_of_a_prediction_does_not_wait_for_a_concurrent_training(
    world: ReportWorld, mlflow: MlflowExperiment
) -> None:
    run = world.add_run()
    with file_lock(run.training_lock_file):
        assert run_follower("mlflow", run, stop_byte=b".").returncode == 0
    assert mlflow.only_run().info.status == "RUNNING"


def test_run_is_not_removed_while_it_is_sent(
    world: ReportWorld, mlflow: MlflowExperiment, mmfw: MmfwRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = world.add_run()
    messages: list[str] = []

    def try_to_remove_run(*_: object) -> None:
        with pytest.raises(InUseError) as error:
            require_unused(run)
        messages.append(str(error.value))

    monkeypatch.setattr(MLflowTracker, "log_metrics", try_to_remove_run)
    mmfw("track", "push", "--to", "mlflow", "--save-dir", world.save)
    assert messages and "is in use by a prediction or an upload" in messages[0]
    require_unused(run)


def test_follower_leaves_the_run_to_another_after_mmfw_ended(world: ReportWorld, mlflow: MlflowExperiment) -> None:
    run = world.add_run()
    with UploadState.load(run, create_tracker("mlflow")).upload_lock(run):
        assert run_follower("mlflow", run).returncode == 0
    assert mlflow.runs() == []


def test_tasks_that_start_together_get_the_same_tracking_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_asking, keys = threading.Event(), list[str]()

    def request_key() -> None:
        is_asking.set()
        keys.append(SweepFolder(tmp_path).ensure_tracking_key())

    other, make_uuid = threading.Thread(target=request_key), uuid.uuid4

    def make_other_key_first() -> uuid.UUID:
        if not is_asking.is_set():
            other.start()
            assert is_asking.wait(60)
        return make_uuid()

    monkeypatch.setattr(folder, "uuid4", make_other_key_first)
    keys.append(SweepFolder(tmp_path).ensure_tracking_key())
    other.join()
    assert len({*keys}) == 1 and len(keys[0]) == 32


def test_names_rejected_by_mlflow_are_replaced(world: ReportWorld, mlflow: MlflowExperiment) -> None:
    run = world.add_run()
    metrics = {"a%b": 0.1, "": 0.2, "../up": 0.3, "a//b": 0.4}
    append_events(run, [{"t": START_TIME, "kind": "val", "attempt": "1", "update": 120, "metrics": metrics}])
    upload(run)
    assert {"val/a_b", "val/_", "val/_/up", "val/a/_/b"} <= mlflow.series_names()
