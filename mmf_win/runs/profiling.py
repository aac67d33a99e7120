"""Profiles the training of a preset or a run: trains a little of it in a folder that is removed again."""

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
from mmf_win.records import convert_to
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
    """Train some updates from the beginning, and measure them.

    A validation comes after half of them and at the end, and MMF saves after each, and in the end once more.
    Nothing is kept but the trace or, where the training fails, its log.

    Args:
        start: the training; nothing of its run is changed.
        updates: their number, at least 6.
        display: shows the progress.

    Returns:
        What was measured, and torch's trace in a new folder ``profiles/<time>`` of the save dir.

    Raises:
        MmfwError: its class says why the training failed.
    """
    plan = training.prepare_plan(job)
    profiles_dir = job.mmf_paths.save_dir / "profiles"
    # On the disk of the save dir, since the speed of checkpoints is measured.
    parent = next(folder for folder in (profiles_dir, *profiles_dir.parents) if folder.exists())
    with TemporaryDirectory(prefix=".mmfw-profile-", dir=parent, ignore_cleanup_errors=True) as scratch:
        task = ProfileTask(**vars(plan.first_attempt.train_task), updates=updates)
        first_attempt = replace(
            plan.first_attempt,
            task=task,
            settings=merge_settings(plan.first_attempt.settings, _short_training_settings(updates)),
        )
        scratch_job = replace(job, mmf_paths=replace(job.mmf_paths, save_dir=Path(scratch)))
        try:
            run = training.execute_plan(replace(plan, job=scratch_job, first_attempt=first_attempt), display)
        except (StoppedByUserError, KeyboardInterrupt):
            raise StoppedByUserError("interrupted; nothing is kept") from None
        except MmfwError as error:
            if error.log is not None and error.log.is_file():
                log = Path(shutil.move(error.log, create_timestamped_dir(profiles_dir)))
                error.hint = "; ".join(filter(None, (error.hint, f"the whole output is in {log}")))
            raise
        *_, profiled = (event for event in read_events(run.events) if event["kind"] == "profiled")
        trace_file = run.attempt(profiled["attempt"]).trace
        trace = Path(shutil.move(trace_file, create_timestamped_dir(profiles_dir)))
    config = {key: plan.config["training"][key] for key in _TRAINING_KEYS}
    return convert_to(
        {**profiled, **config, "max_updates": plan.first_attempt.train_task.total_updates}, TrainingProfile
    ), trace


def job_from_preset_or_run(
    preset_or_run: str | None, options: CommandOptions, data_dir: Path | None, save_dir: Path | None
) -> tuple[str, RunJob]:
    """Return the training of a preset, or that of a run from its beginning, and its name.

    Args:
        wanted: a preset, or else a run; None for the newest run.
        options: the command's options.
        data_dir: MMF's data folder; None for the one that the run used, or the default.
        save_dir: where runs are; None for the default.
    """
    mmf_paths = MmfPaths.resolve(data_dir, save_dir)
    if preset_or_run is not None and (
        preset_or_run in presets.names() or expand_home(preset_or_run).is_file()
    ):
        job = training.job_from_preset(
            preset_or_run, options, mmf_paths
        )  # even where a run has the preset's name
        return job.request.preset, job
    run = lookup.find_run(mmf_paths.save_dir, preset_or_run)
    return run.id, job_from_run(run, options, data_dir, save_dir)


def job_from_run(run: Run, options: CommandOptions, data_dir: Path | None, save_dir: Path | None) -> RunJob:
    """Return the training of a run from its beginning; see :func:`job_from_preset_or_run`."""
    job = training.job_from_request(run.request(), options, data_dir, save_dir)
    if (weights := job.request.init or job.request.start) is None:
        return job
    if not Path(weights).is_file():
        _log.warning("run %s began with %s, which is no file here; this begins without it", run.id, weights)
        return job
    request = replace(job.request, start=None)  # of which the counts are left out
    checkpoint = checkpoints.require_intact(weights).path
    return replace(job, request=request, checkpoint=checkpoint, only_weights=True)


def _short_training_settings(updates: int) -> Settings:
    """Return MMF's keys for a training of so few updates."""
    training = {
        "max_updates": updates,
        "max_epochs": None,
        "checkpoint_interval": updates,
        "evaluation_interval": (updates + 1) // 2,  # once before the traced updates, once at the end
        "log_interval": min(10, max(1, updates // 5)),
        "early_stop": {"enabled": False},
    }
    return {"run_type": "train", "training": training}
