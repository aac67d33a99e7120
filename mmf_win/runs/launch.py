"""Trains or predicts in fresh workers, with the settings that a run asks for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mmf_win.console import say
from mmf_win.errors import DataError, MmfError, UsageError
from mmf_win.inputs.check import Inputs
from mmf_win.locking import is_locked
from mmf_win.paths import Places
from mmf_win.protocol import Action, AttemptFolder, AttemptRequest, Event, Exit
from mmf_win.runs import checkpoints, fits, inputs
from mmf_win.runs.attempts import attempt
from mmf_win.runs.folder import Run, RunRequest
from mmf_win.runs.overrides import BATCH_SIZE, FEATURES, lasting, of_prediction, without
from mmf_win.runs.presets import merge
from mmf_win.runs.retry import Start, Trial, events_of, until_it_fits, what_began
from mmf_win.runs.targets import Target
from mmf_win.upstream import settings
from mmf_win.upstream.install import Installed, usable_mmf
from mmf_win.upstream.versions import config_path

_WORKERS = "training.num_workers"


@dataclass(frozen=True)
class Memory:
    """What to do about memory.

    Attributes:
        retry: try again with less, when it runs out.
        remembered: begin with what fitted before.
    """

    retry: bool = True
    remembered: bool = True


def start(
    request: RunRequest,
    name: str,
    places: Places,
    begin: Start,
    *,
    memory: Memory = Memory(),
) -> Run:
    """Train in a new run.

    Args:
        request: what was asked for.
        name: the folder's name.
        places: MMF's folders.
        begin: where the first attempt begins.
        memory: what to do about it.

    Returns:
        The finished run.

    Raises:
        MmfwError: the class says how it ended.
    """
    mmf = _usable_for(request)
    found = inputs.for_training(mmf, request, places, begin.checkpoint)  # before there is a folder
    run = Run.create(places.save_dir, name)
    if begin.checkpoint is not None and not begin.weights_alone:
        checkpoints.carry_best(begin.checkpoint, run)
    train(run, request, places, begin, found, memory=memory)
    return run


def train(
    run: Run,
    request: RunRequest,
    places: Places,
    origin: Start,
    found: Inputs | None = None,
    *,
    memory: Memory = Memory(),
) -> None:
    """Train, in fresh processes, to the end of the run.

    Args:
        run: its folder; the request is remembered in it.
        request: what was asked for.
        places: MMF's folders.
        origin: where the first attempt begins.
        found: what the run reads, if that was checked just now.
        memory: what to do about it.

    Raises:
        MmfwError: the class says how it ended.
    """
    mmf = _usable_for(request)
    if is_locked(run.lock):
        raise UsageError(f"run {run.id} is being trained already", hint="wait until it has ended, or stop it")
    found = found or inputs.for_training(mmf, request, places, origin.checkpoint)
    if request.mmf and request.mmf != mmf.version:
        say(f"note: this run was trained with MMF {request.mmf} so far, and goes on with {mmf.version}")
    request = replace(request, mmf=mmf.version)
    if not run.request_file.exists():
        run.save_request(request)

    def train_once(trial: Trial, begin: Start) -> tuple[AttemptRequest, Exit]:
        run.exit_file.unlink(missing_ok=True)
        files = run.new_attempt()
        # What says where the run starts must not send a later attempt back there.
        words = request.overrides if begin.checkpoint == origin.checkpoint else lasting(request.overrides)
        words = without(words, found.replaced_keys)
        layers = [
            settings.common(request.model, _present(request.splits, places), mmf.version),
            settings.train(request.updates),
            request.settings,
            settings.options(
                mmf.version,
                seed=begin.seed or request.seed,
                batch_size=request.batch_size,
                updates=request.updates,
                detect_anomaly=request.detect_anomaly,
            ),
            settings.resume(begin.checkpoint) if begin.checkpoint else {},
            found.settings(files.path / "annotations"),
        ]
        asked = replace(
            _asked(run, files, request, "train", mmf, layers, words, trial),
            weights_alone=begin.weights_alone,
            trust=begin.trust,
            epochs=request.epochs,
            detect_anomaly=request.detect_anomaly,
            keep=request.keep,
            find_micro_batch=request.auto_batch,
            fits=fits.load() if memory.remembered else {},
            data={slot: asdict(part) for slot, part in found.read.items()},
        )
        # A word that MMF refuses must not stay with a run that went well so far.
        remember = lambda: run.save_request(request)  # noqa: E731
        end = attempt(run, asked, places, offline=request.offline, on_training=remember)
        if end.outcome in ("ok", "interrupted"):
            _remember_fit(events_of(run, asked))
        return asked, end

    until_it_fits(run, train_once, origin, retry=memory.retry)


def _remember_fit(events: list[Event]) -> None:
    """Keep the micro-batch that training managed with, or that none is needed.

    A search that was stopped leaves nothing: what it measured with is not what fits.
    """
    began = what_began(events)
    if began is None or began["searching"] or not any(event["kind"] == "train" for event in events):
        return
    with suppress(OSError):  # a finished run is worth more than a note about it
        fits.remember(began["fit"], began["micro_batch"] if began["micro_batch"] < began["batch"] else None)


def predict(
    run: Run,
    places: Places,
    *,
    checkpoint: Path,
    target: Target,
    overrides: tuple[str, ...],
    batch_size: int | None,
    features: Path | None = None,
    report: Path | None = None,
    retry: bool = True,
    trust: bool = False,
) -> Path:
    """Predict memes with a checkpoint of a run, in a fresh process.

    Args:
        run: the run that knows the model's configuration.
        places: MMF's folders.
        checkpoint: the weights.
        target: the memes.
        overrides: the user's ``KEY=VALUE`` words, after those of the run.
        batch_size: memes a batch; None for the run's own.
        features: an LMDB of region features to read instead of the dataset's.
        report: where the predictions go; None for the run's folder of reports.
        retry: try again with less, when memory runs out.
        trust: load the checkpoint even if it holds classes that torch refuses.

    Returns:
        The CSV; its metrics lie beside it.

    Raises:
        MmfwError: the class says how it ended.
    """
    request = run.request()
    mmf = _usable_for(request)
    inputs.for_prediction(
        mmf, request, places, checkpoint=checkpoint, target=target, features=features, overrides=overrides
    )
    replaced = target.keys | (FEATURES if features else set()) | (BATCH_SIZE if batch_size else set())
    words = [*of_prediction(request.overrides, replaced), *overrides]
    report = report or run.report(target.name)

    def predict_once(trial: Trial, begin: Start) -> tuple[AttemptRequest, Exit]:
        layers = [
            settings.common(request.model, {**request.splits, "test": target.name}, mmf.version),
            request.settings,
            settings.options(mmf.version, seed=request.seed, batch_size=batch_size or request.batch_size),
            settings.predict(checkpoint),
            target.settings,
            settings.features_in(features) if features else {},
        ]
        asked = replace(
            _asked(run, run.new_attempt(), request, "predict", mmf, layers, words, trial),
            trust=begin.trust,
            annotations=str(target.annotations),
            keep_annotations=target.is_own,
            report=str(report),
        )
        return asked, attempt(run, asked, places, offline=request.offline)

    with _told_of(target):
        until_it_fits(run, predict_once, Start(checkpoint, trust=trust), retry=retry)
    return report


@contextmanager
def _told_of(target: Target) -> Iterator[None]:
    """Name the user's own file in errors, where MMF reads annotations that were made of it."""
    try:
        yield
    except DataError as error:
        if not target.is_own:
            raise
        message = str(error).replace(str(target.annotations), str(target.source))
        raise DataError(message, hint=error.hint) from error


def _asked(
    run: Run,
    files: AttemptFolder,
    request: RunRequest,
    action: Action,
    mmf: Installed,
    layers: Sequence[dict[str, Any]],
    words: Sequence[str],
    trial: Trial,
) -> AttemptRequest:
    """What the worker of an attempt is to do."""
    # A word of the user's would win over a setting.
    fewer = [] if trial.workers is None else [f"{_WORKERS}={trial.workers}"]
    memory = {} if trial.eval_batch is None else settings.evaluate_on_cpu(mmf.version)
    return AttemptRequest(
        action=action,
        model=request.model,
        mmf=str(mmf.root),
        attempt_dir=str(files.path),
        settings=settings.with_hooks(merge(*layers, memory), mmf.version),
        overrides=[*(word for word in words if not (fewer and word.startswith(f"{_WORKERS}="))), *fewer],
        base_config=request.config,
        micro_batch=trial.micro_batch,
        eval_batch=trial.eval_batch,
    )


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
