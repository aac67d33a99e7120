"""Starting and resuming the training of runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path

from mmf_win.dataset.annotations import choose_splits
from mmf_win.errors import UsageError
from mmf_win.inputs import annotation_checks
from mmf_win.paths import MmfPaths, expand_home
from mmf_win.protocol import AttemptOutcome, AttemptRequest, read_events
from mmf_win.runs import checkpoints, distillation, lookup, micro_batch_store, preflight, presets, published_weights
from mmf_win.runs.attempts import DisplayFactory, read_attempt_events, run_with_retries, run_worker
from mmf_win.runs.folder import Run, require_not_training, training_lock
from mmf_win.runs.history import find_changed_splits, read_run_events, training_progress
from mmf_win.runs.plan import Plan, RunJob, plan_training
from mmf_win.runs.presets import Preset
from mmf_win.runs.request import CommandOptions, RunRequest
from mmf_win.unpacking.staging import shared_read_lock
from mmf_win.upstream.checkpoint_files import read_checkpoint_progress
from mmf_win.upstream.config import MMFW_GROUP, merge_settings
from mmf_win.upstream.versions import read_version

_log = logging.getLogger(__name__)

#: Value of ``init`` for the published weights of a preset.
PUBLISHED = "published"

_CHECKPOINT_SUFFIXES = (".ckpt", ".pth", ".pt")


def make_job_from_preset(
    preset_name: str,
    options: CommandOptions,
    mmf_paths: MmfPaths,
    name: str | None = None,
    *,
    init: str | None = None,
    source: str | None = None,
) -> RunJob:
    """Return a new training of a preset.

    Args:
        preset_name: Name or file of the preset.
        options: Options of the command.
        mmf_paths: Folders of MMF.
        name: Name of the run folder; ``None`` for the name of the preset.
        init: Initial weights: :data:`PUBLISHED` or a file; ``None`` for MMF's initial weights.
        source: Folder or mirror to search first for published weights, or ``None``.

    Returns:
        The training.

    Raises:
        MmfwError: The preset, the dataset or the weights cannot be used.
    """
    preset, weights = presets.load_preset(preset_name), None
    request = _build_request_from_preset(preset, mmf_paths)
    if init == PUBLISHED:
        weights = published_weights.fetch_published_weights(preset, mmf_paths, source, offline=options.dry_run)
        init = preset.zoo
    elif init is not None:
        weights = checkpoints.require_intact(init).path
        init = str(weights)
    request, only_weights = replace(request, init_weights=init), weights is not None
    return RunJob(request, options, mmf_paths, name=name, checkpoint=weights, only_weights=only_weights)


def make_job_from_request(
    request: RunRequest, options: CommandOptions, data_dir: Path | None, save_dir: Path | None
) -> RunJob:
    """Return a new training with the request of a run.

    Args:
        request: Request of the run.
        options: Options of the command.
        data_dir: Data dir of MMF, which the run then stores; ``None`` for that of the request.
        save_dir: Save dir; ``None`` for the default.

    Returns:
        The training.

    Raises:
        MmfwError: The dataset cannot be read.
    """
    mmf_paths = MmfPaths.resolve(data_dir or Path(request.data_dir), save_dir)
    splits = choose_splits(mmf_paths.dataset)
    if data_dir is not None:
        request = replace(request, data_dir=str(mmf_paths.data_dir), splits=splits)
    return RunJob(request, options, mmf_paths)


def make_job_to_resume(
    resume_spec: str,
    preset_name: str | None,
    options: CommandOptions,
    name: str | None,
    data_dir: Path | None,
    mmf_paths: MmfPaths,
) -> RunJob:
    """Return a training that resumes a run, or that starts from a checkpoint file.

    ``best`` and ``last`` resume the newest run (of the preset, if one is given) in its folder. The ID, name
    or folder of a run resumes that run from its last checkpoint. A file starts a new run from that
    checkpoint, with the configuration of the run that contains the file, unless a preset is given.

    Args:
        resume_spec: ``best``, ``last``, the path of a checkpoint, or the ID, name or folder of a run.
        preset_name: Name or file of the preset, or ``None``.
        options: Options of the command.
        name: Name of the new run if ``resume_spec`` is a file; ``None`` for the name of the preset.
        data_dir: Data dir of MMF, as for :func:`make_job_from_request`.
        mmf_paths: Folders of MMF, with ``data_dir`` or its default.

    Returns:
        The training.

    Raises:
        UsageError: The options do not fit the run, or the configuration of the checkpoint is unknown.
        MmfwError: There is nothing to resume, or it cannot be read.
    """
    preset = None if preset_name is None else presets.load_preset(preset_name)
    match = _find_run_to_resume(resume_spec, preset, mmf_paths.save_dir)
    if match is not None:
        run, checkpoint = match
        checkpoints.require_no_foreign_best(run)
        if name is not None:
            raise UsageError(f"run {run.id} is resumed in its folder and cannot be named {name}", hint="remove --name")
        _require_seed_kept(options, checkpoint, run.request().training_number("seed"))
        job = make_job_from_request(run.request(), options, data_dir, mmf_paths.save_dir)
        start_events = [event for event in read_run_events(run) if event["kind"] == "train_started"]
        precision = options.settings.get(MMFW_GROUP, {}).get("precision")
        if start_events and precision not in (None, previous := start_events[-1].get("precision", "fp32")):
            _log.info("resuming in %s (trained in %s so far)", precision, previous)
        return replace(job, run=run, checkpoint=checkpoint)
    checked_file = checkpoints.require_intact(resume_spec)
    checkpoint = checked_file.path
    _require_seed_kept(options, checkpoint)
    owner = lookup.find_run_containing(checkpoint)
    if owner is not None:
        published_weights.require_trained(owner, checkpoint)
        checkpoints.warn_if_foreign(owner, checked_file)
    if preset is not None:
        job = RunJob(_build_request_from_preset(preset, mmf_paths), options, mmf_paths)
    elif owner is not None:
        request = replace(owner.request(), init_weights=None, created=time.time())
        job = make_job_from_request(request, options, data_dir, mmf_paths.save_dir)
    else:
        raise UsageError(
            f"{checkpoint} is not in the folder of a run, so its configuration is unknown",
            hint="pass its preset, as in `mmfw train PRESET --resume PATH`",
        )
    request = replace(job.request, start_checkpoint=str(checkpoint))
    return replace(job, request=request, name=name, checkpoint=checkpoint)


def _find_run_to_resume(resume_spec: str, preset: Preset | None, save_dir: Path) -> tuple[Run, Path] | None:
    """Return the run to resume in its folder and the checkpoint, or ``None`` for the file of a checkpoint."""
    is_newest, path = resume_spec in ("best", "last"), expand_home(resume_spec)
    if not is_newest and (path.is_file() or (path.suffix in _CHECKPOINT_SUFFIXES and not path.is_dir())):
        return None

    def find_checkpoint_to_resume(run: Run) -> tuple[Run, Path] | None:
        if is_newest and run.request().published_weights:
            return None
        published_weights.require_trained(run)
        require_not_training(run)
        checkpoints.require_no_blocking_folders(run)
        return run, checkpoints.select_checkpoint(run, resume_spec if is_newest else "last").path

    return lookup.find_first_usable_run(
        save_dir, None if is_newest else resume_spec, find_checkpoint_to_resume, preset.name if preset else None
    )


def _require_seed_kept(options: CommandOptions, checkpoint: Path, run_seed: int | None = None) -> None:
    """Check that no new seed is given for a checkpoint, since its random state would replace it.

    Raises:
        UsageError: A seed other than the run's is given.
    """
    seed = options.settings.get("training", {}).get("seed")
    seed_arguments = [f"--seed {seed}"] if seed not in (None, run_seed) else []
    seed_arguments += [override for override in options.overrides if override.startswith("training.seed=")]
    reset_prefixes = ("checkpoint.reset.all=", "checkpoint.reset.counts=")
    if not seed_arguments or any(override.startswith(reset_prefixes) for override in options.overrides):
        return
    if (progress := read_checkpoint_progress(checkpoint)) is not None and progress.has_state:
        message = f"{seed_arguments[0]} has no effect: the random state comes from {checkpoint}"
        raise UsageError(message, hint=f"remove {seed_arguments[0]}")


def _build_request_from_preset(preset: Preset, mmf_paths: MmfPaths) -> RunRequest:
    return presets.build_request(preset, choose_splits(mmf_paths.dataset), mmf_paths)


def prepare_plan(job: RunJob) -> Plan:
    """Plan a training and check its inputs.

    Returns:
        The plan.

    Raises:
        MmfwError: The configuration or an input cannot be used.
    """
    plan = plan_training(job)
    inputs, total = preflight.check_training(plan)
    request, attempt = plan.request, plan.first_attempt
    version = read_version(Path(attempt.mmf_root))
    if request.mmfw_settings.teacher or request.mmfw_settings.teacher_weight:
        request, attempt = distillation.attach_teacher(request, attempt, plan.config, inputs)
    if request.mmfw_settings.epochs and total is not None:
        total_settings = {"training": {"max_updates": total, "max_epochs": None}}
        attempt = replace(attempt, settings=merge_settings(attempt.settings, total_settings))
    if request.mmf_version and request.mmf_version != version:
        _log.warning("this run was trained with MMF %s, and is resumed with %s", request.mmf_version, version)
    task = replace(attempt.train_task, splits_read=dict(inputs.splits_read), total_updates=total)
    attempt = replace(attempt, task=task, may_query_hub=inputs.may_query_hub or job.options.trust)
    return replace(plan, request=replace(request, mmf_version=version), first_attempt=attempt, inputs=inputs)


def train(job: RunJob, display: DisplayFactory, on_start: Callable[[Run], None] = lambda _: None) -> Run:
    """Train a run to its end.

    Args:
        job: The training.
        display: Shows the progress.
        on_start: Called with the run before its first attempt.

    Returns:
        The run.

    Raises:
        MmfwError: The training failed or was stopped; the class gives the exit code.
    """
    with nullcontext() if job.run is None else training_lock(job.run) as lock_fd:
        plan = prepare_plan(job)
        for result in annotation_checks.check_annotations(job.mmf_paths.dataset, plan.config["dataset"], plan.inputs):
            if result.verdict != "ok":
                _log.warning("%s; %s", result.message, result.hint)
        return execute_plan(plan, display, lock_fd, on_start)


def execute_plan(
    plan: Plan, display: DisplayFactory, lock_fd: int | None = None, on_start: Callable[[Run], None] = lambda _: None
) -> Run:
    """Run a planned training to its end, as :func:`train` does.

    Args:
        plan: The plan.
        display: Shows the progress.
        lock_fd: Descriptor of the training lock of the run that is resumed; ``None`` for a new run.
        on_start: Called with the run before its first attempt.

    Returns:
        The run.
    """
    job, request, inputs = plan.job, plan.request, plan.inputs
    run, mmf_paths, checkpoint = job.run, job.mmf_paths, job.checkpoint
    with ExitStack() as stack:
        stack.enter_context(shared_read_lock(mmf_paths.dataset.root))
        if run is not None and checkpoint is not None:
            preserved = checkpoints.preserve_last_checkpoint(run, checkpoint)
            _log.info("resuming run %s from %s%s", run.id, checkpoint.name, preserved)
            for name in find_changed_splits(run, inputs.splits_read):
                message = "%s has changed since this run was trained; scores before and after are not comparable"
                _log.warning(message, name)
        origin = run or (request.start_checkpoint and lookup.find_run_containing(Path(request.start_checkpoint)))
        total = plan.first_attempt.train_task.total_updates
        previous_total = training_progress(read_events(origin.events))[1] if origin else None
        if total and previous_total not in (None, total):
            message = "the total is %d updates instead of %d: the learning-rate schedule and the result change"
            _log.warning(message, total, previous_total)
        if run is None:
            run = Run.create(mmf_paths.save_dir, job.name or request.preset)
            lock_fd = stack.enter_context(training_lock(run))
            if request.start_checkpoint and (progress := read_checkpoint_progress(Path(request.start_checkpoint))):
                _log.info("run %s starts from %s, update %d", run.id, request.start_checkpoint, progress.update)

        def run_attempt(attempt: AttemptRequest) -> AttemptOutcome:
            annotations = inputs.write_filtered_annotations(attempt.folder.path / "annotations")
            attempt = replace(attempt, settings=merge_settings(attempt.settings, annotations))
            outcome = run_worker(run, attempt, plan, display, lock_fd=lock_fd)
            if outcome.kind in ("ok", "interrupted"):
                micro_batch_store.save_micro_batch(read_attempt_events(attempt))
            return outcome

        if not run.request_file.exists():
            run.save_request(request)
        on_start(run)
        # A retry would have to start on all machines.
        run_with_retries(run, plan.first_attempt, run_attempt, retry=job.options.retry and job.options.nnodes == 1)
    return run
