"""Retries after out-of-memory, with functions instead of workers, and the store of micro-batches."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mmf_win import machine
from mmf_win.errors import ResourceError, StoppedByUserError, TrainingError
from mmf_win.paths import MmfPaths
from mmf_win.protocol import AttemptOutcome, AttemptRequest, Event, read_events
from mmf_win.protocol.attempt import PredictTask, TrainTask
from mmf_win.runs import attempts as attempts_module
from mmf_win.runs import micro_batch_store
from mmf_win.runs.attempts import run_with_retries
from mmf_win.runs.folder import Run
from mmf_win.runs.history import run_state
from mmf_win.runs.plan import Plan, RunJob, choose_reduction, next_attempt, smaller_micro_batch
from mmf_win.runs.request import CommandOptions, RunRequest
from mmf_win.supervise import ChildExit
from tests.worlds.memes import RUN_SPLITS, write_tree
from tests.worlds.tools import MmfwRunner
from tests.worlds.torch_files import write_checkpoint

STARTED: Event = {"kind": "train_started", "batch": 32, "micro_batch": 32, "workers": 4, "seed": 7}


@pytest.mark.parametrize(
    ("batch", "failed", "rows"), [(32, 32, 16), (31, 31, 16), (31, 23, 8), (12, 3, 2), (7, 7, 4), (32, 1, None)]
)
def test_next_attempt_splits_batch_into_twice_as_many_micro_batches(batch: int, failed: int, rows: int | None) -> None:
    assert smaller_micro_batch(batch, failed) == rows


@pytest.mark.parametrize("batch", [1, 2, 7, 30, 31, 480])
def test_largest_micro_batch_shrinks_by_at_least_a_quarter_down_to_one_row(batch: int) -> None:
    for first in range(1, batch + 1):
        failed = first
        while (rows := smaller_micro_batch(batch, failed)) is not None:
            largest, before = (math.ceil(batch / math.ceil(batch / limit)) for limit in (rows, failed))
            assert rows <= 3 / 4 * failed and largest <= 3 / 4 * before
            failed = rows
        assert failed == 1


def make_request(**values: Any) -> AttemptRequest:
    task_options = {name: values.pop(name) for name in ("micro_batch", "only_weights") if name in values}
    task = TrainTask(**task_options)
    return AttemptRequest(**{"task": task, "model": "mmbt", "mmf_root": "mmf", **values})


@pytest.mark.parametrize(
    ("outcome", "failed", "reduction"),
    [
        (AttemptOutcome("cuda_oom"), make_request(eval_batch=8), ("micro_batch", 32, 16)),
        (AttemptOutcome("cuda_oom", during_validation=True), make_request(), ("eval_batch", 32, 16)),
        (AttemptOutcome("cuda_oom"), make_request(task=PredictTask(""), eval_batch=16), ("eval_batch", 16, 8)),
        (AttemptOutcome("host_oom"), make_request(micro_batch=8), ("workers", 4, 2)),
        (AttemptOutcome("disk"), make_request(), None),
        (AttemptOutcome("nan"), make_request(), None),
        (AttemptOutcome("killed"), make_request(), None),
        (AttemptOutcome("internal", during_validation=True), make_request(), None),
    ],
)
def test_reduced_limit_depends_on_the_outcome(
    outcome: AttemptOutcome, failed: AttemptRequest, reduction: tuple[str, int, int] | None
) -> None:
    started = STARTED
    if not failed.is_training:
        started = {"kind": "predict_started", "batch": 32, "workers": 4}
    assert choose_reduction(failed, outcome, started) == reduction
    assert choose_reduction(failed, outcome, None) is None, "without a start event, there is nothing to reduce"


def test_workers_are_halved_down_to_zero() -> None:
    tried = [4]
    while reduction := choose_reduction(make_request(), AttemptOutcome("host_oom"), {**STARTED, "workers": tried[-1]}):
        tried.append(reduction[2])
    assert tried == [4, 2, 1, 0]


@pytest.mark.parametrize(
    ("name", "group", "key", "user_value", "expected"),
    [
        ("workers", "training", "num_workers", 4, 2),
        ("eval_batch", "evaluation", "use_cpu", False, True),
        ("micro_batch", "training", "seed", -1, 7),
    ],
)
def test_settings_of_next_attempt_override_user_settings(
    tmp_path: Path, name: str, group: str, key: str, user_value: object, expected: object
) -> None:
    mmf = write_tree({"mmf/version.py": b'__version__ = "1.0.0rc12"\n'}, tmp_path)  # has evaluation.use_cpu
    failed = make_request(mmf_root=str(mmf), settings={group: {key: user_value, "other": 1}})
    settings = next_attempt(failed, name, 2, STARTED, None).settings
    assert settings[group] == {key: expected, "other": 1} | ({"seed": 7} if group == "training" else {})


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return an empty run on a machine without a GPU."""
    monkeypatch.setattr(machine, "free_gpu_memory", list)
    run = Run.create(tmp_path, "mmbt")
    run.checkpoints.mkdir()
    return run


