"""What runs and presets read; that of a run is checked before it starts."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from mmf_win.console import Progress, first_few, shell_line
from mmf_win.dataset.annotations import count_rows
from mmf_win.errors import DatasetError, MmfError, UsageError
from mmf_win.inputs.check import Inputs, check
from mmf_win.inputs.given import Input
from mmf_win.inputs.keys import image_keys, taken_from_another_image, without_features
from mmf_win.inputs.listing import inputs_of, paths_of
from mmf_win.paths import Places, data_option
from mmf_win.protocol import AttemptRequest, Exit
from mmf_win.runs import own_code, presets
from mmf_win.runs.history import stopped_early
from mmf_win.runs.lookup import owner
from mmf_win.runs.overrides import about_files
from mmf_win.runs.request import RunRequest
from mmf_win.runs.targets import Target
from mmf_win.upstream import settings
from mmf_win.upstream.checkpoint_files import Counts, counts
from mmf_win.upstream.config import resolve
from mmf_win.upstream.install import Installed, changed_files, usable_mmf
from mmf_win.upstream.versions import config_path

_log = logging.getLogger(__name__)


def mmf_for(request: RunRequest, typed: Sequence[str], whose: str) -> tuple[Installed, RunRequest]:
    """The installed MMF, which has the configuration that is asked for, and ``request`` with its own code.

    Args and errors are those of :func:`~mmf_win.runs.own_code.with_own_code`.
    """
    mmf = usable_mmf()
    _note_changes(mmf)
    if request.config is not None:
        try:
            config_path(mmf.root, request.config)
        except MmfError as error:
            raise UsageError(f"preset {request.preset}: {error}", hint=error.hint) from None
    return mmf, own_code.with_own_code(request, typed, mmf.root, whose)


@cache
def _note_changes(mmf: Installed) -> None:
    """Say once, however many predictions follow, that MMF is not as it was published."""
    if changed := changed_files(mmf):
        _log.warning("changed or missing files of MMF: %d", len(changed))


def check_training(asked: AttemptRequest, request: RunRequest, places: Places) -> tuple[Inputs, int | None]:
    """Check what training reads.

    Returns:
        That, and after how many updates training ends; None where only MMF knows.

    Raises:
        UsageError: the configuration does not train, or cannot be used; or the checkpoint is at
            the total, or where training has stopped early.
        DataError: something is missing or broken.
    """
    config, run_type = config_of(asked, request, places), str(asked.settings["run_type"])
    if "train" not in run_type:
        raise UsageError(f"preset {request.preset}: run_type {run_type} does not train", hint="leave it out")
    training = config["training"]
    if not (request.epochs or training["max_epochs"] or training["max_updates"]):
        raise UsageError(
            "training.max_updates: without it, and training.max_epochs, no run ends", hint="set one"
        )
    inputs = check(
        Path(asked.mmf),
        places,
        config,
        slots=("train", "val"),
        allow_missing=request.allow_missing,
        offline=request.offline,
        hint_words=_hint_words(request, request.overrides),
    )
    reset = config["checkpoint"].get("reset") or {}
    keeps_counts = not (asked.weights_alone or reset.get("all") or reset.get("counts"))
    counted = counts(Path(asked.checkpoint)) if asked.checkpoint and keeps_counts else None
    total = _total(request.epochs, config, inputs)
    reached = counted is not None and total is not None and counted.update >= total
    if counted is not None and reached and not (counted.update == total and _is_to_finish(asked, request)):
        hint = f"name a total above {counted.update} with --updates"
        for preset in _typed(request):
            where = [*data_option(places.data_dir), "--save-dir", places.save_dir]
            begin = shell_line("mmfw", "train", preset, "--init", asked.checkpoint, *where)
            hint += f", or begin again with these weights: `{begin}`"
        raise UsageError(
            f"{asked.checkpoint}: it is at update {counted.update}, and the run's total is {total}", hint=hint
        )
    if counted is not None:
        _require_no_early_stop(Path(asked.checkpoint or ""), counted, training)
    return inputs, total


def _is_to_finish(asked: AttemptRequest, request: RunRequest) -> bool:
    """Whether a run is resumed that was stopped after its last update, but before it was done."""
    run = owner(Path(asked.checkpoint or ""))
    if run is None or request.start == asked.checkpoint:  # a new run
        return False
    return Exit.load(run.exit_file) != Exit("ok")


def _require_no_early_stop(checkpoint: Path, counted: Counts, training: Mapping[str, Any]) -> None:
    """See to it that training does not end with the validation that has ended it before.

    Raises:
        UsageError: it would, without one update.
    """
    run, last = owner(checkpoint), counted.best_update + training["early_stop.patience"]
    if run and training["early_stop.enabled"] and counted.update > last and stopped_early(run):
        raise UsageError(
            f"{checkpoint}: training has stopped early at update {counted.update}, as no validation after "
            f"update {counted.best_update} was better",
            hint="training.early_stop.enabled=False trains on",
        )


def _total(epochs: int | None, config: settings.Settings, inputs: Inputs) -> int | None:
    """After how many updates training ends.

    MMF counts epochs in a way of its own in each version, and its learning-rate schedules know only updates.
    """
    training = config["training"]
    total, epochs = training["max_updates"], epochs or training["max_epochs"]  # MMF, too, lets epochs win
    if isinstance(epochs, int) and isinstance(training["batch_size"], int):
        read = inputs.data.get("train")  # None where there are several annotation files
        files = paths_of(config["dataset"], "annotations", ["train"])
        rows = sum(map(count_rows, files)) if read is None else read["rows"]
        batches = math.ceil(rows / training["batch_size"])
        total = epochs * math.ceil(batches / (training["update_frequency"] or 1))
    return total if isinstance(total, int) else None


def check_prediction(
    asked: AttemptRequest, request: RunRequest, places: Places, target: Target, features: Path | None
) -> Inputs:
    """Check what a prediction reads.

    Raises:
        DataError: something is missing or broken.
    """
    config = config_of(asked, request, places)
    if features and not config["dataset"].get("use_features"):
        _log.warning("%s reads no region features, so those of %s are not used", request.preset, features)
    if target.is_own and config["dataset"].get("use_features"):
        lmdb = paths_of(config["dataset"], "features", ["test"])[0]
        _require_own_features(Path(asked.mmf), places, target, lmdb)
    return check(
        Path(asked.mmf),
        places,
        config,
        slots=("test",),
        offline=request.offline,
        hint_words=_hint_words(request, asked.overrides),
    )


def _require_own_features(mmf: Path, places: Places, target: Target, lmdb: Path) -> None:
    """Refuse own memes whose images have no region features, or those of another image.

    Raises:
        DatasetError: it names the images, and what can be done.
    """
    rows = target.rows
    keys = image_keys(lmdb) if (lmdb / "data.mdb").is_file() else frozenset()
    missing = without_features(rows, keys)
    if missing:
        shown = first_few([row.shown_id for row in missing])
        shipped = [name for name in presets.names() if presets.load(name).published]
        configs = _configs(mmf, places, shipped)
        free = ", ".join(name for name, config in configs if not config["dataset"].get("use_features"))
        add = shell_line("mmfw", "features", "add", "FOLDER", *data_option(places.data_dir))
        raise DatasetError(
            f"{target.source}: the preset reads region features, and {lmdb} has none of {len(missing)} of "
            f"{len(rows)} images ({shown})",
            hint=f"these presets read none: {free}, or `{add}` takes those that MMF's extraction scripts "
            "write, and --features names another LMDB",
        )
    for image, key in taken_from_another_image(rows, keys).items():
        raise DatasetError(
            f"{target.source}: MMF would take the region features {key} of another image for {image}",
            hint="MMF finds features by the number at the end of an image's name, else by the name up to "
            "its first dot, whatever the folder: rename the image and its features",
        )


def inputs_of_presets(
    mmf: Installed, names: Sequence[str], places: Places, overrides: Sequence[str] = ()
) -> dict[Input, list[str]]:
    """What presets need → which of them need it.

    Args:
        mmf: the installed MMF.
        names: of the presets, or their files.
        places: MMF's folders.
        overrides: ``KEY=VALUE`` overrides that each of them gets.

    Raises:
        UsageError: there is no such preset, or its configuration cannot be put together.
    """
    found: dict[Input, list[str]] = {}
    for name, config in _configs(mmf.root, places, names, overrides):
        for each in inputs_of(mmf.root, places, config):
            found.setdefault(each, []).append(name)
    return found


def inputs_of_run(
    mmf: Installed, request: RunRequest, places: Places, overrides: Sequence[str] = ()
) -> dict[Input, list[str]]:
    """What training a run again, with more overrides, would need → its preset, as one would type it."""
    config = resolve(mmf.root, places, request, [*request.overrides, *overrides], trained=True)
    return {each: _typed(request) for each in inputs_of(mmf.root, places, config)}


def config_of(asked: AttemptRequest, request: RunRequest, places: Places) -> settings.Settings:
    """The parts of an attempt's configuration that say what it reads, and how it trains.

    Raises:
        UsageError: it cannot be used.
    """
    asked_for = replace(request, settings=asked.settings)
    return resolve(Path(asked.mmf), places, asked_for, asked.overrides, trained=bool(request.mmf))


def _configs(
    mmf: Path, places: Places, names: Sequence[str], overrides: Sequence[str] = ()
) -> Iterator[tuple[str, settings.Settings]]:
    """Each preset with the parts of its configuration that name files."""
    with Progress("looking at presets", len(names), "file") as progress:
        for name in names:
            yield name, resolve(mmf, places, presets.load(name), overrides)
            progress.advance(1)


def _typed(request: RunRequest) -> list[str]:
    """The run's preset if one can name it; earlier runs have not noted where the user's own lies."""
    if request.preset_file is not None and Path(request.preset_file).is_file():
        return [request.preset_file]
    return [request.preset] if request.preset in presets.names() else []


def _hint_words(request: RunRequest, overrides: Sequence[str]) -> list[str]:
    """By which preset and overrides the files of this run are found."""
    return [*(_typed(request) or ["PRESET"]), *own_code.words_for(request), *about_files(overrides)]
