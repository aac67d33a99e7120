"""Finding the inputs of runs and presets, and checking them before a run starts."""

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
from mmf_win.inputs.feature_lmdb import find_mismatched_features, find_rows_without_features, read_image_keys
from mmf_win.inputs.input_files import InputFiles
from mmf_win.inputs.verification import VerifiedInputs, verify_inputs
from mmf_win.paths import MmfPaths, data_dir_arguments
from mmf_win.protocol import AttemptOutcome
from mmf_win.runs import presets
from mmf_win.runs.history import RunRecord
from mmf_win.runs.lookup import find_run_containing
from mmf_win.runs.plan import Plan, require_divisible_batch
from mmf_win.runs.request import RunRequest, format_override_value
from mmf_win.runs.targets import PredictionTarget
from mmf_win.upstream.checkpoint_files import read_checkpoint_progress
from mmf_win.upstream.config import Settings, merge_settings, resolve_config
from mmf_win.upstream.install import MmfInstall

_log = logging.getLogger(__name__)

_FILE_KEY_PREFIXES = ("checkpoint.", "dataset_config.", "env.", "model_config.")


def check_training(plan: Plan) -> tuple[VerifiedInputs, int | None]:
    """Check the configuration and the inputs of a training.

    Returns:
        The verified inputs, and the total number of updates (``None`` if only MMF can compute it).

    Raises:
        UsageError: The configuration is invalid, or would not train a single update.
        DataError: An input is missing or damaged.
    """
    request, attempt, config = plan.request, plan.first_attempt, plan.config
    settings, run_type = request.mmfw_settings, str(attempt.settings["run_type"])
    if "train" not in run_type:
        raise UsageError(f"preset {request.preset}: run_type {run_type} does not train", hint="remove run_type")
    training = config["training"]
    if not (settings.epochs or training["max_epochs"] or training["max_updates"]):
        message = "neither training.max_updates nor training.max_epochs is set"
        raise UsageError(message, hint="set one of them")
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
    """Check that a checkpoint leaves an update to train.

    It does not at the total number of updates, or after a validation that ended the training early.

    Raises:
        UsageError: There is no update left to train.
    """
    first, config = plan.first_attempt, plan.config
    reset, training = config["checkpoint"].get("reset") or {}, config["training"]
    if first.checkpoint is None or first.train_task.only_weights or reset.get("all") or reset.get("counts"):
        return
    checkpoint, patience = Path(first.checkpoint), training["early_stop.patience"]
    progress, run = read_checkpoint_progress(checkpoint), find_run_containing(checkpoint)
    if progress is None:
        return
    success = AttemptOutcome("ok")
    is_unfinished = (  # stopped after its last update, but before its end
        progress.update == total
        and run is not None
        and plan.request.start_checkpoint != first.checkpoint
        and AttemptOutcome.load(run.outcome_file) != success
    )
    if total is not None and progress.update >= total and not is_unfinished:
        hint = f"pass a total above {progress.update} with --updates"
        for preset in _preset_arguments(plan.request):
            arguments = [*data_dir_arguments(plan.job.mmf_paths.data_dir), "--save-dir", plan.job.mmf_paths.save_dir]
            command = format_command("mmfw", "train", preset, "--init", checkpoint, *arguments)
            hint += f", or start over with these weights: `{command}`"
        message = f"{checkpoint} is at update {progress.update}; the run is already complete (total: {total})"
        raise UsageError(message, hint=hint)
    if run is None or not training["early_stop.enabled"] or not isinstance(patience, int):
        return
    if progress.update <= progress.best_update + patience or AttemptOutcome.load(run.outcome_file) != success:
        return
    summary = RunRecord.read(run).summary
    if (summary.updates or 0) < (summary.max_updates or 0):
        raise UsageError(
            f"{checkpoint}: training stopped early at update {progress.update}, since no validation after "
            f"update {progress.best_update} was better",
            hint="to continue, set `training.early_stop.enabled=False`",
        )


def _total_updates(epochs: int | None, config: Settings, inputs: VerifiedInputs) -> int | None:
    """Return the number of updates at which training ends, or ``None`` if only MMF can compute it.

    MMF counts epochs differently in each version, and its learning-rate schedules use only updates.
    """
    training = config["training"]
    # Epochs take precedence, as in MMF.
    total, epochs = training["max_updates"], epochs or training["max_epochs"]
    rows_per_update = [training["batch_size"], training["update_frequency"] or 1]
    # Interpolations are not resolved.
    if isinstance(epochs, int) and all(isinstance(number, int) and number > 0 for number in rows_per_update):
        data = inputs.splits_read.get("train")  # None if there are several annotation files
        files = list_dataset_paths(config["dataset"], "annotations", ["train"])
        rows = sum(len(AnnotationFile(file).lines) for file in files) if data is None else data["rows"]
        batches = math.ceil(rows / training["batch_size"])
        total = epochs * math.ceil(batches / (training["update_frequency"] or 1))
    return total if isinstance(total, int) else None


