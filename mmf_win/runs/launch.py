"""Starts an attempt of a run in a fresh worker and says how it ended."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mmf_win.bridge import settings
from mmf_win.bridge.install import Installed, usable_mmf
from mmf_win.bridge.needs.check import Inputs
from mmf_win.bridge.versions import config_path, differences
from mmf_win.console import as_typed, say
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
from mmf_win.locking import is_locked
from mmf_win.paths import Places
from mmf_win.protocol import Exit, Request
from mmf_win.runs import checkpoints, inputs
from mmf_win.runs.folder import Run, RunRequest
from mmf_win.runs.overrides import lasting
from mmf_win.runs.presets import merge
from mmf_win.runs.progress import Watcher
from mmf_win.supervise import Ended, run_child, stop_timeout


def start(request: RunRequest, name: str, places: Places, resume_file: Path | None = None) -> Run:
    """Train in a new run.

    Args:
        request: what was asked for.
        name: the folder's name.
        places: MMF's folders.
        resume_file: a checkpoint of another run to begin from.

    Returns:
        The finished run.

    Raises:
        MmfwError: the class says how it ended.
    """
    mmf = _usable_for(request)
    found = inputs.for_training(mmf, request, places, resume_file)  # before there is a folder
    run = Run.create(places.save_dir, name)
    if resume_file is not None:
        checkpoints.carry_best(resume_file, run)
    train(run, request, places, resume_file, found)
    return run


def train(
    run: Run,
    request: RunRequest,
    places: Places,
    resume_file: Path | None = None,
    found: Inputs | None = None,
) -> None:
    """Train, in a fresh process, to the end of the run.

    Args:
        run: its folder; the request is remembered in it.
        request: what was asked for.
        places: MMF's folders.
        resume_file: a checkpoint to go on from.
        found: what the run reads, if that was checked just now.

    Raises:
        MmfwError: the class says how it ended.
    """
    mmf = _usable_for(request)
    if is_locked(run.lock):
        raise UsageError(f"run {run.id} is being trained already", hint="wait until it has ended, or stop it")
    found = found or inputs.for_training(mmf, request, places, resume_file)
    if request.mmf and request.mmf != mmf.version:
        say(f"note: this run was trained with MMF {request.mmf} so far, and goes on with {mmf.version}")
    request = replace(request, mmf=mmf.version)
    if not run.request_file.exists():
        run.save_request(request)
    run.exit_file.unlink(missing_ok=True)
    differ = differences(mmf.version)
    layers = [
        settings.common(request.model, _present(request.splits, places), differ),
        settings.train(request.updates),
        request.settings,
        settings.options(
            differ,
            seed=request.seed,
            batch_size=request.batch_size,
            updates=request.updates,
            detect_anomaly=request.detect_anomaly,
        ),
    ]
    if resume_file is not None:
        layers.append(settings.resume(resume_file))
    attempt = run.new_attempt()
    layers.append(found.settings(attempt.path / "annotations"))
    worker_request = Request(
        action="train",
        model=request.model,
        mmf=str(mmf.root),
        run_dir=str(run.path),
        attempt_dir=str(attempt.path),
        settings=settings.with_hooks(merge(*layers), differ),
        overrides=request.overrides,
        base_config=request.config,
        epochs=request.epochs,
        detect_anomaly=request.detect_anomaly,
        keep=request.keep,
    )
    # A word that MMF refuses must not stay with a run that went well so far.
    _attempt(
        run, worker_request, places, offline=request.offline, on_training=lambda: run.save_request(request)
    )


def predict(
    run: Run,
    places: Places,
    *,
    checkpoint: Path,
    split: str,
    overrides: tuple[str, ...],
    batch_size: int | None,
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
    request = run.request()
    mmf = _usable_for(request)
    inputs.for_prediction(mmf, request, places, checkpoint=checkpoint, split=split, overrides=overrides)
    differ = differences(mmf.version)
    replaced = {"training.batch_size"} if batch_size is not None else set()
    layers = [
        settings.common(request.model, {**request.splits, "test": split}, differ),
        request.settings,
        settings.options(differ, seed=request.seed, batch_size=batch_size or request.batch_size),
        settings.predict(checkpoint),
    ]
    report = run.report(split)
    attempt = run.new_attempt()
    worker_request = Request(
        action="predict",
        model=request.model,
        mmf=str(mmf.root),
        run_dir=str(run.path),
        attempt_dir=str(attempt.path),
        settings=settings.with_hooks(merge(*layers), differ),
        overrides=[*lasting(request.overrides, replaced), *overrides],
        base_config=request.config,
        annotations=str(places.dataset.split(split)),
        report=str(report),
    )
    _attempt(run, worker_request, places, offline=request.offline)
    return report


def _usable_for(request: RunRequest) -> Installed:
    """The installed MMF, once it is sure that it has the configuration that is asked for."""
    mmf = usable_mmf()
    if request.config is not None:
        try:
            config_path(mmf.root, request.config)
        except MmfError as error:
            raise UsageError(f"preset {request.preset}: {error}", hint=error.hint) from None
    return mmf


def _present(splits: dict[str, str], places: Places) -> dict[str, str]:
    """``splits`` with the validation set in the place of a test set that is not there.

    MMF loads the test set before it trains, and fails without one.
    """
    there = places.dataset.split(splits["test"]).is_file()
    return splits if there else {**splits, "test": splits["val"]}


def _attempt(
    run: Run,
    request: Request,
    places: Places,
    *,
    offline: bool,
    on_training: Callable[[], None] = lambda: None,
) -> None:
    """Run one worker to its end; raises what its exit stands for."""
    files = request.attempt
    request.save()
    # MMF writes its configuration there too; a prediction must not overwrite that of the training.
    save_dir = run.checkpoints if request.action == "train" else files.raw
    save_dir.mkdir(exist_ok=True)
    environment = settings.environment(places, save_dir, run.logs, files.raw, offline=offline)
    if request.action == "predict":
        environment = settings.on_one_device(environment)
    with Watcher(run.events, files.name, on_training) as watcher:
        ended = run_child(
            [sys.executable, "-m", "mmf_win.bridge.worker", str(files.request)],
            log=run.log,
            environment=environment,
            stop_file=files.stop,
            exit_file=files.exit,
            watch=watcher.poll,
            on_stop=lambda: say(f"\n{_stopping(request)} … press Ctrl+C again to end at once"),
            patience=stop_timeout(),
        )
    end = _exit_of(request, ended)
    if end.outcome != "ok":
        raise _as_error(end, run, request)


def _stopping(request: Request) -> str:
    return "saving a checkpoint and stopping" if request.action == "train" else "stopping"


def _exit_of(request: Request, ended: Ended) -> Exit:
    """How the attempt ended, also when the worker could not say so itself."""
    try:
        return Exit.load(request.attempt.exit)
    except (OSError, ValueError, TypeError, AttributeError):
        end = _died(ended)
    end.save(request.attempt.exit)
    if request.action == "train":
        end.save(request.run_exit)
    return end


def _died(ended: Ended) -> Exit:
    if ended.killed:
        unsaved = "updates since the last checkpoint are lost"
        return Exit(
            "interrupted", f"ended at once, or after {stop_timeout():g} s without progress; {unsaved}"
        )
    if ended.code == -9:
        return Exit("host_oom", "the worker was killed, most likely because memory ran out")
    return Exit("internal", f"the worker died without a word (exit code {ended.code})")


def _as_error(end: Exit, run: Run, request: Request) -> MmfwError:
    """The ending as an error whose class gives the exit code."""
    kind, hint = _ENDINGS.get(end.outcome, (TrainingError, None))
    message = end.message or end.outcome
    if end.outcome == "internal" and end.where:
        message += f" (at {end.where})"
    if kind is Interrupted:
        again = as_typed("mmfw", "train", "--resume", "last", "--save-dir", run.path.parent.parent)
        return Interrupted(message, hint=f"go on with: {again}" if request.action == "train" else None)
    log = f"the whole output is in {run.log}"
    hint = end.hint or hint
    return kind(message, hint=f"{hint}; {log}" if hint else log)


_ENDINGS: dict[str, tuple[type[MmfwError], str | None]] = {
    "interrupted": (Interrupted, None),
    "cuda_oom": (TrainingError, "the GPU is too small for this batch; try a smaller --batch-size"),
    "host_oom": (ResourceError, "try a smaller --batch-size, or training.num_workers=0"),
    "disk": (
        ResourceError,
        "free some space; `mmfw train --resume last` goes on from the last whole checkpoint",
    ),
    "nan": (TrainingError, "try a smaller learning rate, or --detect-anomaly to find the operation"),
    "data": (DataError, None),
    "checkpoint": (CheckpointError, None),
    "config": (UsageError, "check the KEY=VALUE words and the preset against MMF's configuration"),
    "mmf": (MmfError, "mmfw doctor"),
    "network": (
        MmfError,
        "MMF could not download what the preset needs; see to the connection and try again",
    ),
    "busy": (UsageError, "wait until it has ended, or stop it"),
}
