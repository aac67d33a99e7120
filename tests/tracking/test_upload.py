"""Upload of a run to a recording tracker: data that arrives, how often, and data sent after a failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mmf_win.files import read_json, write_json
from mmf_win.locking import file_lock
from mmf_win.results import metrics_file
from mmf_win.runs.folder import Run
from mmf_win.tracking.upload import Uploader, UploadOptions, UploadState, load_upload_states
from tests.tracking.conftest import append_events
from tests.worlds.recording_tracker import BufferingTracker, RecordingTracker
from tests.worlds.report_world import SPLIT, START_TIME, ReportWorld, attempt_events

LOGGED_UPDATES = list(range(10, 121, 10))
"""Updates of the training points in a run of ``world``."""


@pytest.fixture
def tracker() -> RecordingTracker:
    """Return a tracker without data."""
    return RecordingTracker()


@pytest.fixture
def run(world: ReportWorld) -> Run:
    """Return a finished run of 120 updates that was not sent to a tracker."""
    run = world.add_run()
    run.tracking.mkdir()
    return run


def upload(run: Run, tracker: RecordingTracker, **options: Any) -> bool:
    """Upload new data like a new process, which has only the upload state on disk."""
    return Uploader(run, tracker, UploadOptions(**options)).upload_new()


def read_upload_state(run: Run) -> dict[str, Any]:
    """Return the upload state on disk."""
    [file] = run.tracking.glob("*.json")
    return dict(read_json(file))


def test_finished_run_arrives_with_its_points_settings_files_and_state(run: Run, tracker: RecordingTracker) -> None:
    assert upload(run, tracker)
    assert tracker.steps("train/loss") == LOGGED_UPDATES
    assert tracker.steps("val/auroc") == [30, 60, 90, 120]
    assert tracker.sent_points[0].t == START_TIME + 1010
    assert tracker.settings["preset"] == "mmbt_grid" and tracker.settings["device"] == "cuda:0"
    assert tracker.tags == {"mmfw.outcome": "done"}
    assert set(tracker.files) == {"request.json"}
    assert tracker.states == ["running", "done"]
    [sent] = load_upload_states(run)
    assert (sent.id, sent.state, sent.error) == ("run 1", "done", None)


def test_run_of_an_earlier_version_continues_its_series(run: Run, tracker: RecordingTracker) -> None:
    """The worker keeps the metric names of the run's events, and so does the tracker."""
    run.events.unlink()
    for name, first, last in (("1", 0, 30), ("2", 30, 60)):
        events_of_attempt = attempt_events(name, first, last)
        for event in events_of_attempt:
            if event["kind"] == "val":
                event["metrics"] = {"hateful_memes/roc_auc": 0.5, "total_loss": 0.7}
        append_events(run, events_of_attempt)
        upload(run, tracker)
    assert tracker.steps("val/hateful_memes/roc_auc") == tracker.steps("val/total_loss") == [30, 60]
    assert not tracker.steps("val/auroc")


def test_data_that_arrived_is_not_sent_twice(run: Run, tracker: RecordingTracker) -> None:
    assert upload(run, tracker)
    calls = tracker.call_count
    assert not upload(run, tracker)
    assert tracker.call_count == calls, "the tracker must not be called"


@pytest.mark.parametrize("process", ["the same", "a new one"])
def test_only_new_events_are_sent(run: Run, tracker: RecordingTracker, process: str) -> None:
    uploader = Uploader(run, tracker, UploadOptions())
    assert uploader.upload_new() and not uploader.upload_new()
    append_events(run, attempt_events("2", 120, 150))
    assert uploader.upload_new() if process == "the same" else upload(run, tracker)
    assert tracker.steps("train/loss") == [*LOGGED_UPDATES, 130, 140, 150]


@pytest.mark.parametrize(
    ("resumed_at", "series", "tag"),
    [(120, "train/loss", None), (110, "train/loss/2", "110"), (60, "train/loss/2", "60")],
)
def test_resume_before_the_last_point_starts_another_series(
    run: Run, tracker: RecordingTracker, resumed_at: int, series: str, tag: str | None
) -> None:
    upload(run, tracker)
    append_events(run, attempt_events("2", resumed_at, resumed_at + 20))
    upload(run, tracker)
    expected = LOGGED_UPDATES if series == "train/loss" else []
    assert tracker.steps(series) == [*expected, resumed_at + 10, resumed_at + 20]
    assert tracker.steps("train/loss")[:12] == LOGGED_UPDATES
    assert tracker.tags.get("resumed_at") == tag


