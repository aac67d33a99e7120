"""Plans the attempts of a run: what the first one does, and what the next one does after memory ran out.

That includes the processes that train together: how many, on which machines, and whether they can.
The order in which attempts shrink is in :func:`choose_reduction`.
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


@dataclass(frozen=True)
class RunJob:
    """The beginning of a training or a prediction.

    Attributes:
        request: what the run was asked for so far, without the options of this command.
        options: what this command asks for.
        places: MMF's folders.
        run: the run to resume in its folder, or that predicts; None for a new one.
        name: the new run's; None for that of the preset.
        checkpoint: the file to start from; None for the weights that MMF begins with.
        weights_alone: of the checkpoint, take only the weights, and begin at update 0.
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
    """The work of a training or a prediction, planned from its beginning.

    Attributes:
        start: where it begins.
        request: what the run is asked for, with the options and overrides of the command.
        first: the first attempt; its settings are all that MMF gets.
        config: the configuration that MMF makes of them; see :func:`mmf_win.upstream.config.resolve_config`.
        inputs: what a training reads, checked.
    """

    job: RunJob
    request: RunRequest
    first_attempt: AttemptRequest
    config: Settings
    inputs: VerifiedInputs = field(default_factory=VerifiedInputs)


def plan_training(job: RunJob) -> Plan:
    """Plan a training, which is not checked yet. Raises as :func:`plan_attempt`."""
    options, mmf, process_fields = job.options, require_mmf_for(job.request), plan_processes(job.options)
    request = job.request.merged_with(options.settings)
    mmfw_settings = request.mmfw_settings
    # In fp16, updates overflow now and then, and are left out; an anomaly of each would end the training.
    detect_anomaly = options.detect_anomaly and mmfw_settings.precision != "fp16"
    if options.detect_anomaly and not detect_anomaly:
        _log.warning("anomalies are not looked for: in fp16, updates overflow now and then, and are left out")
    # MMF loads the test set before it trains, and fails without one.
    has_test = job.mmf_paths.dataset.annotation_file(request.splits["test"]).is_file()
    splits = request.splits if has_test else {**request.splits, "test": request.splits["val"]}
    settings = merge_settings(
        default_settings.common_settings(request.model, splits, mmf.version, process_fields["nproc"]),
        default_settings.training_settings(mmfw_settings.updates),
        request.mmf_settings,
        {"training": {"detect_anomaly": True}} if detect_anomaly else {},  # for 1.0.0rc10 by a patch
        default_settings.resume_settings(job.checkpoint) if job.checkpoint else {},
    )
    task = TrainTask(
        only_weights=job.only_weights,
        keep_checkpoints=1 if mmfw_settings.keep is None else mmfw_settings.keep,
        find_micro_batch=bool(mmfw_settings.auto_batch),
        known_micro_batches=micro_batch_store.load() if options.use_known_fits else {},
        **process_fields,
    )
    return plan_attempt(task, mmf, job, request, settings)