class Attempts:
    """Replacement for workers, with outcomes given by the test.

    Attributes:
        requests: Request of each attempt.
        saves: For each attempt, whether it saves a checkpoint.
        batch: Rows of an update.
    """

    def __init__(self, run: Run, fits: Callable[[AttemptRequest], bool], **outcome_fields: Any) -> None:
        self.run, self.fits, self.outcome_fields = run, fits, {"kind": "cuda_oom", **outcome_fields}
        self.requests: list[AttemptRequest] = []
        self.saves: list[bool] = []
        self.batch = 32

    def __call__(self, request: AttemptRequest) -> AttemptOutcome:
        self.requests.append(request)
        micro_batch = request.train_task.micro_batch or self.batch
        request.write_event(**{**STARTED, "batch": self.batch, "micro_batch": micro_batch})
        if dict(enumerate(self.saves, start=1)).get(len(self.requests)):
            write_checkpoint(self.run.checkpoints / "current.ckpt", len(self.requests))
            request.write_event("checkpoint", update=len(self.requests))
        return AttemptOutcome("ok") if self.fits(request) else AttemptOutcome(**self.outcome_fields)

    @property
    def rows(self) -> list[int | None]:
        return [request.train_task.micro_batch for request in self.requests]

    @property
    def checkpoints(self) -> list[str | None]:
        return [request.checkpoint for request in self.requests]

    @property
    def seeds(self) -> list[int | None]:
        return [request.settings.get("training", {}).get("seed") for request in self.requests]