def test_file_that_failed_to_arrive_is_sent_again(run: Run, tracker: RecordingTracker) -> None:
    tracker.failing_methods = {"file request.json"}
    with pytest.raises(ConnectionError):
        upload(run, tracker)
    assert "request.json" not in read_upload_state(run)["files"]
    assert [path.suffix for path in run.tracking.iterdir()] == [".json"], "the copy must be removed"
    tracker.failing_methods = set()
    assert upload(run, tracker)
    assert tracker.files == {"request.json": [run.request_file.read_bytes()]}
    assert tracker.steps("train/loss") == LOGGED_UPDATES, "points that had arrived must not be sent again"


@pytest.mark.parametrize("method", ["open", "describe", "points", "state running", "state done"])
def test_after_a_failure_the_rest_is_sent_once(run: Run, tracker: RecordingTracker, method: str) -> None:
    tracker.failing_methods = {method}
    with pytest.raises(ConnectionError):
        upload(run, tracker)
    assert all(sent.state != "done" for sent in load_upload_states(run))
    tracker.failing_methods = set()
    assert upload(run, tracker)
    assert tracker.steps("train/loss") == LOGGED_UPDATES
    assert len(tracker.files["request.json"]) == 1
    assert tracker.tags == {"mmfw.outcome": "done"} and tracker.states[-1] == "done"
    assert not upload(run, tracker)


