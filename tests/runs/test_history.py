"""Listing, selection and state of runs."""

import errno
import json
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from mmf_win.console import print_json
from mmf_win.errors import CheckpointError, DataError, UsageError
from mmf_win.files import write_json
from mmf_win.locking import file_lock
from mmf_win.protocol import AttemptOutcome, AttemptRequest, OutcomeKind
from mmf_win.protocol.attempt import PredictTask, TrainTask
from mmf_win.runs import checkpoints, history, lookup
from mmf_win.runs.folder import Run
from mmf_win.runs.request import RunRequest
from tests.worlds.event_log import EventLog
from tests.worlds.memes import RUN_SPLITS
from tests.worlds.tools import MmfwRunner
from tests.worlds.torch_files import write_checkpoint


def make_run(save: Path, run_id: str, preset: str = "mmbt_grid") -> Run:
    run = Run(save / run_id)
    run.path.mkdir(parents=True)
    run.save_request(RunRequest(preset=preset, model="mmbt", splits=RUN_SPLITS, data_dir="data", created=1_000_000.0))
    return run


def write_events(run: Run, *entries: dict[str, object]) -> None:
    log = EventLog(run.events, "1")
    for entry in entries:
        log.write(**entry)  # type: ignore[arg-type]


def test_runs_are_listed_newest_first_regardless_of_name(tmp_path: Path) -> None:
    make_run(tmp_path, "a/2026-01-02T00-00-00")
    make_run(tmp_path, "b/2026-01-03T00-00-00")
    make_run(tmp_path, "c/2026-01-01T00-00-00")
    (tmp_path / "d" / "no run").mkdir(parents=True)
    assert [run.path.parent.name for run in lookup.list_runs(tmp_path)] == ["b", "a", "c"]


def test_run_is_found_by_name_id_or_time_and_defaults_to_newest(tmp_path: Path) -> None:
    make_run(tmp_path, "a/2026-01-01T00-00-00")
    newest_of_a = make_run(tmp_path, "a/2026-01-02T00-00-00")
    newest = make_run(tmp_path, "b/2026-01-03T00-00-00")
    for spec in ("a", "a/2026-01-02T00-00-00", "2026-01-02T00-00-00"):
        assert lookup.find_run(tmp_path, spec) == newest_of_a
    assert lookup.find_run(tmp_path, None) == newest
    assert lookup.find_first_usable_run(tmp_path, None, lambda run: run, "mmbt_grid") == newest


def test_times_of_run_are_iso_dates_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path, "a/2026-01-01T00-00-00")
    write_events(run, {"kind": "run_started", "t": 1e9})
    print_json(history.describe_run(history.RunRecord.read(run)))
    description = json.loads(capsys.readouterr().out)
    assert description["started"] == "1970-01-12T13:46:40+00:00"
    assert description["attempts"] == [{"attempt": "1", "t": "2001-09-09T01:46:40+00:00"}]


def test_run_is_found_by_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path, "Память/2026-01-01T00-00-00")
    assert lookup.find_run(tmp_path / "elsewhere", str(run.path)) == run
    run.reports.mkdir()
    monkeypatch.chdir(run.reports)
    assert lookup.find_run(tmp_path, "..").id == run.id


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no flock to patch")
def test_run_on_fake_disk_without_locks_is_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make_flock_fail(code: int) -> None:
        def flock(*_: object) -> NoReturn:
            raise OSError(code, "refused")

        monkeypatch.setattr("fcntl.flock", flock)

    run = make_run(tmp_path, "a/2026-01-01T00-00-00")
    run.training_lock_file.touch()
    AttemptOutcome("ok").save(run.outcome_file)
    make_flock_fail(errno.ENOLCK)
    assert history.run_state(run) == "done"
    make_flock_fail(errno.EIO)
    with pytest.raises(OSError, match="refused"):
        history.run_state(run)


@pytest.mark.parametrize("spec", [None, "a"])
def test_newest_usable_run_is_used_and_skipped_runs_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spec: str | None
) -> None:
    make_run(tmp_path, "a/2026-01-01T00-00-00")
    usable = make_run(tmp_path, "a/2026-01-02T00-00-00")
    empty = make_run(tmp_path, "a/2026-01-03T00-00-00")
    broken = make_run(tmp_path, "a/2026-01-04T00-00-00")
    write_checkpoint(usable.checkpoints / "best.ckpt", 4)
    broken.request_file.write_text("[", encoding="utf-8")

    def use(run: Run) -> Path:
        run.request()
        return checkpoints.select_checkpoint(run, "last").path

    assert lookup.find_first_usable_run(tmp_path, spec, use) == usable.checkpoints / "best.ckpt"
    assert all(run.id in caplog.text for run in (usable, empty, broken))
    assert f"skipping run {empty.id}: has no checkpoint" in caplog.text and "request.json" in caplog.text
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        lookup.find_first_usable_run(tmp_path, empty.id, use)