def test_micro_batch_is_reduced_until_it_fits(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    attempts = Attempts(run, lambda request: request.train_task.micro_batch == 8)
    run_with_retries(run, make_request(eval_batch=4), attempts)
    assert attempts.rows == [None, 16, 8]
    assert {request.eval_batch for request in attempts.requests} == {4}, "the evaluation batch must not change"
    assert attempts.checkpoints == [None, None, None]
    assert attempts.seeds == [None, 7, 7], "later attempts must use the seed of the first"
    failed = [event for event in read_events(run.events) if event["kind"] == "attempt_failed"]
    assert [event["next"] for event in failed] == [{"micro_batch": 16}, {"micro_batch": 8}]
    first, origin, second, _ = caplog.messages
    assert re.search(r"\b32\b.* retrying with 16\b", first) and "from the beginning" in origin
    assert re.search(r"\b16\b.* retrying with 8\b", second)


def test_next_attempt_resumes_from_checkpoint_of_failed_attempt(run: Run) -> None:
    attempts = Attempts(run, lambda request: request.train_task.micro_batch == 16)
    attempts.saves = [True]
    settings = {"checkpoint": {"reset": {"all": True}, "resume_zoo": "x"}, "a": {"b": "c"}}
    first_request = make_request(settings=settings, only_weights=True, trust=True)
    run_with_retries(run, replace(first_request, checkpoint="old.ckpt"), attempts)
    last_request = attempts.requests[-1]
    assert last_request.checkpoint == str(run.checkpoints / "current.ckpt")
    assert last_request.settings["checkpoint"]["resume_file"] == last_request.checkpoint
    assert not last_request.train_task.only_weights
    assert last_request.settings["a"] == {"b": "c"}
    assert "reset" not in last_request.settings["checkpoint"], "reset options must apply only to the first attempt"
    assert last_request.settings["checkpoint"]["resume_zoo"] is None


def test_next_attempt_starts_where_failed_attempt_without_save_started(run: Run) -> None:
    """With `--resume best`, an attempt starts before current.ckpt, which must not be used instead."""
    write_checkpoint(run.checkpoints / "current.ckpt", 100)
    attempts = Attempts(run, lambda request: request.train_task.micro_batch == 16)
    best = str(write_checkpoint(run.checkpoints / "best.ckpt", 20))
    run_with_retries(run, make_request(checkpoint=best), attempts)
    assert attempts.checkpoints == [best, best]
    assert attempts.seeds == [None, None]


def test_attempt_without_save_keeps_checkpoint_of_earlier_attempt(run: Run) -> None:
    attempts = Attempts(run, lambda request: request.train_task.micro_batch == 4)
    attempts.saves = [True, False, False]
    run_with_retries(run, make_request(), attempts)
    assert attempts.checkpoints == [None, *[str(run.checkpoints / "current.ckpt")] * 3]


def test_at_most_six_attempts_are_made(run: Run) -> None:
    attempts = Attempts(run, lambda request: False, message="CUDA out of memory")
    attempts.batch = 64  # the micro-batch could still be reduced after the sixth attempt
    with pytest.raises(TrainingError, match="CUDA out of memory"):
        run_with_retries(run, make_request(), attempts)
    assert attempts.rows == [None, 32, 16, 8, 4, 2]


def test_no_retry_means_one_attempt(run: Run) -> None:
    attempts = Attempts(run, lambda request: False, kind="host_oom")
    with pytest.raises(ResourceError):
        run_with_retries(run, make_request(), attempts, retry=False)
    assert len(attempts.requests) == 1


def test_next_attempt_waits_for_free_memory_of_fake_gpu(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    free = iter([[40 << 30], [2 << 30], [9 << 30], [40 << 30]])
    monkeypatch.setattr(machine, "free_gpu_memory", lambda: next(free))
    monkeypatch.setattr(attempts_module, "GPU_POLL_SECONDS", 0)
    run_with_retries(run, make_request(), Attempts(run, lambda request: request.train_task.micro_batch == 16))
    assert list(free) == []
    assert len([message for message in caplog.messages if "waiting" in message]) == 1


def test_waiting_for_memory_of_fake_gpu_has_a_timeout(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    free, clock = iter([[40 << 30]]), iter(range(100))
    monkeypatch.setattr(machine, "free_gpu_memory", lambda: next(free, [0]))
    monkeypatch.setattr(attempts_module, "GPU_POLL_SECONDS", 0)
    monkeypatch.setattr(attempts_module.time, "monotonic", clock.__next__)
    attempts = Attempts(run, lambda request: request.train_task.micro_batch == 16)
    run_with_retries(run, make_request(), attempts)
    assert len(attempts.requests) == 2


def test_writing_a_checkpoint_counts_as_progress_until_it_is_saved(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl+C, a worker without progress is killed, but not one that is writing a large file."""
    attempt_request = make_request(attempt_dir=str(run.create_attempt().path))
    progress: list[bool] = []

    def run_child(_command: object, *, poll_progress: Callable[[], bool], **_options: object) -> ChildExit:
        for kind in (None, "saving", None, None, "checkpoint", None):
            if kind is not None:
                attempt_request.write_event(kind, update=1)
            progress.append(poll_progress())
        return ChildExit(exit_code=0, stop_requested=True, killed=False)

    monkeypatch.setattr(attempts_module, "prepare_worker", lambda _attempt, _plan: ([], {}))
    monkeypatch.setattr(attempts_module, "run_child", run_child)
    shown: list[Event] = []
    mmf_paths = MmfPaths(run.path, run.path, run.path)
    run_request = RunRequest(preset="mmbt", model="mmbt", splits=RUN_SPLITS, data_dir="data")
    plan = Plan(RunJob(run_request, CommandOptions(), mmf_paths), run_request, attempt_request, {})
    attempts_module.run_worker(run, attempt_request, plan, lambda: nullcontext(shown.append))
    assert progress == [False, True, True, True, True, False]
    assert [event["kind"] for event in shown] == ["saving", "checkpoint"]


def test_failed_preparation_of_worker_keeps_state_of_run(run: Run) -> None:
    def prepare() -> None:
        attempt_request = make_request(attempt_dir=str(run.create_attempt().path))
        plan = Plan(
            RunJob(run_request, CommandOptions(), MmfPaths(run.path, run.path, run.path)),
            run_request,
            attempt_request,
            {},
        )
        attempts_module.prepare_worker(attempt_request, plan)

    run_request = RunRequest(preset="mmbt", model="mmbt", splits=RUN_SPLITS, data_dir="data")
    prepare()
    AttemptOutcome("ok").save(run.attempt(1).outcome_file)
    run.checkpoints.rmdir()
    run.checkpoints.touch()
    with pytest.raises(FileExistsError):
        prepare()
    assert run_state(run) == "done"


def test_fake_gpu_that_disappears_is_not_waited_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    free = iter([[40 << 30, 40 << 30], [40 << 30]])
    monkeypatch.setattr(machine, "free_gpu_memory", lambda: next(free))
    attempts = Attempts(run, lambda request: request.train_task.micro_batch == 16)
    run_with_retries(run, make_request(), attempts)
    assert len(attempts.requests) == 2


def test_ctrl_c_between_attempts_hints_at_resume(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_interrupt(_before: list[int]) -> None:
        raise KeyboardInterrupt

    write_checkpoint(run.checkpoints / "current.ckpt", 3)
    monkeypatch.setattr(attempts_module, "_wait_for_gpu_memory", raise_interrupt)
    with pytest.raises(StoppedByUserError) as caught:
        run_with_retries(run, make_request(), Attempts(run, lambda request: False))
    assert "--resume last" in str(caught.value.hint)


def make_training_events(fit: str, rows: int) -> list[Event]:
    """Return the events of a run with a micro-batch of `rows` out of 16 rows."""
    start = {"fit": fit, "micro_batch": rows, "batch": 16, "searching": False}
    return [{"kind": "train_started", **start}, {"kind": "train"}]


def test_fitting_micro_batch_is_stored_until_the_full_batch_fits(mmfw_home: Path, mmfw: MmfwRunner) -> None:
    assert micro_batch_store.load_micro_batches() == {}
    micro_batch_store.save_micro_batch(make_training_events("mmbt on a GPU", 8))
    micro_batch_store.save_micro_batch(make_training_events("vilbert on a GPU", 4))
    assert micro_batch_store.load_micro_batches() == {"mmbt on a GPU": 8, "vilbert on a GPU": 4}
    assert "mmbt on a GPU" in mmfw("doctor")
    micro_batch_store.save_micro_batch(make_training_events("mmbt on a GPU", 16))
    assert micro_batch_store.load_micro_batches() == {"vilbert on a GPU": 4}


@pytest.mark.parametrize("content", ["{half a", "[1]", '{"a": "many"}', '{"a": -1}'])
def test_damaged_micro_batch_store_is_ignored_and_replaced(mmfw_home: Path, content: str) -> None:
    mmfw_home.mkdir()
    micro_batch_store.store_path().write_text(content, encoding="utf-8")
    assert micro_batch_store.load_micro_batches() == {}
    micro_batch_store.save_micro_batch(make_training_events("a", 2))
    assert micro_batch_store.load_micro_batches() == {"a": 2}


def test_only_newest_micro_batches_are_kept(mmfw_home: Path) -> None:
    for number in range(203):
        micro_batch_store.save_micro_batch(make_training_events(f"kind {number}", 1))
    assert list(micro_batch_store.load_micro_batches()) == [f"kind {number}" for number in range(3, 203)]