def test_events_sent_before_a_failure_are_not_sent_again(
    run: Run, tracker: RecordingTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_events(run, attempt_events("2", 120, 20_000))
    log_metrics, requests = tracker.log_metrics, []

    def fail_the_second(points: Any) -> None:
        requests.append(len(points))
        if len(requests) == 2:
            raise ConnectionError
        log_metrics(points)

    monkeypatch.setattr(tracker, "log_metrics", fail_the_second)
    with pytest.raises(ConnectionError):
        upload(run, tracker)
    assert 0 < read_upload_state(run)["events"]["events.jsonl"] < 20_000 / 10
    assert upload(run, tracker)
    assert tracker.steps("train/loss") == list(range(10, 20_001, 10))


def test_copy_left_by_a_killed_process_blocks_nothing(run: Run, tracker: RecordingTracker) -> None:
    stale_copy = run.tracking / f"{UploadState.load(run, tracker).file_stem}.staged"
    stale_copy.mkdir()
    (stale_copy / "request.json").write_text("half a cop", encoding="utf-8")
    assert upload(run, tracker)
    assert tracker.files == {"request.json": [run.request_file.read_bytes()]}
    assert not stale_copy.exists()


@pytest.mark.parametrize("damage", [None, b"", b'{"events": '])
def test_all_data_is_sent_again_if_upload_state_is_unreadable(
    run: Run, tracker: RecordingTracker, damage: bytes | None
) -> None:
    upload(run, tracker)
    [state_file] = run.tracking.glob("*.json")
    state_file.unlink() if damage is None else state_file.write_bytes(damage)
    again = RecordingTracker()
    assert upload(run, again)
    assert again.sent_points == tracker.sent_points and again.files == tracker.files
    assert again.opened_runs == tracker.opened_runs


def test_deleted_run_is_sent_again_once_it_has_new_data(run: Run, tracker: RecordingTracker) -> None:
    upload(run, tracker)
    again = RecordingTracker()
    again.run_id = "run 2"
    assert not upload(run, again)
    append_events(run, attempt_events("2", 120, 140))
    assert upload(run, again)
    assert again.steps("train/loss") == [*LOGGED_UPDATES, 130, 140] and set(again.files) == {"request.json"}
    assert [sent.id for sent in load_upload_states(run)] == ["run 2"]


def test_upload_state_of_a_buffering_tracker_is_saved_on_close(run: Run) -> None:
    tracker = BufferingTracker()
    tracker.failing_methods = {"close"}
    uploader = Uploader(run, tracker, UploadOptions())
    assert uploader.upload_new()
    with pytest.raises(ConnectionError):
        uploader.close()
    assert (read_upload_state(run)["events"], read_upload_state(run)["files"]) == ({}, {})
    again = BufferingTracker()
    uploader = Uploader(run, again, UploadOptions())
    assert uploader.upload_new()
    uploader.close()
    assert again.steps("train/loss") == LOGGED_UPDATES
    assert not upload(run, again)


def test_secrets_are_masked_in_settings_and_files(world: ReportWorld, tracker: RecordingTracker) -> None:
    run = world.add_run(overrides=["env.api_key=hunter2-hunter2", "optimizer.params.lr=5e-5"])
    run.tracking.mkdir()
    run.checkpoints.mkdir()
    config = run.checkpoints / "config.yaml"
    config.write_text("env:\n  api_key: hunter2-hunter2\nlr: 1\n", encoding="utf-8")
    upload(run, tracker)
    assert tracker.settings["env.api_key"] == "<secret>"
    assert tracker.settings["optimizer.params.lr"] == "5e-05"
    [sent] = tracker.files["config.yaml"]
    assert b"lr: 1" in sent and b"hunter2" not in sent + tracker.files["request.json"][0]


def test_nonfinite_values_are_not_sent(run: Run, tracker: RecordingTracker) -> None:
    metrics = {"nan": float("nan"), "inf": float("inf"), "huge": 1e308, "text": "x", "flag": True, "fine": 1}
    append_events(run, [{"t": START_TIME, "kind": "val", "attempt": "1", "update": 120, "metrics": metrics}])
    upload(run, tracker)
    sent = {point.name for point in tracker.sent_points if point.name.startswith("val/")}
    assert sent & {f"val/{name}" for name in metrics} == {"val/fine"}


def test_checkpoint_is_sent_again_only_after_the_interval(run: Run, tracker: RecordingTracker) -> None:
    run.checkpoints.mkdir()
    best = run.checkpoints / "best.ckpt"
    best.write_bytes(b"first")
    uploader = Uploader(run, tracker, UploadOptions(models="best"))
    assert uploader.upload_new(3600.0)
    best.write_bytes(b"the second")
    assert not uploader.upload_new(3600.0)
    assert uploader.upload_new()
    assert tracker.files["checkpoints/best.ckpt"] == [b"first", b"the second"]


def test_final_checkpoint_is_sent_even_if_the_clock_has_not_moved(
    run: Run, tracker: RecordingTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of Windows advances every 16 ms."""
    run.checkpoints.mkdir()
    last = run.checkpoints / "current.ckpt"
    monkeypatch.setattr("mmf_win.tracking.upload.time.time", lambda: START_TIME + 2000.0)
    uploader = Uploader(run, tracker, UploadOptions(models="last"))
    for content in (b"first", b"the second"):
        last.write_bytes(content)
        assert uploader.upload_new()
    assert tracker.files["checkpoints/current.ckpt"] == [b"first", b"the second"]


def test_scores_carry_the_update_of_their_checkpoint(world: ReportWorld, run: Run, tracker: RecordingTracker) -> None:
    saves = [("older", 60, False), ("best", 90, True)]
    events = [{"sha256": sha256, "update": update, "best": is_best} for sha256, update, is_best in saves]
    append_events(run, [{"t": START_TIME, "kind": "checkpoint", "attempt": "1", **event} for event in events])
    for number, (sha256, _, _) in enumerate(saves):
        scores = {"auroc": 0.7, "threshold": 0.5, "created": START_TIME + number, "split": SPLIT}
        record = {**scores, "members": [{"checkpoint_sha256": sha256}]}
        write_json(metrics_file.metrics_path(run.reports / f"{number}.csv"), record)
    upload(run, tracker)
    points = {(point.name, point.step) for point in tracker.sent_points if point.name.startswith(SPLIT)}
    assert points == {(f"{SPLIT}/update 60/auroc", 60), (f"{SPLIT}/auroc", 90)}


def test_resumed_run_is_running_again(run: Run, tracker: RecordingTracker) -> None:
    upload(run, tracker)
    with file_lock(run.training_lock_file):
        assert upload(run, tracker)
    assert tracker.states == ["running", "done", "running"]
    assert upload(run, tracker)
    assert tracker.states[-1] == "done"


def test_page_is_sent_only_on_request(run: Run, tracker: RecordingTracker) -> None:
    page: Path = run.reports / "page.html"
    page.write_text("<html>", encoding="utf-8")
    upload(run, tracker)
    assert "reports/page.html" not in tracker.files
    upload(run, tracker, pages=True)
    assert tracker.files["reports/page.html"] == [b"<html>"]


def test_state_file_of_an_unsent_wandb_run_is_ignored(run: Run, tracker: RecordingTracker) -> None:
    upload(run, tracker)
    [state_file] = run.tracking.glob("*.json")
    write_json(state_file, {**read_upload_state(run), "link": None})
    again = RecordingTracker()
    assert load_upload_states(run) == [] and upload(run, again)
    assert again.sent_points == tracker.sent_points