def plan_prediction(job: RunJob, checkpoint: Path, target: PredictionTarget, features: Path | None) -> Plan:
    """Plan a prediction; ``features`` is an LMDB of region features to read instead of the dataset's.

    Raises as :func:`plan_attempt`.
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


def plan_attempt(
    task: AttemptTask, mmf: MmfInstall, job: RunJob, request: RunRequest, base_settings: Settings
) -> Plan:
    """Merge the command's overrides over the settings in ``tree``.

    Raises UsageError where the configuration cannot be put together, and as
    :func:`mmf_win.runs.user_code.resolve_user_dir`.
    """
    options, mmf_paths, checkpoint = job.options, job.mmf_paths, job.checkpoint
    require_creatable_folders(mmf_paths)
    for path in (mmf_paths.data_dir, mmf_paths.save_dir, mmf_paths.cache_dir, checkpoint):
        if not is_valid_unicode(str(path)):
            raise UsageError(f"{path}: this path is not in UTF-8, and MMF takes no other", hint="rename it")
    base_settings = default_settings.add_hooks(base_settings, mmf.version, request.mmfw_settings.precision)
    config_spec = replace(request, settings=base_settings)
    config = resolve_config(
        mmf.root, mmf_paths, config_spec, options.overrides, checked_settings=request.settings_to_validate
    )
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
    """The MMF that runs, or an MmfError; a UsageError where it lacks the configuration that is asked for."""
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
    """Say once, however many predictions follow, what is not as usual: MMF, and variables of Python."""
    if ignored := [name for name in default_settings.HARMFUL_VARIABLES if os.environ.get(name)]:
        _log.warning("ignoring %s, which would break or slow the training", ", ".join(ignored))
    if changed := find_changed_files(mmf):
        _log.warning("changed or missing files of MMF: %d", len(changed))


def plan_processes(options: CommandOptions) -> dict[str, Any]:
    """What an :class:`~mmf_win.protocol.AttemptRequest` says of them.

    Raises UsageError where they cannot begin.
    """
    gpus = 0 if options.cpu else machine.count_gpus()
    nproc = max(1, gpus) if options.nproc == "auto" else int(options.nproc or 1)
    if gpus and nproc > gpus:
        available = "there is 1 GPU" if gpus == 1 else f"there are {gpus} GPUs"
        raise UsageError(
            f"--nproc {nproc}: {available}", hint="--nproc auto takes all; --cpu trains on the CPU"
        )
    if gpus > 1 and options.nproc is None:
        _log.info("training on 1 of %d GPUs; --nproc auto takes all", gpus)
    if options.nnodes == 1 and (options.rdzv, options.node_rank) != (None, None):
        raise UsageError("--rdzv and --node-rank are for several machines", hint="--nnodes says how many")
    if options.nnodes > 1:
        host, _, port = (options.rdzv or "").rpartition(":")
        if options.node_rank is None or not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise UsageError("several machines need --rdzv HOST:PORT of the first one, and --node-rank N")
        if options.node_rank >= options.nnodes:
            raise UsageError(f"--node-rank {options.node_rank}: it is from 0 to {options.nnodes - 1}")
    if ignored := default_settings.launcher_variables(os.environ):
        _log.warning("ignoring %s of the environment: mmfw starts its processes itself", ", ".join(ignored))
    return {
        "nproc": nproc,
        "nnodes": options.nnodes,
        "node_rank": options.node_rank or 0,
        "rdzv": options.rdzv,
    }


def require_divisible_batch(config: Settings, process_count: int) -> None:
    """Raise UsageError where a batch cannot be divided among ``count`` processes."""
    batch = config["training"]["batch_size"]
    if not isinstance(batch, int) or batch % process_count == 0:
        return
    divisors = [str(number) for number in range(1, batch + 1) if batch % number == 0]
    raise UsageError(
        f"a batch of {batch} rows cannot be divided evenly among {process_count} processes",
        hint=f"as many as divide it: {', '.join(divisors)}; or another --batch-size",
    )


def choose_reduction(
    failed_attempt: AttemptRequest, outcome: AttemptOutcome, start_event: Event | None
) -> tuple[str, int, int] | None:
    """What the next attempt has less of, as name, old and new number.

    When the host's memory was at its end, half the ``workers`` of the DataLoader, down to none. When the
    memory of a GPU was in validation or prediction, a smaller ``eval_batch``; else a smaller ``micro_batch``,
    while an update keeps its rows. None when neither is the cause, or nothing smaller is left.

    ``started`` is the event that tells what the failed one really had; without it, not even the model fitted.
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
    """The rows at which a batch is cut into twice as many parts as with ``failed``; None at one row.

    A batch is cut into parts that are as equal as can be, so a limit of 23 rows would divide 31 as one of 16
    does.
    """
    parts = 2 * math.ceil(batch_rows / failed_rows)
    return math.ceil(batch_rows / parts) if failed_rows > 1 else None


def next_attempt(
    failed_attempt: AttemptRequest,
    limit_name: str,
    limit_value: int,
    start_event: Event,
    checkpoint: Path | None,
) -> AttemptRequest:
    """The attempt after one for which memory did not suffice.

    Args:
        failed: what was asked of that one.
        name, number: what this one has less of, as :func:`choose_reduction` says, and how many of it.
        started: the event that tells with which seed that one began.
        saved: the newest intact checkpoint, if that one saved any; else this one begins where that one did.
    """
    attempt = failed_attempt
    extra_settings: Settings = {}
    if checkpoint is not None:
        # What says where a run starts must not send a later attempt back there.
        settings = merge_settings(
            drop_start_settings(failed_attempt.settings), default_settings.resume_settings(checkpoint)
        )
        task = replace(failed_attempt.train_task, only_weights=False)
        attempt = replace(failed_attempt, task=task, settings=settings, checkpoint=str(checkpoint))
    elif failed_attempt.is_training and (
        failed_attempt.checkpoint is None or failed_attempt.train_task.only_weights
    ):
        extra_settings["training"] = {"seed": start_event["seed"]}
    if limit_name == "workers":
        extra_settings = merge_settings(extra_settings, {"training": {"num_workers": limit_value}})
    elif limit_name == "eval_batch":
        attempt = replace(attempt, eval_batch=limit_value)
        # It keeps the scores of a full set off the GPU; where MMF has no such key, a hook does.
        if has_key(read_version(Path(failed_attempt.mmf_root)), "evaluation.use_cpu"):
            extra_settings["evaluation"] = {"use_cpu": True}
    else:
        attempt = replace(attempt, task=replace(attempt.train_task, micro_batch=limit_value))
    return replace(attempt, settings=merge_settings(attempt.settings, extra_settings))
