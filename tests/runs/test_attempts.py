"""What is tried after memory ran out, with functions for workers, and what is remembered of it."""

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
    ("batch", "failed", "rows"),
    [(32, 32, 16), (31, 31, 16), (31, 23, 8), (12, 3, 2), (7, 7, 4), (32, 1, None)],
)
def test_the_next_attempt_has_twice_as_many_parts(batch: int, failed: int, rows: int | None) -> None:
    assert smaller_micro_batch(batch, failed) == rows


@pytest.mark.parametrize("batch", [1, 2, 7, 30, 31, 480])
def test_the_largest_part_shrinks_by_a_quarter_or_more_down_to_one_row(batch: int) -> None:
    for first in range(1, batch + 1):
        failed = first
        while (rows := smaller_micro_batch(batch, failed)) is not None:
            largest, before = (math.ceil(batch / math.ceil(batch / limit)) for limit in (rows, failed))
            assert rows <= 3 / 4 * failed and largest <= 3 / 4 * before
            failed = rows
        assert failed == 1


def asked(**values: Any) -> AttemptRequest:
    of_training = {name: values.pop(name) for name in ("micro_batch", "only_weights") if name in values}
    task = TrainTask(**of_training)
    return AttemptRequest(**{"task": task, "model": "mmbt", "mmf_root": "mmf", **values})


@pytest.mark.parametrize(
    ("end", "failed", "less"),
    [
        (AttemptOutcome("cuda_oom"), asked(eval_batch=8), ("micro_batch", 32, 16)),
        (AttemptOutcome("cuda_oom", during_validation=True), asked(), ("eval_batch", 32, 16)),
        (AttemptOutcome("cuda_oom"), asked(task=PredictTask(""), eval_batch=16), ("eval_batch", 16, 8)),
        (AttemptOutcome("host_oom"), asked(micro_batch=8), ("workers", 4, 2)),
        (AttemptOutcome("disk"), asked(), None),
        (AttemptOutcome("nan"), asked(), None),
        (AttemptOutcome("killed"), asked(), None),
        (AttemptOutcome("internal", during_validation=True), asked(), None),
    ],
)
def test_each_shortage_has_its_own_remedy(
    end: AttemptOutcome, failed: AttemptRequest, less: tuple[str, int, int] | None
) -> None:
    started = STARTED
    if not failed.is_training:
        started = {"kind": "predict_started", "batch": 32, "workers": 4}
    assert choose_reduction(failed, end, started) == less
    assert choose_reduction(failed, end, None) is None, "not even the model fitted"


def test_workers_are_halved_down_to_none_and_then_it_is_over() -> None:
    tried = [4]
    while less := choose_reduction(asked(), AttemptOutcome("host_oom"), {**STARTED, "workers": tried[-1]}):
        tried.append(less[2])
    assert tried == [4, 2, 1, 0]


@pytest.mark.parametrize(
    ("name", "group", "key", "chosen", "holds"),
    [
        ("workers", "training", "num_workers", 4, 2),
        ("eval_batch", "evaluation", "use_cpu", False, True),
        ("micro_batch", "training", "seed", -1, 7),
    ],
)
def test_what_the_next_attempt_needs_wins_over_the_users_settings(
    tmp_path: Path, name: str, group: str, key: str, chosen: object, holds: object
) -> None:
    mmf = write_tree(
        {"mmf/version.py": b'__version__ = "1.0.0rc12"\n'}, tmp_path
    )  # it has evaluation.use_cpu
    failed = asked(mmf_root=str(mmf), settings={group: {key: chosen, "other": 1}})
    settings = next_attempt(failed, name, 2, STARTED, None).settings
    assert settings[group] == {key: holds, "other": 1} | ({"seed": 7} if group == "training" else {})


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """An empty run, on a machine without a GPU."""
    monkeypatch.setattr(machine, "free_gpu_memory", lambda: [])
    run = Run.create(tmp_path, "mmbt")
    run.checkpoints.mkdir()
    return run


class Attempts:
    """Stands in for workers, which end as the test says.

    Attributes:
        begun: what each one was asked for.
        saves: whether each one saves a checkpoint.
        batch: the number of rows in an update.
    """

    def __init__(self, run: Run, fits: Callable[[AttemptRequest], bool], **ends: Any) -> None:
        self.run, self.fits, self.ends = run, fits, {"kind": "cuda_oom", **ends}
        self.begun: list[AttemptRequest] = []
        self.saves: list[bool] = []
        self.batch = 32

    def __call__(self, asked: AttemptRequest) -> AttemptOutcome:
        self.begun.append(asked)
        micro_batch = asked.train_task.micro_batch or self.batch
        asked.write_event(**{**STARTED, "batch": self.batch, "micro_batch": micro_batch})
        if dict(enumerate(self.saves, start=1)).get(len(self.begun)):
            write_checkpoint(self.run.checkpoints / "current.ckpt", len(self.begun))
            asked.write_event("checkpoint", update=len(self.begun))
        return AttemptOutcome("ok") if self.fits(asked) else AttemptOutcome(**self.ends)

    @property
    def rows(self) -> list[int | None]:
        return [asked.train_task.micro_batch for asked in self.begun]

    @property
    def checkpoints(self) -> list[str | None]:
        return [asked.checkpoint for asked in self.begun]

    @property
    def seeds(self) -> list[int | None]:
        return [asked.settings.get("training", {}).get("seed") for asked in self.begun]


