"""Checking a training before it starts, in a temporary folder."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from mmf_win.errors import DataError, MmfwError, StoppedByUserError
from mmf_win.inputs import annotation_checks
from mmf_win.protocol import read_events
from mmf_win.protocol.attempt import CheckTask
from mmf_win.protocol.check_result import CheckResult, Verdict
from mmf_win.records import from_stored
from mmf_win.runs import training
from mmf_win.runs.attempts import DisplayFactory
from mmf_win.runs.history import describe_loaded_weights
from mmf_win.runs.profiling import make_job_from_preset_or_run
from mmf_win.runs.request import CommandOptions
from mmf_win.upstream.config import MMFW_GROUP, merge_settings

_log = logging.getLogger(__name__)
_LOG_TAIL_LINES = 15  # shown if the model cannot be built


def check_model(
    preset_or_run: str | None,
    options: CommandOptions,
    data_dir: Path | None,
    save_dir: Path | None,
    display: DisplayFactory,
) -> tuple[str, list[CheckResult]]:
    """Check the training of a preset, or of a run from its beginning, without keeping any files.

    Args:
        preset_or_run: Preset or run; ``None`` for the newest run.
        options: Options of the command.
        data_dir: Data dir of MMF; ``None`` for that of the run or the default.
        save_dir: Save dir; ``None`` for the default.
        display: Shows the progress.

    Returns:
        The name of the preset or run, and the results of the checks.

    Raises:
        StoppedByUserError: The user interrupted the check.
        MmfwError: The model cannot be built; the class gives the exit code.
    """
    name, job = make_job_from_preset_or_run(preset_or_run, options, data_dir, save_dir)
    # A working model can memorize the labels of a few rows, but not a teacher's probabilities.
    request = job.request.merged_with({MMFW_GROUP: {"teacher": None, "teacher_weight": None}})
    plan = training.prepare_plan(replace(job, request=request))
    with TemporaryDirectory(prefix="mmfw-check-", ignore_cleanup_errors=True) as scratch:
        settings = merge_settings(plan.first_attempt.settings, {"run_type": "train"})
        task = CheckTask(**vars(plan.first_attempt.train_task))
        first_attempt = replace(plan.first_attempt, task=task, image_cache_dir=None, settings=settings)
        scratch_job = replace(plan.job, mmf_paths=replace(job.mmf_paths, save_dir=Path(scratch)))
        try:
            results = annotation_checks.check_annotations(job.mmf_paths.dataset, plan.config["dataset"], plan.inputs)
            run = training.execute_plan(replace(plan, job=scratch_job, first_attempt=first_attempt), display)
        except (StoppedByUserError, KeyboardInterrupt):
            raise StoppedByUserError("interrupted; nothing was saved") from None
        except MmfwError as error:
            is_model_error = not isinstance(error, DataError)  # a DataError names its file
            if is_model_error and error.log is not None and error.log.is_file():
                lines = error.log.read_text(encoding="utf-8", errors="replace").splitlines()
                _log.info("the end of its output:\n%s", "\n".join(lines[-_LOG_TAIL_LINES:]))
            raise
        events = read_events(run.events)
        for event in (item for item in events if item["attempt"] == events[-1]["attempt"]):
            if event["kind"] == "loaded":
                verdict: Verdict = "note" if event["copied"] < event["total"] else "ok"
                results.append(CheckResult(verdict, "weights", describe_loaded_weights(event)))
            elif event["kind"] == "checked":
                results.append(from_stored(event, CheckResult))
    return name, results
