"""What is tried after memory ran out, with functions in the place of workers."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mmf_win.errors import Interrupted, ResourceError, TrainingError
from mmf_win.protocol import AttemptRequest, Event, EventLog, Exit, Outcome, Phase, read_events
from mmf_win.runs import gpus, retry
from mmf_win.runs.folder import Run
from mmf_win.runs.retry import Start, Trial, following, smaller_rows, until_it_fits
from tests.worlds.torch_files import checkpoint

STARTED: Event = {"kind": "train_started", "batch": 32, "micro_batch": 32, "workers": 4, "seed": 7}


@pytest.mark.parametrize(
    ("batch", "failed", "rows"),
    [(32, 32, 16), (48, 48, 24), (12, 12, 6), (12, 4, 3), (7, 7, 1), (32, 1, None)],
)
def test_fewer_rows_are_the_largest_proper_divisor_within_three_quarters(
    batch: int, failed: int, rows: int | None
) -> None:
    assert smaller_rows(batch, failed) == rows


@pytest.mark.parametrize("batch", [1, 2, 7, 30, 32, 480])
def test_rows_shrink_strictly_down_to_one(batch: int) -> None:
    tried = [batch]
    while (rows := smaller_rows(batch, tried[-1])) is not None:
        assert rows < tried[-1] and batch % rows == 0
        tried.append(rows)
    assert tried[-1] == 1


@pytest.mark.parametrize(
    ("outcome", "phase", "trial", "next_trial"),
    [
        ("cuda_oom", "train", Trial(), Trial(micro_batch=16)),
        ("cuda_oom", None, Trial(eval_batch=8), Trial(micro_batch=16, eval_batch=8)),
        ("cuda_oom", "val", Trial(), Trial(eval_batch=16)),
        ("cuda_oom", "predict", Trial(eval_batch=16), Trial(eval_batch=8)),
        ("host_oom", "train", Trial(micro_batch=8), Trial(micro_batch=8, workers=2)),
        ("nan", "train", Trial(), None),
        ("killed", "train", Trial(), None),
        ("internal", "val", Trial(), None),
    ],
)
def test_each_shortage_has_its_own_remedy(
    outcome: Outcome, phase: Phase | None, trial: Trial, next_trial: Trial | None
) -> None:
    assert following(trial, Exit(outcome, phase=phase), STARTED) == next_trial


def test_workers_are_halved_down_to_none_and_then_it_is_over() -> None:
    tried, workers = [4], Trial()
    while next_trial := following(workers, Exit("host_oom"), {**STARTED, "workers": tried[-1]}):
        workers = next_trial
        assert workers.workers is not None
        tried.append(workers.workers)
    assert tried == [4, 2, 1, 0]


def test_nothing_smaller_helps_where_the_model_itself_does_not_fit() -> None:
    assert following(Trial(), Exit("cuda_oom"), None) is None


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """An empty run, on a machine without a GPU."""
    monkeypatch.setattr(gpus, "free_memory", lambda: [])
    run = Run.create(tmp_path, "mmbt")
    run.checkpoints.mkdir()
    return run


class Attempts:
    """Stands in for workers, which end as the test says.

    Attributes:
        begun: how each one began.
        saves: whether each one saves a checkpoint.
    """

    def __init__(self, run: Run, fits: Callable[[Trial], bool], **ends: Any) -> None:
        self.run, self.fits, self.ends = run, fits, {"outcome": "cuda_oom", "phase": "train", **ends}
        self.begun: list[tuple[Trial, Start]] = []
        self.saves: list[bool] = []

    def __call__(self, trial: Trial, begin: Start) -> tuple[AttemptRequest, Exit]:
        attempt = self.run.new_attempt()
        request = AttemptRequest("train", "mmbt", "mmf", str(attempt.path))
        self.begun.append((trial, begin))
        log = EventLog(request.events, attempt.name)
        rows = trial.micro_batch or 32
        log.write(**{**STARTED, "micro_batch": rows})
        if dict(enumerate(self.saves, start=1)).get(len(self.begun)):
            with zipfile.ZipFile(self.run.checkpoints / "current.ckpt", "w") as archive:
                archive.writestr("archive/data.pkl", b"")
            log.write("checkpoint", update=len(self.begun))
        return request, Exit("ok") if self.fits(trial) else Exit(**self.ends)


def rows(begun: list[tuple[Trial, Start]]) -> list[int | None]:
    return [trial.micro_batch for trial, _ in begun]


def test_attempts_shrink_until_one_fits_and_each_is_told(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    attempts = Attempts(run, lambda trial: trial.micro_batch == 8)
    until_it_fits(run, attempts, Start())
    assert rows(attempts.begun) == [None, 16, 8]
    failed = [event for event in read_events(run.events) if event["kind"] == "attempt_failed"]
    assert [(event["reason"], event["next"]) for event in failed] == [
        ("cuda_oom", {"micro_batch": 16}),
        ("cuda_oom", {"micro_batch": 8}),
    ]
    said = capsys.readouterr().err
    assert "with 32 rows at once; trying 16, still 32 an update; from the beginning" in said
    assert "with 16 rows at once; trying 8" in said


def test_an_attempt_that_begins_anew_has_the_seed_of_the_first(run: Run) -> None:
    attempts = Attempts(run, lambda trial: trial.micro_batch == 16)
    until_it_fits(run, attempts, Start())
    assert [begin for _, begin in attempts.begun] == [Start(), Start(seed=7)]


def test_it_goes_on_from_what_the_failed_attempt_saved(run: Run) -> None:
    attempts = Attempts(run, lambda trial: trial.micro_batch == 16)
    attempts.saves = [True]
    until_it_fits(run, attempts, Start())
    assert attempts.begun[-1][1] == Start(run.checkpoints / "current.ckpt")


def test_without_a_new_checkpoint_it_goes_on_from_where_the_failed_attempt_began(run: Run) -> None:
    """`--resume best` begins behind current.ckpt, which is not what was asked for."""
    (run.checkpoints / "current.ckpt").write_bytes(b"of an earlier attempt")
    attempts = Attempts(run, lambda trial: trial.micro_batch == 16)
    until_it_fits(run, attempts, Start(run.checkpoints / "best.ckpt"))
    assert {begin for _, begin in attempts.begun} == {Start(run.checkpoints / "best.ckpt")}


def test_an_attempt_that_saved_nothing_loses_nothing_of_the_one_before(run: Run) -> None:
    attempts = Attempts(run, lambda trial: trial.micro_batch == 4)
    attempts.saves = [True, False, False]
    until_it_fits(run, attempts, Start())
    assert [begin.checkpoint for _, begin in attempts.begun] == [
        None,
        *[run.checkpoints / "current.ckpt"] * 3,
    ]


def test_there_are_six_attempts_at_most(run: Run) -> None:
    attempts = Attempts(run, lambda trial: False, message="CUDA out of memory")
    with pytest.raises(TrainingError, match="CUDA out of memory"):
        until_it_fits(run, attempts, Start())
    assert rows(attempts.begun) == [None, 16, 8, 4, 2, 1]


def test_no_retry_means_one_attempt(run: Run) -> None:
    attempts = Attempts(run, lambda trial: False, outcome="host_oom")
    with pytest.raises(ResourceError):
        until_it_fits(run, attempts, Start(), retry=False)
    assert len(attempts.begun) == 1


def test_the_next_attempt_waits_until_the_memory_of_a_fake_gpu_is_free_again(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    free = iter([[40 << 30], [2 << 30], [9 << 30], [40 << 30]])
    monkeypatch.setattr(gpus, "free_memory", lambda: next(free))
    monkeypatch.setattr(retry, "_PAUSE", 0)
    until_it_fits(run, Attempts(run, lambda trial: trial.micro_batch == 16), Start())
    assert list(free) == []
    assert capsys.readouterr().err.count("waiting until the GPU's memory is free again") == 1


def test_it_does_not_wait_for_ever_for_the_memory_of_a_fake_gpu_that_somebody_else_took(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, clock = iter([[40 << 30]]), iter(range(100))
    monkeypatch.setattr(gpus, "free_memory", lambda: next(free, [0]))
    monkeypatch.setattr(retry, "_PAUSE", 0)
    monkeypatch.setattr(retry.time, "monotonic", clock.__next__)
    attempts = Attempts(run, lambda trial: trial.micro_batch == 16)
    until_it_fits(run, attempts, Start())
    assert len(attempts.begun) == 2


def test_ctrl_c_between_two_attempts_says_how_to_go_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(_before: list[int]) -> None:
        raise KeyboardInterrupt

    checkpoint(run.checkpoints / "current.ckpt", 3)
    monkeypatch.setattr(retry, "_wait_until_free", pressed)
    with pytest.raises(Interrupted) as caught:
        until_it_fits(run, Attempts(run, lambda trial: False), Start())
    assert caught.value.hint is not None and "--resume last" in caught.value.hint
