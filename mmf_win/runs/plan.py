"""Planning the attempts of a run: the first one, and the next one after out-of-memory.

This includes the number of processes that train together, on one or several machines.
:func:`choose_reduction` defines the order in which limits are reduced.
"""

from __future__ import annotations

import logging
import math
import os
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from mmf_win import machine
from mmf_win.dataset.annotations import is_valid_unicode
from mmf_win.errors import MmfEnvironmentError, UsageError
from mmf_win.inputs.verification import VerifiedInputs
from mmf_win.paths import MmfPaths
from mmf_win.protocol import AttemptOutcome, AttemptRequest, Event
from mmf_win.protocol.attempt import AttemptTask, PredictTask, TrainTask
from mmf_win.runs import micro_batch_store, user_code
from mmf_win.runs.folder import Run
from mmf_win.runs.request import CommandOptions, RunRequest, drop_start_settings
from mmf_win.runs.targets import PredictionTarget
from mmf_win.unpacking.staging import require_creatable_folders
from mmf_win.upstream import default_settings
from mmf_win.upstream.config import Settings, merge_settings, resolve_config
from mmf_win.upstream.install import MmfInstall, find_changed_files, require_mmf
from mmf_win.upstream.overrides import escape_interpolation
from mmf_win.upstream.versions import config_path, has_key, read_version

_log = logging.getLogger(__name__)

_NODES_HINT = "pass --rdzv HOST:PORT of node 0, and --node-rank N of this machine"


@dataclass(frozen=True)
class RunJob:
    """Training or prediction to plan.

    Attributes:
        request: Request of the run so far, without the options of this command.
        options: Options of this command.
        mmf_paths: Folders of MMF.
        run: Run to resume in its folder, or to predict with; ``None`` for a new run.
        name: Name of a new run; ``None`` for that of the preset.
        checkpoint: File to start from; ``None`` for MMF's initial weights.
        only_weights: Load only the weights of the checkpoint and start at update 0.
    """

    request: RunRequest
    options: CommandOptions
    mmf_paths: MmfPaths
    run: Run | None = None
    name: str | None = None
    checkpoint: Path | None = None
    only_weights: bool = False


@dataclass(frozen=True)
class Plan:
    """A planned training or prediction.

    Attributes:
        job: The training or prediction.
        request: Request of the run, with the options and overrides of the command.
        first_attempt: The first attempt; its settings are complete.
        config: Configuration that MMF resolves from them (see
            :func:`mmf_win.upstream.config.resolve_config`).
        inputs: Verified inputs of a training.
    """

    job: RunJob
    request: RunRequest
    first_attempt: AttemptRequest
    config: Settings
    inputs: VerifiedInputs = field(default_factory=VerifiedInputs)


def plan_training(job: RunJob) -> Plan:
    """Plan a training without checking its inputs.

    Returns:
        The plan.

    Raises:
        UsageError: MMF lacks the preset's configuration, or the configuration cannot be composed (see
            :func:`plan_attempt`).
        MmfEnvironmentError: MMF is missing or cannot be used.
        DataError: The user code is not trusted.
    """
    options, mmf, process_fields = job.options, require_mmf_for(job.request), plan_processes(job.options)
    request = job.request.merged_with(options.settings)
    mmfw_settings = request.mmfw_settings
    # In fp16, overflowing updates are skipped; anomaly detection would end the training at the first one.
    detect_anomaly = options.detect_anomaly and mmfw_settings.precision != "fp16"
    if options.detect_anomaly and not detect_anomaly:
        _log.warning("--detect-anomaly is ignored in fp16, where overflowing updates are skipped")
    # MMF loads the test set before it trains, and fails without one.
    has_test = job.mmf_paths.dataset.annotation_file(request.splits["test"]).is_file()
    splits = request.splits if has_test else {**request.splits, "test": request.splits["val"]}
    settings = merge_settings(
        default_settings.common_settings(request.model, splits, mmf.version, process_fields["nproc"]),
        default_settings.training_settings(mmfw_settings.updates),
        request.mmf_settings,
        {"training": {"detect_anomaly": True}} if detect_anomaly else {},  # in 1.0.0rc10, added by a patch
        default_settings.resume_settings(job.checkpoint) if job.checkpoint else {},
    )
    task = TrainTask(
        only_weights=job.only_weights,
        keep_checkpoints=1 if mmfw_settings.keep is None else mmfw_settings.keep,
        find_micro_batch=bool(mmfw_settings.auto_batch),
        known_micro_batches=micro_batch_store.load_micro_batches() if options.use_known_fits else {},
        **process_fields,
    )
    return plan_attempt(task, mmf, job, request, settings)


