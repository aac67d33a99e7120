"""What runs and presets read; that of a run is checked before it starts."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TypeVar

from mmf_win.console import Progress, first_few, shell_line
from mmf_win.dataset.annotations import count_rows, is_unicode
from mmf_win.errors import DatasetError, MmfError, UsageError
from mmf_win.inputs.check import Inputs, check
from mmf_win.inputs.given import Input
from mmf_win.inputs.keys import image_keys, taken_from_another_image, without_features
from mmf_win.inputs.listing import inputs_of, paths_of
from mmf_win.paths import Places, data_option
from mmf_win.protocol import Attempt, Exit
from mmf_win.runs import own_code, plan, presets
from mmf_win.runs.history import Record
from mmf_win.runs.lookup import owner
from mmf_win.runs.request import Job, Request, as_typed
from mmf_win.runs.targets import Target
from mmf_win.unpacking.staging import require_makeable
from mmf_win.upstream.checkpoint_files import counts
from mmf_win.upstream.config import OURS, Tree, merge, put, resolve
from mmf_win.upstream.install import Installed, changed_files, usable_mmf
from mmf_win.upstream.overrides import literal
from mmf_win.upstream.settings import HARMFUL
from mmf_win.upstream.versions import config_path

_log = logging.getLogger(__name__)
_J = TypeVar("_J", bound=Job)

_ABOUT_FILES = ("checkpoint.", "dataset_config.", "env.", "model_config.")


def mmf_for(request: Request) -> Installed:
    """The MMF that runs, or an MmfError; a UsageError where it lacks the configuration that is asked for."""
    mmf = usable_mmf()
    _note_changes(mmf)
    if request.config is not None:
        try:
            config_path(mmf.root, request.config)
        except MmfError as error:
            raise UsageError(f"preset {request.preset}: {error}", hint=error.hint) from None
    return mmf


@cache
def _note_changes(mmf: Installed) -> None:
    """Say once, however many predictions follow, what is not as usual: MMF, and variables of Python."""
    if ignored := [name for name in HARMFUL if os.environ.get(name)]:
        _log.warning("ignoring %s, which would break or slow the training", ", ".join(ignored))
    if changed := changed_files(mmf):
        _log.warning("changed or missing files of MMF: %d", len(changed))


def composed(first: Attempt, job: _J, whose: str) -> tuple[Attempt, _J, Tree]:
    """An attempt and a job with the overrides of this command in their settings, and MMF's configuration.

    That is as :func:`~mmf_win.upstream.config.resolve` gives it. Raises UsageError where it cannot be put
    together, and as :func:`mmf_win.runs.own_code.folder_of`; ``whose`` is what errors call the run or preset.
    """
    request, once, places = job.request, job.once, job.places
    require_makeable(places)
    for path in (places.data_dir, places.save_dir, places.cache_dir, first.checkpoint):
        if not is_unicode(str(path)):
            raise UsageError(f"{path}: this path is not in UTF-8, and MMF takes no other", hint="rename it")
    asked = replace(request, settings=first.settings)
    config = resolve(Path(first.mmf), places, asked, once.overrides, checked=_checked(request))
    typed = config["typed"]
    code = own_code.folder_of(config["user_dir"], once, whose)
    if code is not None:
        typed = merge(typed, {"env": {"user_dir": literal(code)}})
    request = request.over(typed)
    # An override of MMF's own precision takes the place of what an option chose before.
    first = replace(first, settings=merge(first.settings, typed), precision=request.ours.precision)
    return first, replace(job, request=request), config


def check_training(asked: Attempt, job: Job, config: Tree) -> tuple[Inputs, int | None]:
    """Check what training reads; the arguments are what :func:`composed` gives.

    Returned are that, and after how many updates training ends; None where only MMF knows. Raises UsageError
    where the configuration cannot be used, or would not train one update, and DataError where something is
    missing or broken.
    """
    request, ours, run_type = job.request, job.request.ours, str(asked.settings["run_type"])
    if "train" not in run_type:
        raise UsageError(f"preset {request.preset}: run_type {run_type} does not train", hint="leave it out")
    training = config["training"]
    if not (ours.epochs or training["max_epochs"] or training["max_updates"]):
        message = "training.max_updates: without it, and training.max_epochs, no run ends"
        raise UsageError(message, hint="set one")
    if not asked.settings["training"].get("batch_size_per_device"):
        plan.require_even(config, asked.nproc * asked.nnodes)
    inputs = check(
        Path(asked.mmf),
        job.places,
        config,
        slots=("train", "val"),
        allow_missing=ours.allow_missing,
        offline=request.offline or job.once.dry_run,
        record=not job.once.dry_run,
        hint_words=_hint_words(job),
    )
    total = _total(ours.epochs, config, inputs)
    _require_updates_left(asked, job, config, total)
    return inputs, total


def _require_updates_left(asked: Attempt, job: Job, config: Tree, total: int | None) -> None:
    """Refuse a checkpoint that leaves no update: at the total, or where a validation has ended training."""
    reset, training = config["checkpoint"].get("reset") or {}, config["training"]
    if asked.checkpoint is None or asked.weights_alone or reset.get("all") or reset.get("counts"):
        return
    checkpoint, patience = Path(asked.checkpoint), training["early_stop.patience"]
    counted, run = counts(checkpoint), owner(checkpoint)
    if counted is None:
        return
    is_to_finish = (  # was stopped after its last update, but before it was done
        counted.update == total
        and run is not None
        and job.request.start != asked.checkpoint
        and Exit.load(run.exit_file) != Exit("ok")
    )
    if total is not None and counted.update >= total and not is_to_finish:
        hint = f"name a total above {counted.update} with --updates"
        for preset in _typed(job.request):
            where = [*data_option(job.places.data_dir), "--save-dir", job.places.save_dir]
            begin = shell_line("mmfw", "train", preset, "--init", checkpoint, *where)
            hint += f", or begin again with these weights: `{begin}`"
        message = f"{checkpoint}: it is at update {counted.update}, and the run's total is {total}"
        raise UsageError(message, hint=hint)
    if run is None or not training["early_stop.enabled"] or not isinstance(patience, int):
        return
    if counted.update <= counted.best_update + patience or Exit.load(run.exit_file) != Exit("ok"):
        return
    summary = Record.read(run).summary
    if (summary.updates or 0) < (summary.max_updates or 0):
        raise UsageError(
            f"{checkpoint}: training has stopped early at update {counted.update}, as no validation after "
            f"update {counted.best_update} was better",
            hint="training.early_stop.enabled=False trains on",
        )


def _total(epochs: int | None, config: Tree, inputs: Inputs) -> int | None:
    """After how many updates training ends.

    MMF counts epochs in a way of its own in each version, and its learning-rate schedules know only updates.
    """
    training = config["training"]
    total, epochs = training["max_updates"], epochs or training["max_epochs"]  # MMF, too, lets epochs win
    rows_an_update = [training["batch_size"], training["update_frequency"] or 1]
    # An interpolation may stand for anything.
    if isinstance(epochs, int) and all(isinstance(number, int) and number > 0 for number in rows_an_update):
        read = inputs.data.get("train")  # None where there are several annotation files
        files = paths_of(config["dataset"], "annotations", ["train"])
        rows = sum(map(count_rows, files)) if read is None else read["rows"]
        batches = math.ceil(rows / training["batch_size"])
        total = epochs * math.ceil(batches / (training["update_frequency"] or 1))
    return total if isinstance(total, int) else None


def check_prediction(asked: Attempt, job: Job, config: Tree, target: Target, features: Path | None) -> Inputs:
    """Check what a prediction reads; ``features`` is the LMDB that the user named for the memes.

    The others are as :func:`composed` gives them. Raises DataError where something is missing or broken.
    """
    if features and not config["dataset"].get("use_features"):
        preset = job.request.preset
        _log.warning("%s reads no region features, so those of %s are not used", preset, features)
    if target.is_own and config["dataset"].get("use_features"):
        lmdb = paths_of(config["dataset"], "features", ["test"])[0]
        _require_own_features(job.places, target, lmdb)
    offline, words = job.request.offline, _hint_words(job)
    return check(Path(asked.mmf), job.places, config, slots=("test",), offline=offline, hint_words=words)


def _require_own_features(places: Places, target: Target, lmdb: Path) -> None:
    """Raise DatasetError for own memes whose images have no region features, or those of another image."""
    rows = target.rows
    keys = image_keys(lmdb) if (lmdb / "data.mdb").is_file() else frozenset()
    missing = without_features(rows, keys)
    if missing:
        shown = first_few([row.shown_id for row in missing])
        add = shell_line("mmfw", "features", "add", "FOLDER", *data_option(places.data_dir))
        raise DatasetError(
            f"{target.source}: the preset reads region features, and {lmdb} has none of {len(missing)} of "
            f"{len(rows)} images ({shown})",
            hint=f"a preset such as mmbt_grid reads none, or `{add}` takes those that MMF's extraction "
            "scripts write, and --features names another LMDB",
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
    """What presets, by their names or files, need with these overrides → which of them need it.

    Raises UsageError where there is no such preset, or its configuration cannot be put together.
    """
    found: dict[Input, list[str]] = {}
    with Progress("looking at presets", len(names), "file") as progress:
        for name in names:
            config = resolve(mmf.root, places, presets.load(name), overrides)
            for each in inputs_of(mmf.root, places, config):
                found.setdefault(each, []).append(name)
            progress.advance(1)
    return found


def inputs_of_run(
    mmf: Installed, request: Request, places: Places, overrides: Sequence[str] = ()
) -> dict[Input, list[str]]:
    """What training a run again, with more overrides, would need → its preset, as one would type it."""
    asked = replace(request, settings=merge(request.preset_settings, request.settings))
    config = resolve(mmf.root, places, asked, overrides, checked=_checked(request))
    return {each: _typed(request) for each in inputs_of(mmf.root, places, config)}


def _checked(request: Request) -> Tree | None:
    """What the user chose; of a preset that trained before, what MMF drops must not keep it from going on."""
    if not request.mmf:
        return None
    checked: Tree = {}
    for key, value in request.chosen.items():
        put(checked, key, value)
    checked.pop(OURS, None)
    return checked


def words_about_files(request: Request) -> list[str]:
    """The overrides by which another command finds the files of a run that its preset alone does not name."""
    chosen = request.chosen.items()
    return [f"{key}={as_typed(value)}" for key, value in chosen if key.startswith(_ABOUT_FILES)]


def _typed(request: Request) -> list[str]:
    """The run's preset if one can name it: the user's own may be gone."""
    if request.preset_file is not None and Path(request.preset_file).is_file():
        return [request.preset_file]
    return [request.preset] if request.preset in presets.names() else []


def _hint_words(job: Job) -> list[str]:
    """By which preset and overrides the files of this run are found."""
    words = [*(_typed(job.request) or ["PRESET"]), *words_about_files(job.request)]
    typed = [word for word in job.once.overrides if word.startswith("checkpoint.")]
    return list(dict.fromkeys([*words, *typed]))