def test_attempts_shrink_until_one_fits_and_each_is_told(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    attempts = Attempts(run, lambda asked: asked.train_task.micro_batch == 8)
    run_with_retries(run, asked(eval_batch=4), attempts)
    assert attempts.rows == [None, 16, 8]
    assert {asked.eval_batch for asked in attempts.begun} == {4}, "what was made smaller before stays so"
    assert attempts.checkpoints == [None, None, None]
    assert attempts.seeds == [None, 7, 7], "each begins as the first"
    failed = [event for event in read_events(run.events) if event["kind"] == "attempt_failed"]
    assert [event["next"] for event in failed] == [{"micro_batch": 16}, {"micro_batch": 8}]
    first, origin, second, _ = caplog.messages
    assert re.search(r"\b32\b.* trying 16\b", first) and "from the beginning" in origin
    assert re.search(r"\b16\b.* trying 8\b", second)


def test_it_goes_on_from_what_the_failed_attempt_saved(run: Run) -> None:
    attempts = Attempts(run, lambda asked: asked.train_task.micro_batch == 16)
    attempts.saves = [True]
    started = {"checkpoint": {"reset": {"all": True}, "resume_zoo": "x"}, "a": {"b": "c"}}
    first = asked(settings=started, only_weights=True, trust=True)
    run_with_retries(run, replace(first, checkpoint="old.ckpt"), attempts)
    last = attempts.begun[-1]
    assert last.checkpoint == str(run.checkpoints / "current.ckpt")
    assert last.settings["checkpoint"]["resume_file"] == last.checkpoint
    assert not last.train_task.only_weights
    assert last.settings["a"] == {"b": "c"}
    assert "reset" not in last.settings["checkpoint"], "what says where the run starts holds once"
    assert last.settings["checkpoint"]["resume_zoo"] is None


def test_without_a_new_checkpoint_it_goes_on_from_where_the_failed_attempt_began(run: Run) -> None:
    """`--resume best` begins behind current.ckpt, which is not what was asked for."""
    write_checkpoint(run.checkpoints / "current.ckpt", 100)
    attempts = Attempts(run, lambda asked: asked.train_task.micro_batch == 16)
    best = str(write_checkpoint(run.checkpoints / "best.ckpt", 20))
    run_with_retries(run, asked(checkpoint=best), attempts)
    assert attempts.checkpoints == [best, best]
    assert attempts.seeds == [None, None]


def test_an_attempt_that_saved_nothing_loses_nothing_of_the_one_before(run: Run) -> None:
    attempts = Attempts(run, lambda asked: asked.train_task.micro_batch == 4)
    attempts.saves = [True, False, False]
    run_with_retries(run, asked(), attempts)
    assert attempts.checkpoints == [None, *[str(run.checkpoints / "current.ckpt")] * 3]


def test_there_are_six_attempts_at_most(run: Run) -> None:
    attempts = Attempts(run, lambda asked: False, message="CUDA out of memory")
    attempts.batch = 64  # the sixth attempt could still be made smaller
    with pytest.raises(TrainingError, match="CUDA out of memory"):
        run_with_retries(run, asked(), attempts)
    assert attempts.rows == [None, 32, 16, 8, 4, 2]


def test_no_retry_means_one_attempt(run: Run) -> None:
    attempts = Attempts(run, lambda asked: False, kind="host_oom")
    with pytest.raises(ResourceError):
        run_with_retries(run, asked(), attempts, retry=False)
    assert len(attempts.begun) == 1


def test_the_next_attempt_waits_until_the_memory_of_a_fake_gpu_is_free_again(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    free = iter([[40 << 30], [2 << 30], [9 << 30], [40 << 30]])
    monkeypatch.setattr(machine, "free_gpu_memory", lambda: next(free))
    monkeypatch.setattr(attempts_module, "GPU_POLL_SECONDS", 0)
    run_with_retries(run, asked(), Attempts(run, lambda asked: asked.train_task.micro_batch == 16))
    assert list(free) == []
    assert len([message for message in caplog.messages if "waiting" in message]) == 1


def test_it_does_not_wait_for_ever_for_the_memory_of_a_fake_gpu_that_somebody_else_took(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, clock = iter([[40 << 30]]), iter(range(100))
    monkeypatch.setattr(machine, "free_gpu_memory", lambda: next(free, [0]))
    monkeypatch.setattr(attempts_module, "GPU_POLL_SECONDS", 0)
    monkeypatch.setattr(attempts_module.time, "monotonic", clock.__next__)
    attempts = Attempts(run, lambda asked: asked.train_task.micro_batch == 16)
    run_with_retries(run, asked(), attempts)
    assert len(attempts.begun) == 2


def test_writing_a_checkpoint_counts_as_progress_until_it_is_saved(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After Ctrl+C, a worker that makes no progress is killed; one that writes a large file is not."""
    training = asked(attempt_dir=str(run.create_attempt().path))
    progress: list[bool] = []

    def run_child(_command: object, *, poll_progress: Callable[[], bool], **_options: object) -> ChildExit:
        for kind in (None, "saving", None, None, "checkpoint", None):
            if kind is not None:
                training.write_event(kind, update=1)
            progress.append(poll_progress())
        return ChildExit(exit_code=0, stop_requested=True, killed=False)

    monkeypatch.setattr(attempts_module, "prepare_worker", lambda _asked, _plan: ([], {}))
    monkeypatch.setattr(attempts_module, "run_child", run_child)
    shown: list[Event] = []
    places = MmfPaths(run.path, run.path, run.path)
    of_run = RunRequest(preset="mmbt", model="mmbt", splits=RUN_SPLITS, data_dir="data")
    plan = Plan(RunJob(of_run, CommandOptions(), places), of_run, training, {})
    attempts_module.run_worker(run, training, plan, lambda: nullcontext(shown.append))
    assert progress == [False, True, True, True, True, False]
    assert [event["kind"] for event in shown] == ["saving", "checkpoint"]


def test_a_worker_that_cannot_be_prepared_leaves_the_state_of_the_run(run: Run) -> None:
    def prepare() -> None:
        training = asked(attempt_dir=str(run.create_attempt().path))
        plan = Plan(
            RunJob(of_run, CommandOptions(), MmfPaths(run.path, run.path, run.path)), of_run, training, {}
        )
        attempts_module.prepare_worker(training, plan)

    of_run = RunRequest(preset="mmbt", model="mmbt", splits=RUN_SPLITS, data_dir="data")
    prepare()
    AttemptOutcome("ok").save(run.attempt(1).outcome_file)
    run.checkpoints.rmdir()
    run.checkpoints.touch()
    with pytest.raises(FileExistsError):
        prepare()
    assert run_state(run) == "done"


def test_a_fake_gpu_that_no_longer_tells_its_memory_is_not_waited_for(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = iter([[40 << 30, 40 << 30], [40 << 30]])
    monkeypatch.setattr(machine, "free_gpu_memory", lambda: next(free))
    attempts = Attempts(run, lambda asked: asked.train_task.micro_batch == 16)
    run_with_retries(run, asked(), attempts)
    assert len(attempts.begun) == 2


def test_ctrl_c_between_two_attempts_says_how_to_go_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(_before: list[int]) -> None:
        raise KeyboardInterrupt

    write_checkpoint(run.checkpoints / "current.ckpt", 3)
    monkeypatch.setattr(attempts_module, "_wait_for_gpu_memory", pressed)
    with pytest.raises(StoppedByUserError) as caught:
        run_with_retries(run, asked(), Attempts(run, lambda asked: False))
    assert "--resume last" in str(caught.value.hint)


def trained(fit: str, rows: int) -> list[Event]:
    """What a worker says that trained with so many of 16 rows at once."""
    began = {"fit": fit, "micro_batch": rows, "batch": 16, "searching": False}
    return [{"kind": "train_started", **began}, {"kind": "train"}]


def test_what_fitted_is_remembered_and_shown_until_the_whole_batch_does(
    mmfw_home: Path, mmfw: MmfwRunner
) -> None:
    assert micro_batch_store.load() == {}
    micro_batch_store.remember(trained("mmbt on a GPU", 8))
    micro_batch_store.remember(trained("vilbert on a GPU", 4))
    assert micro_batch_store.load() == {"mmbt on a GPU": 8, "vilbert on a GPU": 4}
    assert "mmbt on a GPU" in mmfw("doctor")
    micro_batch_store.remember(trained("mmbt on a GPU", 16))
    assert micro_batch_store.load() == {"vilbert on a GPU": 4}


@pytest.mark.parametrize("content", ["{half a", "[1]", '{"a": "many"}', '{"a": -1}'])
def test_a_file_that_is_no_memory_holds_nothing_and_is_replaced(mmfw_home: Path, content: str) -> None:
    mmfw_home.mkdir()
    micro_batch_store.store_path().write_text(content, encoding="utf-8")
    assert micro_batch_store.load() == {}
    micro_batch_store.remember(trained("a", 2))
    assert micro_batch_store.load() == {"a": 2}


def test_only_the_newest_are_kept(mmfw_home: Path) -> None:
    for number in range(203):
        micro_batch_store.remember(trained(f"kind {number}", 1))
    assert list(micro_batch_store.load()) == [f"kind {number}" for number in range(3, 203)]