def check_prediction(plan: Plan, target: PredictionTarget, features: Path | None) -> VerifiedInputs:
    """Check the inputs of a prediction.

    Args:
        plan: Plan of the prediction.
        target: Memes to predict.
        features: LMDB with region features given by the user, or ``None``.

    Returns:
        The verified inputs.

    Raises:
        DataError: An input is missing or damaged.
    """
    config = plan.config
    if features and not config["dataset"].get("use_features"):
        preset = plan.request.preset
        _log.warning("%s does not use region features, ignoring %s", preset, features)
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
    """Check that each image of user data has region features, and not those of another image.

    Raises:
        DatasetError: Features are missing, or MMF would use those of another image.
    """
    rows = target.rows
    keys = read_image_keys(lmdb) if (lmdb / "data.mdb").is_file() else frozenset()
    missing = find_rows_without_features(rows, keys)
    if missing:
        listing = summarize_list([row.display_id for row in missing])
        command = format_command("mmfw", "features", "add", "FOLDER", *data_dir_arguments(mmf_paths.data_dir))
        raise DatasetError(
            f"{target.source}: the preset needs region features, but {lmdb} has none for {len(missing)} of "
            f"{len(rows)} images ({listing})",
            hint="use a preset without region features such as mmbt_grid, add the output of MMF's extraction "
            f"scripts with `{command}`, or pass another LMDB with --features",
        )
    for image, key in find_mismatched_features(rows, keys).items():
        raise DatasetError(
            f"{target.source}: MMF would use the region features {key} of another image for {image}",
            hint="rename the image and its features; MMF finds features by the number at the end of the "
            "image's name, else by the name up to its first dot, in any folder",
        )


def find_preset_inputs(
    mmf: MmfInstall, preset_names: Sequence[str], mmf_paths: MmfPaths, overrides: Sequence[str] = ()
) -> dict[InputFiles, list[str]]:
    """Return the inputs of presets, mapped to the presets that need them.

    Args:
        mmf: Installation of MMF.
        preset_names: Names or files of the presets.
        mmf_paths: Folders of MMF.
        overrides: Overrides applied to each preset.

    Returns:
        Input files → names of the presets.

    Raises:
        UsageError: A preset does not exist, or its configuration cannot be composed.
    """
    presets_by_input: dict[InputFiles, list[str]] = {}
    with Progress("reading presets", len(preset_names), "file") as progress:
        for name in preset_names:
            config = resolve_config(mmf.root, mmf_paths, presets.load_preset(name), overrides)
            for files in list_config_inputs(mmf.root, mmf_paths, config):
                presets_by_input.setdefault(files, []).append(name)
            progress.advance(1)
    return presets_by_input


def find_run_inputs(
    mmf: MmfInstall, request: RunRequest, mmf_paths: MmfPaths, overrides: Sequence[str] = ()
) -> dict[InputFiles, list[str]]:
    """Return the inputs for training a run again with overrides → the arguments that name its preset."""
    config_spec = replace(request, settings=merge_settings(request.preset_settings, request.settings))
    config = resolve_config(mmf.root, mmf_paths, config_spec, overrides, checked_settings=request.settings_to_validate)
    return {files: _preset_arguments(request) for files in list_config_inputs(mmf.root, mmf_paths, config)}


def file_overrides(request: RunRequest) -> list[str]:
    """Return the overrides that another command needs, besides the preset, to find the files of a run."""
    items = request.user_settings.items()
    return [f"{key}={format_override_value(value)}" for key, value in items if key.startswith(_FILE_KEY_PREFIXES)]


def _preset_arguments(request: RunRequest) -> list[str]:
    """Return the preset of a run as an argument, or nothing if the file of a user's preset is missing."""
    if request.preset_file is not None and Path(request.preset_file).is_file():
        return [request.preset_file]
    return [request.preset] if request.preset in presets.list_presets() else []


def _hint_arguments(plan: Plan) -> list[str]:
    """Return the preset and the overrides that identify the files of this run in hints."""
    arguments = [*(_preset_arguments(plan.request) or ["PRESET"]), *file_overrides(plan.request)]
    overrides = [override for override in plan.job.options.overrides if override.startswith("checkpoint.")]
    return list(dict.fromkeys([*arguments, *overrides]))
