"""Starts an attempt of a run in a fresh worker and says how it ended."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from mmf_win.bridge import settings
from mmf_win.bridge.install import Installed, find
from mmf_win.bridge.versions import differences
from mmf_win.console import say
from mmf_win.errors import (
    CheckpointError,
    DataError,
    Interrupted,
    MmfError,
    MmfwError,
    ResourceError,
    TrainingError,
    UsageError,
)
from mmf_win.paths import Places
from mmf_win.protocol import Exit, Request
from mmf_win.runs.folder import Run, RunRequest
from mmf_win.runs.presets import merge
from mmf_win.runs.progress import Watcher
from mmf_win.supervise import Ended, run_child


def usable_mmf() -> Installed:
    """The installed MMF, once it is sure that a worker could import what it needs.

    Raises:
        MmfError: MMF or PyTorch is missing.
    """
    missing = [name for name in ("torch", "torchvision", "transformers") if find_spec(name) is None]
    if missing:
        raise MmfError(
            f"{' and '.join(missing)} cannot be found in {sys.prefix}",
            hint='pip install "mmf-win[train]"',
        )
    return find()


def train(run: Run, request: RunRequest, places: Places, resume_file: Path | None = None) -> None:
    """Train, in a fresh process, to the end of the run.

    Args:
        run: its folder; the request is remembered in it.
        request: what was asked for.
        places: MMF's folders.
        resume_file: a checkpoint to go on from.

    Raises:
        MmfwError: the class says how it ended.
    """
    mmf = usable_mmf()
    differ = differences(mmf.version)
    run.save_request(request)
    layers = [
        settings.common(request.model, _present(request.splits, places), differ),
        settings.train(request.updates),
        request.settings,
        settings.options(request.seed, request.batch_size, request.updates),
    ]
    if resume_file is not None:
        layers.append(settings.resume(resume_file))
    attempt = run.new_attempt()
    _attempt(
        run,
        Request(
            action="train",
            model=request.model,
            mmf=str(mmf.root),
            run_dir=str(run.path),
            attempt_dir=str(attempt),
            settings=merge(*layers),
            overrides=request.overrides,
            base_config=request.config,
            epochs=request.epochs,
            detect_anomaly=request.detect_anomaly,
        ),
        places,
        offline=request.offline,
    )


def predict(
    run: Run, places: Places, *, checkpoint: Path, split: str, overrides: list[str], batch_size: int | None
) -> Path:
    """Predict a split with a checkpoint of a run, in a fresh process.

    Args:
        run: the run that knows the model's configuration.
        places: MMF's folders.
        checkpoint: the weights.
        split: the annotation file's stem.
        overrides: the user's ``KEY=VALUE`` words, after those of the run.
        batch_size: memes a batch; None for the run's own.

    Returns:
        The CSV; its metrics lie beside it.

    Raises:
        MmfwError: the class says how it ended.
    """
    mmf = usable_mmf()
    request = run.request()
    report = run.report(split)
    attempt = run.new_attempt()
    layers = [
        settings.common(request.model, {**request.splits, "test": split}, differences(mmf.version)),
        request.settings,
        settings.options(request.seed, batch_size or request.batch_size),
        settings.predict(checkpoint),
    ]
    _attempt(
        run,
        Request(
            action="predict",
            model=request.model,
            mmf=str(mmf.root),
            run_dir=str(run.path),
            attempt_dir=str(attempt),
            settings=merge(*layers),
            overrides=[*request.overrides, *overrides],
            base_config=request.config,
            annotations=str(places.dataset.split(split)),
            report=str(report),
        ),
        places,
        offline=request.offline,
    )
    return report


def _present(splits: dict[str, str], places: Places) -> dict[str, str]:
    """``splits`` with the validation set in the place of a test set that is not there.

    MMF loads the test set before it trains, and fails without one.
    """
    there = places.dataset.split(splits["test"]).is_file()
    return splits if there else {**splits, "test": splits["val"]}


def _attempt(run: Run, request: Request, places: Places, *, offline: bool) -> None:
    """Run one worker to its end; raises what its exit stands for."""
    attempt = Path(request.attempt_dir)
    request_file = attempt / "request.json"
    request.save(request_file)
    run.checkpoints.mkdir(exist_ok=True)
    training = request.action == "train"
    if training:
        run.exit_file.unlink(missing_ok=True)
    with Watcher(run.events) as watcher:
        ended = run_child(
            [sys.executable, "-m", "mmf_win.bridge.worker", str(request_file)],
            log=run.log,
            environment=settings.environment(
                places, run.checkpoints, run.path / "logs", attempt / "raw", offline=offline
            ),
            stop_file=run.stop_file,
            watch=watcher.poll,
            on_stop=lambda: say("\nstopping at the end of this update … press Ctrl+C again to end at once"),
        )
    end = _exit_of(attempt, ended)
    if training:
        end.save(run.exit_file)
    if end.outcome != "ok":
        raise _as_error(end, run)


def _exit_of(attempt: Path, ended: Ended) -> Exit:
    """How the attempt ended, also when the worker could not say so itself."""
    try:
        return Exit.load(attempt / "exit.json")
    except (OSError, ValueError, TypeError, AttributeError):
        pass
    if ended.stop_requested:
        return Exit("interrupted", "ended at once")
    if ended.code == -9:
        return Exit("host_oom", "the worker was killed, most likely because memory ran out")
    return Exit("internal", f"the worker died without a word (exit code {ended.code})")


def _as_error(end: Exit, run: Run) -> MmfwError:
    """The ending as an error whose class gives the exit code."""
    classes: dict[str, tuple[type[MmfwError], str | None]] = {
        "interrupted": (
            Interrupted,
            f"go on with: mmfw train --resume last --save-dir {run.path.parent.parent}",
        ),
        "data": (DataError, None),
        "checkpoint": (CheckpointError, None),
        "config": (UsageError, "check the KEY=VALUE words and the preset against MMF's configuration"),
        "mmf": (MmfError, "mmfw doctor"),
        "cuda_oom": (TrainingError, "the GPU is too small for this batch; try a smaller --batch-size"),
        "host_oom": (ResourceError, "try a smaller --batch-size, or training.num_workers=0"),
        "nan": (TrainingError, "the loss is not a number; try a smaller learning rate, or --detect-anomaly"),
    }
    kind, hint = classes.get(end.outcome, (TrainingError, None))
    message = end.message or end.outcome
    log = f"the whole output is in {run.log}"
    if kind is Interrupted:
        return Interrupted(message, hint=hint)
    return kind(message, hint=f"{end.hint or hint}; {log}" if end.hint or hint else log)
