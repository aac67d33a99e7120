"""Starts and resumes the training of runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from mmf_win.dataset.annotations import choose_splits, where_to_get
from mmf_win.errors import DatasetError, UnknownConfiguration, UsageError
from mmf_win.paths import Places
from mmf_win.protocol import AttemptRequest, Exit
from mmf_win.runs import checkpoints, fits, lookup, needs, plan, presets, published_weights
from mmf_win.runs.attempts import Display, events_of_attempt, run_worker, until_it_fits
from mmf_win.runs.folder import Run, require_idle, training_alone
from mmf_win.runs.history import changed_splits, events_of
from mmf_win.runs.overrides import without
from mmf_win.runs.presets import merge
from mmf_win.runs.request import RunRequest
from mmf_win.unpacking.staging import reading, require_finished
from mmf_win.upstream import settings

_log = logging.getLogger(__name__)

PUBLISHED = "published"
"""What stands for a preset's published weights."""

_SUFFIXES = (".ckpt", ".pth", ".pt")


def start(
    asked: RunRequest,
    name: str | None,
    places: Places,
    *,
    init: str | None = None,
    source: str | None = None,
    display: Display,
) -> Run:
    """Train a preset from update 0.

    Args:
        asked: what the user chose, the preset among it.
        name: the folder's name; None for the preset's.
        places: MMF's folders.
        init: the weights to begin with: :data:`PUBLISHED`, or a file; None for those that MMF begins with.
        source: where to look first for published weights.
        display: shows each attempt while it runs.

    Returns:
        The finished run.

    Raises:
        MmfwError: the class says how it ended.
    """
    request, weights = _of_preset(asked, places), None
    if init == PUBLISHED:
        preset = presets.load(asked.preset)
        weights = published_weights.fetch(preset, places, source)
        request = replace(request, init=preset.zoo)
    elif init is not None:
        weights = checkpoints.checked(init)
        request = replace(request, init=str(weights))
    return train(
        None, name, request, places, weights, display, asked.overrides, weights_alone=weights is not None
    )


def asked_of(
    asked: RunRequest, run: Run | None, data_dir: Path | None, save_dir: Path | None
) -> tuple[RunRequest, Places]:
    """What a run, or without one the preset of ``asked``, is asked for with ``asked`` over it; MMF's folders.

    Raises:
        MmfwError: the preset, the run's request or the dataset cannot be read.
    """
    places = Places.resolve(data_dir, save_dir)
    if run is None:
        return _of_preset(asked, places), places
    return _with_data(asked.over(run.request()), data_dir, places)


def check(asked: RunRequest, places: Places) -> None:
    """See to it that a preset could be trained, as far as that is known without training it.

    Args:
        asked: what the user chose, the preset among it.
        places: MMF's folders.

    Raises:
        MmfwError: it could not.
    """
    request = _of_preset(asked, places)
    mmf, request = needs.mmf_for(request, asked.overrides, f"preset {request.preset}")
    first = plan.training(mmf, request, places, None, weights_alone=False)
    needs.check_training(first, request, places)


def resume(
    wanted: str,
    asked: RunRequest,
    name: str | None,
    data_dir: Path | None,
    save_dir: Path | None,
    *,
    display: Display,
) -> Run:
    """Resume a run.

    ``best`` and ``last`` resume the newest run (of the preset, if one is named) in its folder; a run's id,
    name or folder resumes that run, from its last checkpoint. A file starts a new run from that checkpoint,
    with the configuration of the run that it belongs to unless a preset is named.

    Args:
        wanted: ``best``, ``last``, a checkpoint's path, or a run's id, name or folder.
        asked: what the user chose.
        name: the new run's folder, when ``wanted`` is a file; None for the preset's name.
        data_dir: MMF's data folder; None for the one that the run used.
        save_dir: where runs are kept.
        display: shows each attempt while it runs.

    Returns:
        The finished run.

    Raises:
        MmfwError: the class says how it ended.
    """
    places = Places.resolve(data_dir, save_dir)
    found = _run_to_resume(wanted, asked.preset, places)
    if found is not None:
        run, checkpoint = found
        if name is not None:
            raise UsageError(f"run {run.id} is resumed in its own folder, so it cannot be named {name}")
        before = precision_of(run)
        if before is not None and asked.precision not in (None, before):
            _log.info("this run goes on in %s; so far it was %s", asked.precision, before)
        request, places = _with_data(asked.over(run.request()), data_dir, places)
        return train(run, None, request, places, checkpoint, display, asked.overrides)
    checkpoint = checkpoints.checked(wanted)
    owner = lookup.owner(checkpoint)
    if owner is not None:
        published_weights.require_trained(owner, checkpoint)
    if asked.preset:
        request = _of_preset(asked, places)
    elif owner is not None:
        earlier = replace(owner.request(), init=None, created=time.time())
        request, places = _with_data(asked.over(earlier), data_dir, places)
    else:
        raise UnknownConfiguration(
            f"{checkpoint} does not lie in a run's folder, so its configuration is not known"
        )
    request = replace(request, start=str(checkpoint))
    return train(None, name, request, places, checkpoint, display, asked.overrides)