def plan_prediction(job: RunJob, checkpoint: Path, target: PredictionTarget, features: Path | None) -> Plan:
    """Plan a prediction.

    Args:
        job: The run and the options of the command.
        checkpoint: Checkpoint to predict with.
        target: Memes to predict.
        features: LMDB with region features to use instead of the dataset's, or ``None``.

    Returns:
        The plan.

    Raises:
        UsageError: MMF lacks the preset's configuration, or the configuration cannot be composed (see
            :func:`plan_attempt`).
        MmfEnvironmentError: MMF is missing or cannot be used.
        DataError: The user code is not trusted.
    """
    mmf, request = require_mmf_for(job.request), job.request.merged_with(job.options.settings)
    job = replace(job, checkpoint=checkpoint)
    settings = merge_settings(
        default_settings.common_settings(request.model, request.splits, mmf.version),
        request.mmf_settings,
        default_settings.prediction_settings(checkpoint, mmf.version),
        target.settings,
        default_settings.settings_for_all_splits(features=features) if features else {},
    )
    return plan_attempt(PredictTask(str(target.annotation_file.path)), mmf, job, request, settings)


def plan_attempt(task: AttemptTask, mmf: MmfInstall, job: RunJob, request: RunRequest, base_settings: Settings) -> Plan:
    """Merge the command's overrides into the settings and resolve MMF's configuration.

    Args:
        task: Task of the attempt.
        mmf: Installation of MMF.
        job: The run and the options of the command.
        request: Request of the run, merged with the options.
        base_settings: Settings of the attempt without the overrides.

    Returns:
        The plan with its first attempt.

    Raises:
        UsageError: A path is not valid UTF-8, or the configuration cannot be composed.
        DataError: The user code is not trusted (see :func:`mmf_win.runs.user_code.resolve_user_dir`).
    """
    options, mmf_paths, checkpoint = job.options, job.mmf_paths, job.checkpoint
    require_creatable_folders(mmf_paths)
    for path in (mmf_paths.data_dir, mmf_paths.save_dir, mmf_paths.cache_dir, checkpoint):
        if not is_valid_unicode(str(path)):
            raise UsageError(f"{path}: the path is not valid UTF-8, which MMF requires", hint="rename it")
    base_settings = default_settings.add_hooks(base_settings, mmf.version, request.mmfw_settings.precision)
    spec = replace(request, settings=base_settings)
    config = resolve_config(mmf.root, mmf_paths, spec, options.overrides, checked_settings=request.settings_to_validate)
    overrides = config["typed"]
    owner_name = f"run {job.run.id}" if job.run else f"preset {request.preset}"
    user_dir = user_code.resolve_user_dir(config["user_dir"], options, owner_name)
    if user_dir is not None:
        overrides = merge_settings(overrides, {"env": {"user_dir": escape_interpolation(user_dir)}})
    # An override of MMF's own precision replaces that of an option.
    request = request.merged_with(overrides)
    first_attempt = AttemptRequest(
        task,
        request.model,
        str(mmf.root),
        settings=merge_settings(base_settings, overrides),
        base_config=request.config,
        checkpoint=str(checkpoint) if checkpoint else None,
        precision=request.mmfw_settings.precision,
        fast=bool(request.mmfw_settings.fast),
        trust=options.trust,
        image_cache_dir=str(mmf_paths.image_cache_dir) if mmf_paths.image_cache_dir else None,
    )
    return Plan(job, request, first_attempt, config)


def require_mmf_for(request: RunRequest) -> MmfInstall:
    """Return the MMF installation for a run.

    Raises:
        MmfEnvironmentError: MMF is missing or cannot be used.
        UsageError: MMF lacks the configuration that the preset names.
    """
    mmf = require_mmf()
    _warn_about_environment(mmf)
    if request.config is not None:
        try:
            config_path(mmf.root, request.config)
        except MmfEnvironmentError as error:
            raise UsageError(f"preset {request.preset}: {error}", hint=error.hint) from None
    return mmf


@cache
def _warn_about_environment(mmf: MmfInstall) -> None:
    """Log warnings about changed files of MMF and harmful variables, once per installation."""
    if ignored := [name for name in default_settings.HARMFUL_VARIABLES if os.environ.get(name)]:
        _log.warning("ignoring %s, which would break or slow down the training", ", ".join(ignored))
    if changed := find_changed_files(mmf):
        _log.warning("changed or missing files of MMF: %d", len(changed))


def plan_processes(options: CommandOptions) -> dict[str, Any]:
    """Determine the processes of a training from the options.

    Returns:
        The fields ``nproc``, ``nnodes``, ``node_rank`` and ``rdzv`` of
        :class:`~mmf_win.protocol.attempt.TrainTask`.

    Raises:
        UsageError: The processes cannot be started.
    """
    gpus = 0 if options.cpu else machine.count_gpus()
    nproc = max(1, gpus) if options.nproc == "auto" else int(options.nproc or 1)
    if gpus and nproc > gpus:
        available = "only 1 GPU is available" if gpus == 1 else f"only {gpus} GPUs are available"
        raise UsageError(f"--nproc {nproc}: {available}", hint="use --nproc auto for all, or --cpu")
    if gpus > 1 and options.nproc is None:
        _log.info("training on 1 of %d GPUs; --nproc auto uses all", gpus)
    if options.nnodes == 1 and (options.rdzv, options.node_rank) != (None, None):
        raise UsageError("--rdzv and --node-rank require several machines", hint="pass their number with --nnodes")
    if options.nnodes > 1:
        host, _, port = (options.rdzv or "").rpartition(":")
        if options.node_rank is None or not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise UsageError("--nnodes requires --rdzv and --node-rank", hint=_NODES_HINT)
        if options.node_rank >= options.nnodes:
            raise UsageError(f"--node-rank {options.node_rank}: must be from 0 to {options.nnodes - 1}")
    if ignored := default_settings.launcher_variables(os.environ):
        _log.warning("ignoring the variables %s: mmfw starts its processes itself", ", ".join(ignored))
    return {"nproc": nproc, "nnodes": options.nnodes, "node_rank": options.node_rank or 0, "rdzv": options.rdzv}


