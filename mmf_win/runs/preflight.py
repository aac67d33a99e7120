"""What runs and presets read; that of a run is checked before it starts."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mmf_win.console import Progress, format_command, summarize_list
from mmf_win.dataset.annotations import AnnotationFile
from mmf_win.errors import DatasetError, UsageError
from mmf_win.inputs.discovery import list_config_inputs, list_dataset_paths
from mmf_win.inputs.feature_lmdb import find_mismatched_features, read_image_keys, rows_without_features
from mmf_win.inputs.input_files import InputFiles
from mmf_win.inputs.verification import VerifiedInputs, verify_inputs
from mmf_win.paths import MmfPaths, data_dir_arguments
from mmf_win.protocol import AttemptOutcome
from mmf_win.runs import presets
from mmf_win.runs.history import RunRecord
from mmf_win.runs.lookup import run_containing
from mmf_win.runs.plan import Plan, require_divisible_batch
from mmf_win.runs.request import RunRequest, format_override_value
from mmf_win.runs.targets import PredictionTarget
from mmf_win.upstream.checkpoint_files import read_checkpoint_progress
from mmf_win.upstream.config import Settings, merge_settings, resolve_config
from mmf_win.upstream.install import MmfInstall

_log = logging.getLogger(__name__)

_FILE_KEY_PREFIXES = ("checkpoint.", "dataset_config.", "env.", "model_config.")


def check_training(plan: Plan) -> tuple[VerifiedInputs, int | None]:
    """Check what training reads.

    Returned are that, and after how many updates training ends; None where only MMF knows. Raises UsageError
    where the configuration cannot be used, or would not train one update, and DataError where something is
    missing or broken.
    """
    request, attempt, config = plan.request, plan.first_attempt, plan.config
    settings, run_type = request.mmfw_settings, str(attempt.settings["run_type"])
    if "train" not in run_type:
        raise UsageError(f"preset {request.preset}: run_type {run_type} does not train", hint="leave it out")
    training = config["training"]
    if not (settings.epochs or training["max_epochs"] or training["max_updates"]):
        message = "training.max_updates: without it, and training.max_epochs, no run ends"
        raise UsageError(message, hint="set one")
    if not attempt.settings["training"].get("batch_size_per_device"):
        require_divisible_batch(config, attempt.train_task.nproc * attempt.train_task.nnodes)
    inputs = verify_inputs(
        Path(attempt.mmf_root),
        plan.job.mmf_paths,
        config,
        slots=("train", "val"),
        allow_missing=bool(settings.allow_missing),
        offline=request.offline or plan.job.options.dry_run,
        record=not plan.job.options.dry_run,
        hint_arguments=_hint_arguments(plan),
    )
    total = _total_updates(settings.epochs, config, inputs)
    _require_updates_left(plan, total)
    return inputs, total


def _require_updates_left(plan: Plan, total: int | None) -> None:
    """Refuse a checkpoint that leaves no update: at the total, or where a validation has ended training."""
    first, config = plan.first_attempt, plan.config
    reset, training = config["checkpoint"].get("reset") or {}, config["training"]
    if first.checkpoint is None or first.train_task.only_weights or reset.get("all") or reset.get("counts"):
        return
    checkpoint, patience = Path(first.checkpoint), training["early_stop.patience"]
    progress, run = read_checkpoint_progress(checkpoint), run_containing(checkpoint)
    if progress is None:
        return
    is_unfinished = (  # was stopped after its last update, but before it was done
        progress.update == total
        and run is not None
        and plan.request.start != first.checkpoint
        and AttemptOutcome.load(run.outcome_file) != AttemptOutcome("ok")
    )
    if total is not None and progress.update >= total and not is_unfinished:
        hint = f"name a total above {progress.update} with --updates"
        for preset in _preset_arguments(plan.request):
            path_arguments = [
                *data_dir_arguments(plan.job.mmf_paths.data_dir),
                "--save-dir",
                plan.job.mmf_paths.save_dir,
            ]
            command = format_command("mmfw", "train", preset, "--init", checkpoint, *path_arguments)
            hint += f", or begin again with these weights: `{command}`"
        message = f"{checkpoint}: it is at update {progress.update}, and the run's total is {total}"
        raise UsageError(message, hint=hint)
    if run is None or not training["early_stop.enabled"] or not isinstance(patience, int):
        return
    if progress.update <= progress.best_update + patience or AttemptOutcome.load(
        run.outcome_file
    ) != AttemptOutcome("ok"):
        return
    summary = RunRecord.read(run).summary
    if (summary.updates or 0) < (summary.max_updates or 0):
        raise UsageError(
            f"{checkpoint}: training has stopped early at update {progress.update}, as no validation after "
            f"update {progress.best_update} was better",
            hint="training.early_stop.enabled=False trains on",
        )


def _total_updates(epochs: int | None, config: Settings, inputs: VerifiedInputs) -> int | None:
    """After how many updates training ends.

    MMF counts epochs in a way of its own in each version, and its learning-rate schedules know only updates.
    """
    training = config["training"]
    total, epochs = training["max_updates"], epochs or training["max_epochs"]  # MMF, too, lets epochs win
    rows_per_update = [training["batch_size"], training["update_frequency"] or 1]
    # An interpolation may stand for anything.
    if isinstance(epochs, int) and all(isinstance(number, int) and number > 0 for number in rows_per_update):
        data = inputs.splits_read.get("train")  # None where there are several annotation files
        files = list_dataset_paths(config["dataset"], "annotations", ["train"])
        rows = sum(len(AnnotationFile(file).lines) for file in files) if data is None else data["rows"]
        batches = math.ceil(rows / training["batch_size"])
        total = epochs * math.ceil(batches / (training["update_frequency"] or 1))
    return total if isinstance(total, int) else None


def check_prediction(plan: Plan, target: PredictionTarget, features: Path | None) -> VerifiedInputs:
    """Check what a prediction reads; ``features`` is the LMDB that the user named for the memes.

    Raises DataError where something is missing or broken.
    """
    config = plan.config
    if features and not config["dataset"].get("use_features"):
        preset = plan.request.preset
        _log.warning("%s reads no region features, so those of %s are not used", preset, features)
    if target.is_user_data and config["dataset"].get("use_features"):
        lmdb = list_dataset_paths(config["dataset"], "features", ["test"])[0]
        _require_user_features(plan.job.mmf_paths, target, lmdb)
    return verify_inputs(
        Path(plan.first_attempt.mmf_root),
        plan.job.mmf_paths,
        config,
        slots=("test",),
        offline=plan.request.offline,
        hint_arguments=_hint_arguments(plan),
        loaded_annotations=[target.annotation_file],
    )


def _require_user_features(mmf_paths: MmfPaths, target: PredictionTarget, lmdb: Path) -> None:
    """Raise DatasetError for own memes whose images have no region features, or those of another image."""
    rows = target.rows
    keys = read_image_keys(lmdb) if (lmdb / "data.mdb").is_file() else frozenset()
    missing = rows_without_features(rows, keys)
    if missing:
        listing = summarize_list([row.display_id for row in missing])
        command = format_command("mmfw", "features", "add", "FOLDER", *data_dir_arguments(mmf_paths.data_dir))
        raise DatasetError(
            f"{target.source}: the preset reads region features, and {lmdb} has none of {len(missing)} of "
            f"{len(rows)} images ({listing})",
            hint=f"a preset such as mmbt_grid reads none, or `{command}` takes those that MMF's extraction "
            "scripts write, and --features names another LMDB",
        )
    for image, key in find_mismatched_features(rows, keys).items():
        raise DatasetError(
            f"{target.source}: MMF would take the region features {key} of another image for {image}",
            hint="MMF finds features by the number at the end of an image's name, else by the name up to "
            "its first dot, whatever the folder: rename the image and its features",
        )


def find_preset_inputs(
    mmf: MmfInstall, preset_names: Sequence[str], mmf_paths: MmfPaths, overrides: Sequence[str] = ()
) -> dict[InputFiles, list[str]]:
    """What presets, by their names or files, need with these overrides → which of them need it.

    Raises UsageError where there is no such preset, or its configuration cannot be put together.
    """
    presets_by_input: dict[InputFiles, list[str]] = {}
    with Progress("looking at presets", len(preset_names), "file") as progress:
        for name in preset_names:
            config = resolve_config(mmf.root, mmf_paths, presets.load(name), overrides)
            for files in list_config_inputs(mmf.root, mmf_paths, config):
                presets_by_input.setdefault(files, []).append(name)
            progress.advance(1)
    return presets_by_input


def find_run_inputs(
    mmf: MmfInstall, request: RunRequest, mmf_paths: MmfPaths, overrides: Sequence[str] = ()
) -> dict[InputFiles, list[str]]:
    """What training a run again, with more overrides, would need → its preset, as one would type it."""
    config_spec = replace(request, settings=merge_settings(request.preset_settings, request.settings))
    config = resolve_config(
        mmf.root, mmf_paths, config_spec, overrides, checked_settings=request.settings_to_validate
    )
    return {files: _preset_arguments(request) for files in list_config_inputs(mmf.root, mmf_paths, config)}


def file_overrides(request: RunRequest) -> list[str]:
    """The overrides by which another command finds the files of a run that its preset alone does not name."""
    items = request.user_settings.items()
    return [
        f"{key}={format_override_value(value)}" for key, value in items if key.startswith(_FILE_KEY_PREFIXES)
    ]


def _preset_arguments(request: RunRequest) -> list[str]:
    """The run's preset if one can name it: the user's own may be gone."""
    if request.preset_file is not None and Path(request.preset_file).is_file():
        return [request.preset_file]
    return [request.preset] if request.preset in presets.names() else []


def _hint_arguments(plan: Plan) -> list[str]:
    """By which preset and overrides the files of this run are found."""
    arguments = [*(_preset_arguments(plan.request) or ["PRESET"]), *file_overrides(plan.request)]
    overrides = [override for override in plan.job.options.overrides if override.startswith("checkpoint.")]
    return list(dict.fromkeys([*arguments, *overrides]))
