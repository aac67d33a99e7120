"""Profiling a few updates of the training of a preset or a run, in a temporary folder."""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from mmf_win.errors import MmfwError, StoppedByUserError
from mmf_win.paths import MmfPaths, create_timestamped_dir, expand_home
from mmf_win.protocol import read_events
from mmf_win.protocol.attempt import ProfileTask
from mmf_win.records import from_stored
from mmf_win.runs import checkpoints, lookup, presets, training
from mmf_win.runs.attempts import DisplayFactory
from mmf_win.runs.folder import Run
from mmf_win.runs.plan import RunJob
from mmf_win.runs.profile_advice import TrainingProfile
from mmf_win.runs.request import CommandOptions
from mmf_win.upstream.config import Settings, merge_settings

_log = logging.getLogger(__name__)
_TRAINING_KEYS = ("batch_size", "checkpoint_interval", "evaluation_interval")


def run_profile(job: RunJob, updates: int, *, display: DisplayFactory) -> tuple[TrainingProfile, Path]:
    """Profile a few updates of a training from its beginning.

    There is a validation after half of the updates and one at the end. MMF saves a checkpoint after each, and
    one more at the end. Only the trace is kept, or the log if the training fails.

    Args:
        job: The training; its run is not changed.
        updates: Number of updates, at least 6.
        display: Shows the progress.

    Returns:
        The measurements, and the path of torch's trace in a new folder ``profiles/<time>`` of the save dir.

    Raises:
        StoppedByUserError: The user interrupted the training.
        MmfwError: The training failed; the class gives the exit code.
    """
    plan = training.prepare_plan(job)
    profiles_dir = job.mmf_paths.save_dir / "profiles"
    # On the disk of the save dir, since the speed of checkpoints is measured.
    parent = next(folder for folder in (profiles_dir, *profiles_dir.parents) if folder.exists())
    with TemporaryDirectory(prefix=".mmfw-profile-", dir=parent, ignore_cleanup_errors=True) as scratch:
        task = ProfileTask(**vars(plan.first_attempt.train_task), updates=updates)
        settings = merge_settings(plan.first_attempt.settings, _short_training_settings(updates))
        first_attempt = replace(plan.first_attempt, task=task, settings=settings)
        scratch_job = replace(job, mmf_paths=replace(job.mmf_paths, save_dir=Path(scratch)))
        try:
            run = training.execute_plan(replace(plan, job=scratch_job, first_attempt=first_attempt), display)
        except (StoppedByUserError, KeyboardInterrupt):
            raise StoppedByUserError("interrupted; nothing was saved") from None
        except MmfwError as error:
            if error.log is not None and error.log.is_file():
                log = Path(shutil.move(error.log, create_timestamped_dir(profiles_dir)))
                error.hint = "; ".join(filter(None, (error.hint, f"see {log} for the full output")))
            raise
        *_, profiled = (event for event in read_events(run.events) if event["kind"] == "profiled")
        trace_file = run.attempt(profiled["attempt"]).trace
        trace = Path(shutil.move(trace_file, create_timestamped_dir(profiles_dir)))
    config = {key: plan.config["training"][key] for key in _TRAINING_KEYS}
    values = {**profiled, **config, "max_updates": plan.first_attempt.train_task.total_updates}
    return from_stored(values, TrainingProfile), trace


def make_job_from_preset_or_run(
    preset_or_run: str | None, options: CommandOptions, data_dir: Path | None, save_dir: Path | None
) -> tuple[str, RunJob]:
    """Return the name and the training of a preset, or of a run from its beginning.

    Args:
        preset_or_run: Preset, or else run; ``None`` for the newest run.
        options: Options of the command.
        data_dir: Data dir of MMF; ``None`` for that of the run or the default.
        save_dir: Save dir; ``None`` for the default.

    Returns:
        The name of the preset or the ID of the run, and the training.
    """
    mmf_paths = MmfPaths.resolve(data_dir, save_dir)
    if preset_or_run is not None and (preset_or_run in presets.list_presets() or expand_home(preset_or_run).is_file()):
        # The name of a preset takes precedence over that of a run.
        job = training.make_job_from_preset(preset_or_run, options, mmf_paths)
        return job.request.preset, job
    run = lookup.find_run(mmf_paths.save_dir, preset_or_run)
    return run.id, make_job_from_run(run, options, data_dir, save_dir)


def make_job_from_run(run: Run, options: CommandOptions, data_dir: Path | None, save_dir: Path | None) -> RunJob:
    """Return the training of a run from its beginning (see :func:`make_job_from_preset_or_run`)."""
    job = training.make_job_from_request(run.request(), options, data_dir, save_dir)
    if (weights := job.request.init_weights or job.request.start_checkpoint) is None:
        return job
    if not Path(weights).is_file():
        _log.warning("run %s started with %s, which does not exist; profiling without it", run.id, weights)
        return job
    request = replace(job.request, start_checkpoint=None)  # not resumed, so its update counts are ignored
    checkpoint = checkpoints.require_intact(weights).path
    return replace(job, request=request, checkpoint=checkpoint, only_weights=True)


def _short_training_settings(updates: int) -> Settings:
    """Return the MMF settings for a training of ``updates`` updates."""
    training = {
        "max_updates": updates,
        "max_epochs": None,
        "checkpoint_interval": updates,
        "evaluation_interval": (updates + 1) // 2,  # once before the traced updates, once at the end
        "log_interval": min(10, max(1, updates // 5)),
        "early_stop": {"enabled": False},
    }
    return {"run_type": "train", "training": training}
