"""Errors and hints for each outcome of an attempt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mmf_win.protocol import AttemptOutcome, AttemptRequest, OutcomeKind
from mmf_win.protocol.attempt import CheckTask, PredictTask, TrainTask
from mmf_win.runs.folder import Run
from mmf_win.runs.outcomes import determine_outcome, outcome_error
from mmf_win.supervise import ChildExit
from tests.worlds.torch_files import write_checkpoint


def make_request(run: Run) -> AttemptRequest:
    return AttemptRequest(TrainTask(), "mmbt", "mmf", attempt_dir=str(run.path / "attempts" / "1"))


def ensure_run(folder: Path) -> Run:
    """Create the folder of the only run if it does not exist, and return the run."""
    run = Run(folder / "save" / "mmbt" / "2026-01-01T00-00-00")
    run.path.mkdir(parents=True, exist_ok=True)
    return run


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        ("interrupted", 130),
        ("cuda_oom", 7),
        ("host_oom", 5),
        ("disk", 5),
        ("nan", 7),
        ("killed", 7),
        ("data", 3),
        ("checkpoint", 3),
        ("config", 2),
        ("mmf", 6),
        ("network", 6),
        ("internal", 7),
    ],
)
def test_each_outcome_has_its_exit_code_and_names_the_log(tmp_path: Path, outcome: OutcomeKind, code: int) -> None:
    run = ensure_run(tmp_path)
    write_checkpoint(run.checkpoints / "current.ckpt", 3)
    error = outcome_error(AttemptOutcome(outcome, "why"), make_request(run))
    assert error.exit_code == code
    assert str(error) == "why"
    hint = str(error.hint)
    assert "log.txt" in hint or "--resume last" in hint


@pytest.mark.parametrize("outcome", ["disk", "nan", "killed", "interrupted"])
def test_hint_without_saved_state_is_to_start_over(tmp_path: Path, outcome: OutcomeKind) -> None:
    hint = str(outcome_error(AttemptOutcome(outcome, "why"), make_request(ensure_run(tmp_path))).hint)
    assert "the same command" in hint
    assert "--resume" not in hint and "checkpoint" not in hint


@pytest.mark.parametrize("outcome", ["interrupted", "killed"])
def test_hint_names_older_run_by_id(tmp_path: Path, outcome: OutcomeKind) -> None:
    older, newest = (Run(tmp_path / "mmbt" / f"2026-01-0{day}T00-00-00") for day in (1, 2))
    for run in (older, newest):
        write_checkpoint(run.checkpoints / "current.ckpt", 3)
        run.request_file.write_text("{}")
    hints = [str(outcome_error(AttemptOutcome(outcome, "why"), make_request(run)).hint) for run in (older, newest)]
    assert "--resume mmbt/2026-01-01T00-00-00 " in hints[0]
    assert "--resume last " in hints[1]


def test_hint_of_outcome_is_kept_and_internal_error_names_location(tmp_path: Path) -> None:
    error = outcome_error(AttemptOutcome("data", "why", "see {folder}"), make_request(ensure_run(tmp_path)))
    assert error.hint is not None and error.hint.startswith("see {folder}; ")
    outcome = AttemptOutcome("internal", "ValueError: x", source_location="base_trainer.py:253")
    assert str(outcome_error(outcome, make_request(ensure_run(tmp_path)))) == "ValueError: x (at base_trainer.py:253)"


def test_hint_for_file_size_limit_depends_on_checkpoint(tmp_path: Path) -> None:
    outcome = AttemptOutcome("disk", "File too large", "see ulimit -f")
    before = outcome_error(outcome, make_request(ensure_run(tmp_path))).hint
    write_checkpoint(ensure_run(tmp_path).checkpoints / "current.ckpt", 3)
    after = outcome_error(outcome, make_request(ensure_run(tmp_path))).hint
    assert before is not None and before.startswith("see ulimit -f; run the same command again to start over; ")
    assert after is not None and "--resume last" in after and "the last intact checkpoint with `mmfw train" in after


@pytest.mark.parametrize(
    ("child_exit", "memory_ran_out", "outcome"),
    [
        (ChildExit(-9, stop_requested=False, killed=False), True, "host_oom"),
        (ChildExit(-9, stop_requested=False, killed=False), False, "killed"),
        (ChildExit(-9, stop_requested=True, killed=True), True, "interrupted"),
        (ChildExit(-9, stop_requested=True, killed=False), True, "interrupted"),
        (ChildExit(-2, stop_requested=True, killed=False), False, "interrupted"),  # by Ctrl+C right after the start
        (ChildExit(-15, stop_requested=True, killed=False), False, "interrupted"),
        (ChildExit(-2, stop_requested=False, killed=False), False, "internal"),
        (ChildExit(-7, stop_requested=False, killed=False), False, "host_oom"),
        (ChildExit(1, stop_requested=False, killed=False), True, "internal"),
    ],
)
def test_outcome_is_determined_from_exit_code(
    tmp_path: Path, child_exit: ChildExit, memory_ran_out: bool, outcome: OutcomeKind
) -> None:
    request = make_request(ensure_run(tmp_path))
    request.folder.path.mkdir(parents=True)
    request.save()
    request.folder.outcome_file.write_text("{half an", encoding="utf-8")
    assert determine_outcome(request, child_exit, memory_ran_out=memory_ran_out).kind == outcome
    assert AttemptOutcome.load(ensure_run(tmp_path).outcome_file) is not None, "the run must record the outcome"


def test_outcome_that_cannot_be_saved_is_still_returned(tmp_path: Path) -> None:
    request = make_request(ensure_run(tmp_path))
    request.folder.outcome_file.mkdir(parents=True)
    request.folder.reserve_file.touch()
    killed = ChildExit(-9, stop_requested=False, killed=False)
    assert determine_outcome(request, killed, memory_ran_out=True).kind == "host_oom"
    assert not request.folder.reserve_file.exists(), "the reserved space must be released"


@pytest.mark.parametrize(
    ("log_text", "outcome"),
    [
        ("terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n", "host_oom"),
        ("OSError: [Errno 12] Cannot allocate memory\n", "host_oom"),
        ("MemoryError\n" + "an earlier worker's, long before\n" * 20, "internal"),
    ],
)
def test_out_of_memory_is_recognized_in_end_of_log(tmp_path: Path, log_text: str, outcome: OutcomeKind) -> None:
    request = make_request(ensure_run(tmp_path))
    request.folder.path.mkdir(parents=True)
    request.save()
    request.log.write_text(log_text, encoding="utf-8")
    aborted = ChildExit(-6, stop_requested=False, killed=False)
    assert determine_outcome(request, aborted, memory_ran_out=False).kind == outcome
    saved_outcome = AttemptOutcome.load(request.folder.outcome_file)
    assert saved_outcome is not None and saved_outcome.kind == outcome, "a report must show the same outcome"


def test_hint_for_prediction_on_full_disk_is_to_free_space_and_start_over(tmp_path: Path) -> None:
    request = replace(make_request(ensure_run(tmp_path)), task=PredictTask(""))
    write_checkpoint(ensure_run(tmp_path).checkpoints / "current.ckpt", 3)
    hint = str(outcome_error(AttemptOutcome("disk", "the disk is full"), request).hint)
    assert "free some space" in hint and "the same command" in hint and "--resume" not in hint


@pytest.mark.parametrize("outcome", ["cuda_oom", "host_oom"])
def test_out_of_memory_after_stop_request_counts_as_interrupted(tmp_path: Path, outcome: OutcomeKind) -> None:
    request = make_request(ensure_run(tmp_path))
    request.folder.path.mkdir(parents=True)
    request.save()
    AttemptOutcome(outcome, "no memory").save(request.folder.outcome_file)
    stopped = ChildExit(1, stop_requested=True, killed=False)
    assert determine_outcome(request, stopped, memory_ran_out=False).kind == "interrupted"
    saved_outcome = AttemptOutcome.load(ensure_run(tmp_path).outcome_file)
    assert saved_outcome is not None and saved_outcome.kind == "interrupted", "the run must record the outcome"


def test_hint_names_output_location_by_task(tmp_path: Path) -> None:
    request, outcome = make_request(ensure_run(tmp_path)), AttemptOutcome("internal", "why")
    assert outcome_error(outcome, request).hint == f"see {request.log} for the full output"
    assert outcome_error(outcome, replace(request, task=CheckTask())).hint == "run `mmfw train` to keep the full output"
    assert outcome_error(outcome, request, "the process printed nothing").hint == "the process printed nothing"