def precision_of(run: Run) -> str | None:
    """What a run calculated with when it trained last; None where it has not trained.

    Raises:
        DataError: its events cannot be read.
    """
    begun = [event for event in events_of(run) if event["kind"] == "train_started"]
    return str(begun[-1].get("precision", "fp32")) if begun else None


def _run_to_resume(wanted: str, preset_name: str, places: Places) -> tuple[Run, Path] | None:
    """The run to resume in its folder, and from which of its checkpoints; None for a checkpoint's file."""
    preset = presets.load(preset_name).name if preset_name else None
    newest, path = wanted in ("best", "last"), Path(wanted).expanduser()
    if not newest and (path.is_file() or (path.suffix in _SUFFIXES and not path.is_dir())):
        return None

    def of(run: Run) -> tuple[Run, Path] | None:
        if newest and run.request().published_weights:
            return None
        published_weights.require_trained(run)
        require_idle(run)
        return run, checkpoints.choose(run, wanted if newest else "last")

    return lookup.newest(places.save_dir, None if newest else wanted, of, preset)


def _with_data(request: RunRequest, data_dir: Path | None, places: Places) -> tuple[RunRequest, Places]:
    """The run's own data folder, or the one named now, which the run then remembers."""
    places = Places.resolve(data_dir or Path(request.data_dir), places.save_dir)
    _require_dataset(places)
    if data_dir is not None:
        request = replace(request, data_dir=str(places.data_dir), splits=choose_splits(places.dataset))
    return request, places


def _of_preset(asked: RunRequest, places: Places) -> RunRequest:
    preset = presets.load(asked.preset)
    _require_dataset(places)
    return asked.over(presets.request(preset, choose_splits(places.dataset), places))


def _require_dataset(places: Places) -> None:
    require_finished(places.dataset.root)
    if not places.dataset.split("train").is_file():
        message = f"no Hateful Memes dataset in {places.data_dir}"
        raise DatasetError(message, hint=where_to_get(places.dataset))


def train(
    run: Run | None,
    name: str | None,
    request: RunRequest,
    places: Places,
    checkpoint: Path | None,
    display: Display,
    typed: Sequence[str],
    *,
    weights_alone: bool = False,
    profile: int = 0,
) -> Run:
    """Train to the end of ``run``; without one, of a new run named ``name`` or after its preset.

    ``typed`` are the overrides of this command, which ``request`` has, too. A run that measures ``profile``
    updates is of no other use; see :mod:`mmf_win.worker.hooks.profiler`.

    Raises:
        MmfwError: the class says how it ended.
    """
    with ExitStack() as stack:
        lock = stack.enter_context(training_alone(run)) if run is not None else None
        whose = f"run {run.id}" if run else f"preset {request.preset}"
        mmf, request = needs.mmf_for(request, typed, whose)
        first = plan.training(mmf, request, places, checkpoint, weights_alone=weights_alone)
        if request.detect_anomaly and not first.detect_anomaly:
            _log.warning(
                "anomalies are not looked for: in fp16, updates overflow now and then, and are left out"
            )
        inputs, total = needs.check_training(first, request, places)  # before there is a folder
        in_updates = settings.options(mmf.version, updates=total) if request.epochs else {}
        stack.enter_context(reading(places.dataset.root))
        first = replace(
            first,
            settings=merge(first.settings, in_updates),
            overrides=without(first.overrides, inputs.replaced_keys),
            data=dict(inputs.data),
            asks_hub=inputs.asks_hub or request.trust,
            profile=profile,
        )
        if run is not None and checkpoint is not None:
            _log.info("resuming run %s from %s", run.id, checkpoint.name)
            for name in changed_splits(run, inputs.data):
                _log.warning(
                    "%s is not what it was when this run trained: its scores are not comparable", name
                )
        if run is None:
            run = Run.create(places.save_dir, name or request.preset)
            lock = stack.enter_context(training_alone(run))
            if checkpoint is not None and not weights_alone:
                checkpoints.share_best(checkpoint, run)
        if request.mmf and request.mmf != mmf.version:
            _log.warning(
                "this run was trained with MMF %s so far, and resumes with %s", request.mmf, mmf.version
            )
        request = replace(request, mmf=mmf.version)

        def attempt(asked: AttemptRequest) -> Exit:
            annotations = inputs.settings(asked.attempt.path / "annotations")
            asked = replace(asked, settings=merge(asked.settings, annotations))
            # An override that MMF refuses must not stay with a run that went well so far.
            end = run_worker(
                run, asked, request, places, display, lock=lock, on_training=lambda: run.save_request(request)
            )
            if end.outcome in ("ok", "interrupted"):
                fits.remember_training(events_of_attempt(asked))
            return end

        if not run.request_file.exists():
            run.save_request(request)
        until_it_fits(run, first, attempt, retry=request.retry)
    return run