def require_divisible_batch(config: Settings, process_count: int) -> None:
    """Check that a batch can be divided evenly among ``process_count`` processes.

    Raises:
        UsageError: The batch cannot be divided.
    """
    batch = config["training"]["batch_size"]
    if not isinstance(batch, int) or batch % process_count == 0:
        return
    divisors = [str(number) for number in range(1, batch + 1) if batch % number == 0]
    raise UsageError(
        f"a batch of {batch} rows cannot be divided evenly among {process_count} processes",
        hint=f"use {', '.join(divisors)} processes, or another --batch-size",
    )


def choose_reduction(
    failed_attempt: AttemptRequest, outcome: AttemptOutcome, start_event: Event | None
) -> tuple[str, int, int] | None:
    """Choose the limit to reduce for the next attempt after out-of-memory.

    After host memory ran out, the ``workers`` of the DataLoader are halved, down to 0. After GPU memory ran
    out, ``eval_batch`` (validation, prediction) or else ``micro_batch`` is reduced; an update keeps its rows.

    Args:
        failed_attempt: The attempt that failed.
        outcome: Its outcome.
        start_event: Event with its actual limits; ``None`` if not even the model fitted.

    Returns:
        Name, old value and new value of the limit, or ``None`` if memory was not the reason or nothing can be
        reduced.
    """
    if start_event is None:
        return None
    workers, batch = start_event["workers"], start_event["batch"]
    if outcome.kind == "host_oom":
        return ("workers", workers, workers // 2) if workers else None
    if outcome.kind != "cuda_oom":
        return None
    if outcome.during_validation or not failed_attempt.is_training:
        limit_name, old_value = "eval_batch", failed_attempt.eval_batch or batch
    else:
        limit_name, old_value = "micro_batch", start_event["micro_batch"]
    new_value = smaller_micro_batch(batch, old_value)
    return (limit_name, old_value, new_value) if new_value else None


def smaller_micro_batch(batch_rows: int, failed_rows: int) -> int | None:
    """Return the micro-batch that splits a batch into twice as many parts as ``failed_rows`` did.

    Parts are as equal as possible, so limits of 23 and 16 rows both split 31 rows in two.

    Args:
        batch_rows: Rows of the batch.
        failed_rows: Micro-batch that did not fit.

    Returns:
        Rows of the next micro-batch, or ``None`` if ``failed_rows`` is 1.
    """
    parts = 2 * math.ceil(batch_rows / failed_rows)
    return math.ceil(batch_rows / parts) if failed_rows > 1 else None


def next_attempt(
    failed_attempt: AttemptRequest, limit_name: str, limit_value: int, start_event: Event, checkpoint: Path | None
) -> AttemptRequest:
    """Return the request of the attempt that follows one that ran out of memory.

    Args:
        failed_attempt: Request of the failed attempt.
        limit_name: Limit to reduce (see :func:`choose_reduction`).
        limit_value: New value of the limit.
        start_event: Start event of the failed attempt, with its seed.
        checkpoint: Newest intact checkpoint if the failed attempt saved one; else the start stays the same.

    Returns:
        The request of the next attempt.
    """
    attempt = failed_attempt
    extra_settings: Settings = {}
    if checkpoint is not None:
        # The settings of the start must not apply again.
        settings = merge_settings(drop_start_settings(attempt.settings), default_settings.resume_settings(checkpoint))
        task = replace(failed_attempt.train_task, only_weights=False)
        attempt = replace(failed_attempt, task=task, settings=settings, checkpoint=str(checkpoint))
    elif failed_attempt.is_training and (failed_attempt.checkpoint is None or failed_attempt.train_task.only_weights):
        extra_settings["training"] = {"seed": start_event["seed"]}
    if limit_name == "workers":
        extra_settings = merge_settings(extra_settings, {"training": {"num_workers": limit_value}})
    elif limit_name == "eval_batch":
        attempt = replace(attempt, eval_batch=limit_value)
        # It keeps the scores of a whole split off the GPU. A hook does so in MMF versions without the key.
        if has_key(read_version(Path(failed_attempt.mmf_root)), "evaluation.use_cpu"):
            extra_settings["evaluation"] = {"use_cpu": True}
    else:
        attempt = replace(attempt, task=replace(attempt.train_task, micro_batch=limit_value))
    return replace(attempt, settings=merge_settings(attempt.settings, extra_settings))