def test_run_with_unreadable_files_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    usable = make_run(tmp_path, "a/2026-01-01T00-00-00")
    unreadable = make_run(tmp_path, "a/2026-01-02T00-00-00")

    def use(run: Run) -> Run:
        if run == unreadable:
            raise PermissionError(errno.EACCES, "Permission denied", str(run.events))
        return run

    assert lookup.find_first_usable_run(tmp_path, None, use) == usable
    assert f"skipping run {unreadable.id}" in caplog.text and "Permission denied" in caplog.text


def test_error_without_usable_run_is_that_of_newest_run(tmp_path: Path) -> None:
    for second in range(3):
        make_run(tmp_path, f"a/2026-01-01T00-00-0{second}")

    def use(run: Run) -> Run:
        raise DataError(f"{run.id} is damaged")

    with pytest.raises(DataError, match="2026-01-01T00-00-02 is damaged"):
        lookup.find_first_usable_run(tmp_path, None, use)


def test_missing_run_is_an_error_with_hint(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no run yet"):
        lookup.find_run(tmp_path, None)
    with pytest.raises(UsageError, match="no run named x") as caught:
        lookup.find_run(tmp_path, "x")
    assert "mmfw runs" in str(caught.value.hint)


def test_summary_has_progress_and_score(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a/2026-01-01T00-00-00")
    write_events(
        run,
        {"kind": "run_started"},
        {"kind": "train_started", "update": 0, "max_updates": 30},
        {"kind": "val", "update": 10, "metrics": {"auroc": 0.7}},
        {"kind": "val", "update": 20, "metrics": {"auroc": 0.6, "unheard of": 1}},
        {"kind": "of a later version", "whatever": True},
    )
    with file_lock(run.training_lock_file):
        summary = history.RunRecord.read(run).summary
    assert (summary.state, summary.updates, summary.max_updates) == ("running", 20, 30)
    assert summary.best_auroc == 0.7


def test_annotations_changed_since_training_are_reported(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a/2026-01-01T00-00-00")
    data = {"split": "train", "rows": 3, "full_rows": 3, "sha256": "1"}
    write_events(run, {"kind": "train_started", "update": 0, "max_updates": 30, "data": data})
    write_events(run, {"kind": "val", "update": 1, "metrics": {}, "data": {**data, "split": "dev"}})
    assert history.find_changed_splits(run, {"train": data, "val": data}) == []
    assert history.find_changed_splits(run, {"train": data, "val": {**data, "sha256": "2"}}) == ["dev"]
    assert history.find_changed_splits(run, {"train": {"sha256": "2"}}) == ["train"]


@pytest.mark.parametrize(
    ("outcome", "state"),
    [("ok", "done"), ("interrupted", "interrupted"), ("cuda_oom", "failed: cuda_oom"), (None, "killed")],
)
def test_state_of_unlocked_run_comes_from_its_outcome(tmp_path: Path, outcome: OutcomeKind | None, state: str) -> None:
    run = make_run(tmp_path, "a/2026-01-01T00-00-00")
    if outcome is not None:
        AttemptOutcome(outcome).save(run.outcome_file)
    assert history.RunRecord.read(run).summary.state == state


def test_outcome_of_run_is_that_of_last_training_attempt(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a/2026-01-01T00-00-00")
    AttemptOutcome("nan").save(run.path / "exit.json")  # like an earlier version, whose requests have no kind
    run.attempt(1).path.mkdir(parents=True)
    write_json(run.attempt(1).request_file, {"action": "train"})
    states = [history.run_state(run)]
    tasks = [TrainTask(), PredictTask("test.jsonl"), TrainTask()]
    for number, (task, outcome) in enumerate(zip(tasks, ("interrupted", "ok", None), strict=True), 9):
        run.attempt(number).path.mkdir()
        AttemptRequest(task, "mmbt", "mmf", str(run.attempt(number).path)).save()
        (run.path / "exit.json").unlink(missing_ok=True)  # the next training removes the file too
        if outcome is not None:
            AttemptOutcome(outcome).save(run.attempt(number).outcome_file)  # type: ignore[arg-type]
        states.append(history.run_state(run))
    assert states == ["failed: nan", "interrupted", "interrupted", "killed"]
    record = history.RunRecord.read(run)
    assert [record.attempt_outcome(str(number)) for number in (9, 10, 11)] == ["interrupted", "ok", None]


@pytest.mark.parametrize("content", [b"", b"{", b'{"kind": 5}', b"\x00\xff"])
def test_damaged_attempt_request_does_not_change_outcome_of_run(tmp_path: Path, content: bytes) -> None:
    run = make_run(tmp_path, "a/2026-01-01T00-00-00")
    states = []
    for number, (task, outcome) in enumerate([(TrainTask(), "nan"), (PredictTask("test.jsonl"), "ok")], 1):
        attempt = run.attempt(number)
        attempt.path.mkdir(parents=True)
        if isinstance(task, PredictTask):
            attempt.raw_predictions.mkdir()
        attempt.request_file.write_bytes(content)
        AttemptOutcome(outcome).save(attempt.outcome_file)  # type: ignore[arg-type]
        states.append(history.run_state(run))
    assert states == ["failed: nan", "failed: nan"]


def test_legacy_outcome_file_takes_precedence(tmp_path: Path) -> None:
    """The attempts are not read, and may be missing or damaged."""
    run = make_run(tmp_path, "a/2026-01-01T00-00-00")
    run.attempt(1).path.mkdir(parents=True)
    AttemptRequest(TrainTask(), "mmbt", "mmf", str(run.attempt(1).path)).save()
    run.attempt(1).outcome_file.write_text("{", encoding="utf-8")
    AttemptOutcome("interrupted").save(run.path / "exit.json")
    assert history.run_state(run) == "interrupted"


def test_damaged_outcome_is_an_error_and_run_counts_as_killed_without_it(tmp_path: Path, mmfw: MmfwRunner) -> None:
    run = make_run(tmp_path, "a/2026-01-01T00-00-00")
    run.outcome_file.write_text('{"outcome": 3}', encoding="utf-8")
    mmfw("runs", "show", str(run.path), code=3)
    assert f"error: {run.outcome_file}: " in mmfw.err and "$.outcome" in mmfw.err
    assert "hint: remove the file" in mmfw.err
    run.outcome_file.unlink()
    assert mmfw.json("runs", "show", str(run.path))["state"] == "killed"


def test_only_numeric_names_are_attempts(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a/2026-01-01T00-00-00")
    run.attempt(1).path.mkdir(parents=True)
    AttemptRequest(TrainTask(), "mmbt", "mmf", str(run.attempt(1).path)).save()
    AttemptOutcome("interrupted").save(run.attempt(1).outcome_file)
    for name in ("x", "²", "٣", "10.bak", "007"):
        run.attempt(name).path.mkdir()
    run.attempt(9).path.write_text("a file", encoding="utf-8")
    assert (history.run_state(run), run.create_attempt().path.name) == ("interrupted", "10")


def test_duration_includes_attempts_that_failed_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, "a/2026-01-01T00-00-00")
    run.attempt(1).path.mkdir(parents=True)
    request = AttemptRequest(TrainTask(), "mmbt", "mmf", str(run.attempt(1).path))
    times = iter((1_000.0, 1_005.0))
    monkeypatch.setattr("mmf_win.protocol.attempt.time.time", lambda: next(times))
    request.save()
    request.write_event("run_started")
    AttemptOutcome("config").record(request)
    monkeypatch.undo()
    assert history.RunRecord.read(run).summary.seconds == 5.0


def test_invalid_events_do_not_break_the_list(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a/2026-01-01T00-00-00")
    lines = [
        '{"kind": "run_started", "attempt": "1"}',
        '{"t": 5, "kind": "val", "attempt": "1", "metrics": null}',
        '{"t": 7, "kind": "val", "attempt": "1", "metrics": {"auroc": NaN}}',
        '{"t": 9, "kind": "val", "attempt": "1", "metrics": {"auroc": 0.75}}',
    ]
    run.events.write_text("\n".join([*lines, ""]), encoding="utf-8")
    [summary] = history.summarize_runs(tmp_path)
    assert (summary.best_auroc, summary.seconds) == (0.75, 4.0)


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege on Windows")
def test_parent_of_symbolic_link_is_resolved(tmp_path: Path) -> None:
    near = make_run(tmp_path, "near/2026-01-01T00-00-00")
    far = make_run(tmp_path, "far/2026-01-01T00-00-00")
    (near.path.parent / "in").symlink_to(far.path)
    path = near.path.parent / "in" / ".." / near.path.name
    assert lookup.find_run(tmp_path, str(path)) == far
