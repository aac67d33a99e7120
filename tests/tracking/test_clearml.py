"""Runs sent by clearml's real client to a stub of ClearML's servers, and offline sessions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mmf_win.files import remove_tree, write_json
from mmf_win.protocol import AttemptOutcome
from mmf_win.runs.folder import Run
from mmf_win.tracking.tracker import create_tracker
from tests.tracking.conftest import run_follower
from tests.worlds import report_world
from tests.worlds.clearml_stub import ClearMLStub
from tests.worlds.report_world import SPLIT, START_TIME, ReportWorld, attempt_events
from tests.worlds.tools import requires_package

pytestmark = [pytest.mark.wide, requires_package("clearml")]


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClearMLStub]:
    """Return the stub servers."""
    with ClearMLStub.serving(tmp_path / "clearml", monkeypatch) as servers:
        yield servers


def push(world: ReportWorld, *arguments: object, code: int = 0) -> Any:
    """Push missing data in a separate process; return its result, or its error output."""
    command = [sys.executable, "-m", "mmf_win", "track", "push", *map(str, arguments), "--to", "clearml", "--json"]
    environ = {**os.environ, "PYTHONUTF8": "1", "MMFW_PASSWORD": "s3cret-s3cret"}
    ended = subprocess.run(
        [*command, "--save-dir", str(world.save)], capture_output=True, encoding="utf-8", env=environ
    )
    assert ended.returncode == code and "Traceback" not in ended.stderr, ended.stderr
    return ended.stderr if code else json.loads(ended.stdout)


def read_losses(run: Run) -> list[tuple[int, int, float]]:
    """Return update, milliseconds and loss of each training event."""
    lines = map(json.loads, run.events.read_text(encoding="utf-8").splitlines())
    return [(e["update"], round(e["t"] * 1000), e["loss"]) for e in lines if e["kind"] == "train"]


def test_stub_receives_the_data_of_a_run_once(world: ReportWorld, stub: ClearMLStub) -> None:
    run = world.add_predicted_run(overrides=["env.api_token=hunter2-hunter2", "optimizer.params.lr=5e-5"])
    record = {"split": SPLIT, "created": START_TIME + 7.0, "auroc": 0.75, "members": [{"checkpoint_sha256": "x"}]}
    [csv] = run.reports.glob("*.csv")
    write_json(csv.with_suffix(".metrics.json"), record)
    [pushed] = push(world)
    task = stub.task()
    assert (pushed["id"], pushed["new"], task["name"], task["status"]) == (task["id"], True, run.id, "completed")
    assert pushed["link"] == f"http://web.test/projects/*/experiments/{task['id']}"
    assert stub.series("loss", "train") == read_losses(run)
    assert [update for update, _, _ in stub.series("auroc", "val")] == [30, 60, 90, 120]
    assert stub.series("auroc", SPLIT) == [(0, round((START_TIME + 7) * 1000), 0.75)]
    params = stub.hyperparameters("mmfw")
    assert (params["optimizer.params.lr"], params["env.api_token"]) == ("5e-05", "<secret>")
    assert stub.hyperparameters("properties") == {"mmfw.outcome": "done"}
    files = {artifact["key"]: stub.file_content(artifact["uri"]) for artifact in task["execution"]["artifacts"]}
    assert files.keys() == {"request.json", csv.name, csv.with_suffix(".metrics.json").name}
    assert files[csv.name] == csv.read_bytes()
    assert b"<secret>" in files["request.json"] and b"hunter2" not in stub.received_bytes + files["request.json"]
    assert not any(word in stub.received_bytes for word in (b"s3cret", b"--save-dir", b"argv"))
    stub.requests.clear()
    [again] = push(world)
    assert not again["new"] and [action for action, _ in stub.requests] == ["debug.ping"]


def test_stub_has_the_same_task_and_points_after_upload_state_was_lost(world: ReportWorld, stub: ClearMLStub) -> None:
    run = world.add_run()
    [pushed] = push(world)
    before = dict(stub.points)
    remove_tree(run.tracking)
    [again] = push(world)
    assert (again["new"], again["id"]) == (True, pushed["id"]) and stub.points == before and len(stub.tasks) == 1


def test_stub_receives_a_new_branch_as_another_series(world: ReportWorld, stub: ClearMLStub) -> None:
    run = world.add_run()
    push(world)
    report_world.write_events(run, [*attempt_events("1", 0, 120), *attempt_events("2", 60, 120)])
    push(world)
    assert [update for update, _, _ in stub.series("loss", "train/2")] == [70, 80, 90, 100, 110, 120]
    assert len(stub.series("loss", "train")) == 12 and stub.hyperparameters("properties")["resumed_at"] == "60"


def test_stub_keeps_one_model_and_reopens_an_ended_task_for_a_new_one(world: ReportWorld, stub: ClearMLStub) -> None:
    run = world.add_run()
    best = run.checkpoints / "best.ckpt"
    run.checkpoints.mkdir()
    for content in (b"weights", b"better weights"):
        best.write_bytes(content)
        push(world, "--track-models", "best")
        [model], task = stub.models.values(), stub.task()
        assert (stub.file_content(model["uri"]), task["status"]) == (content, "completed")
        assert task["models"]["output"] == [{"name": "best", "model": model["id"]}]


@pytest.mark.parametrize(("outcome", "status"), [("interrupted", "stopped"), (None, "stopped"), ("internal", "failed")])
def test_stub_receives_the_outcome_of_a_run(
    world: ReportWorld, stub: ClearMLStub, outcome: str | None, status: str
) -> None:
    run = world.add_run()
    report_world.write_events(run, attempt_events("1", 0, 120))
    run.outcome_file.unlink()
    if outcome:
        AttemptOutcome(outcome).save(run.outcome_file)  # type: ignore[arg-type]
    push(world)
    assert stub.task()["status"] == status


@pytest.mark.parametrize("refused_action", ["auth.login", "tasks.create", "events.add_batch", "files", "dropped"])
def test_data_rejected_by_a_stub_is_an_error_and_sent_later(
    world: ReportWorld, stub: ClearMLStub, refused_action: str
) -> None:
    run = world.add_run()
    stub.refused_actions.add(refused_action)
    stub.dropped_actions |= {"events.add_batch"} if refused_action == "dropped" else set()
    error = push(world, code=6)
    is_temporary = refused_action in ("files", "dropped")  # the file server returns 500
    later = "again later" if is_temporary else "again after fixing the problem"
    assert later in error and ("does not answer" in error) == (refused_action == "dropped")
    stub.refused_actions.clear()
    stub.dropped_actions.clear()
    [pushed] = push(world)
    task = stub.task()
    assert pushed["new"] and task["status"] == "completed" and stub.series("loss", "train") == read_losses(run)
    assert [artifact["key"] for artifact in task["execution"]["artifacts"]] == ["request.json"]


def test_points_rejected_by_a_stub_are_an_error(world: ReportWorld, stub: ClearMLStub) -> None:
    world.add_run()
    add_batch = stub._events_add_batch
    stub._events_add_batch = lambda lines: add_batch([{**line, "task": "?"} for line in lines])  # type: ignore[method-assign]
    assert "Invalid task id" in push(world, code=6)


def test_unreachable_server_is_an_error_and_recorded_by_a_follower(world: ReportWorld, stub: ClearMLStub) -> None:
    run = world.add_run()
    stub.stop_servers()
    assert "again later" in push(world, code=6)
    assert run_follower("clearml", run).returncode == 3
    [upload_state] = map(json.loads, (file.read_text(encoding="utf-8") for file in run.tracking.glob("*.json")))
    assert upload_state["error"] and upload_state["id"] is None


def test_stub_receives_runs_of_a_sweep_as_its_children(world: ReportWorld, stub: ClearMLStub) -> None:
    sweep = world.save / "sweeps" / "grid"
    for number, task in enumerate(("lr=1", "lr=2")):
        run = world.add_run(f"sweeps/grid/{task}/mmbt_grid", created=START_TIME + number)
        (run.path.parents[1] / "param").write_text("lr: 1\n", encoding="utf-8")
    (sweep / "sweep.yaml").write_text("template: {train: mmfw train x}\n---\nlr: [1, 2]\n", encoding="utf-8")
    push(world, "sweeps/grid")
    parent, *tasks = sorted(stub.tasks.values(), key=lambda task: "parent" in task)
    assert (parent["name"], parent["status"]) == ("sweeps/grid", "completed")
    assert [task["parent"] for task in tasks] == [parent["id"]] * 2


def test_run_of_an_agent_uses_the_agents_task_in_a_stub(
    world: ReportWorld, stub: ClearMLStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add_run()
    task_id = stub._tasks_create(name="queued", tags=["mine"], status="in_progress")["id"]
    monkeypatch.setenv("CLEARML_TASK_ID", task_id)
    monkeypatch.delenv("CLEARML_WEB_HOST")  # so the web interface is unknown
    [pushed] = push(world)
    task = stub.task()
    assert pushed["id"] == task_id and task["name"] == "queued" and "mine" in task["tags"]
    assert pushed["link"] == f"{stub.api_url}/projects/*/experiments/{task_id}"
    monkeypatch.delenv("CLEARML_TASK_ID")
    assert not push(world)[0]["new"]


@pytest.mark.parametrize(
    "text",
    [
        "api {\n  # api_server: http://old\n  api_server: http://other:8008\n}",
        'api.api_server = "http://other:8008"',
        "api { api_server: http://other:8008, web_server: http://web }",
    ],
)
def test_server_is_read_from_clearmls_configuration_file(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "clearml.conf"
    file.write_text(text, encoding="utf-8")
    monkeypatch.setenv("CLEARML_CONFIG_FILE", str(file))
    assert create_tracker("clearml").address == "http://other:8008 hateful-memes"
    file.write_bytes(b"\xff")
    assert create_tracker("clearml").address == "https://api.clear.ml hateful-memes"
    monkeypatch.setenv("CLEARML_API_HOST", "http://this:1")
    monkeypatch.setenv("CLEARML_PROJECT", "mine")
    assert create_tracker("clearml").address == "http://this:1 mine"


def test_offline_session_can_be_imported_into_a_stub(
    world: ReportWorld, stub: ClearMLStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = world.add_run(overrides=["env.api_token=hunter2-hunter2"])
    monkeypatch.setenv("CLEARML_OFFLINE_MODE", "1")
    [lost_session] = push(world)
    assert not push(world)[0]["new"]
    session = Path(lost_session["link"])
    remove_tree(session)
    (run.checkpoints / "config.yaml").parent.mkdir()
    (run.checkpoints / "config.yaml").write_text("lr: 1\n", encoding="utf-8")
    [pushed] = push(world)
    assert pushed["link"] == lost_session["link"] and pushed["id"] != lost_session["id"]
    stored_task = json.loads((session / "task.json").read_text(encoding="utf-8"))
    assert (
        stored_task["id"] == pushed["id"] and stored_task["hyperparams"]["mmfw"]["env.api_token"]["value"] == "<secret>"
    )
    assert stub.requests == []
    monkeypatch.delenv("CLEARML_OFFLINE_MODE")
    imports = "import sys; from clearml import Task; Task.import_offline_session(sys.argv[1])"
    ended = subprocess.run([sys.executable, "-c", imports, str(session)], capture_output=True, encoding="utf-8")
    assert ended.returncode == 0, ended.stderr
    task = stub.task()
    assert (task["name"], task["status"], task["tags"]) == (run.id, "completed", stored_task["tags"])
    assert stub.series("loss", "train") == read_losses(run) and stub.hyperparameters("mmfw")["preset"] == "mmbt_grid"
    files = {artifact["key"]: stub.file_content(artifact["uri"]) for artifact in task["execution"]["artifacts"]}
    assert files.keys() == {"config.yaml", "request.json"} and b"<secret>" in files["request.json"]
