"""Predicting memes with a checkpoint of a run, in workers or in a model process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from mmf_win.dataset.prediction_file import read_mmf_probabilities
from mmf_win.errors import DataError, DatasetError, UsageError
from mmf_win.paths import MmfPaths
from mmf_win.protocol import AttemptOutcome, AttemptRequest, Event
from mmf_win.protocol.attempt import ExportTask, ServeTask
from mmf_win.runs import attempts, preflight
from mmf_win.runs.folder import Run
from mmf_win.runs.model_process import ModelProcess
from mmf_win.runs.outcomes import outcome_error
from mmf_win.runs.plan import RunJob, plan_prediction
from mmf_win.runs.request import CommandOptions
from mmf_win.runs.targets import PredictionTarget
from mmf_win.unpacking.staging import shared_read_lock


def predict_target(  # noqa: PLR0913 - the interface that an exported model shares
    run: Run,
    mmf_paths: MmfPaths,
    options: CommandOptions,
    *,
    checkpoint: Path,
    target: PredictionTarget,
    features: Path | None,
    display: attempts.DisplayFactory,
    begin: Callable[[], object] = lambda: None,
    export: Path | None = None,
    int8: bool = False,
) -> tuple[list[float], Event]:
    """Predict memes with a checkpoint of a run.

    Args:
        run: The run.
        mmf_paths: Folders of MMF.
        options: Options of the command, which override the run's settings.
        checkpoint: Checkpoint to predict with.
        target: Memes to predict.
        features: LMDB with region features to use instead of the dataset's, or ``None``.
        display: Shows the progress.
        begin: Called before the worker starts, after all inputs were checked.
        export: Empty folder into which the model is exported after the prediction, or ``None``.
        int8: Also export a quantized model.

    Returns:
        The probability of each row, and the worker's merged start events with versions and precision.

    Raises:
        DatasetError: The annotations changed during the prediction.
        DataError: An input is missing or damaged.
        MmfwError: The worker failed; the class gives the exit code.
    """
    plan = plan_prediction(RunJob(run.request(), options, mmf_paths, run), checkpoint, target, features)
    inputs = preflight.check_prediction(plan, target, features)
    first_attempt = replace(plan.first_attempt, may_query_hub=inputs.may_query_hub or options.trust)
    if export is not None:
        task = ExportTask(str(target.annotation_file.path), export_dir=str(export), int8=int8)
        first_attempt = replace(first_attempt, task=task)

    with shared_read_lock(mmf_paths.dataset.root), attempts.writable_run(run) as writable:
        begin()
        try:
            worker = partial(attempts.run_worker, writable, plan=plan, display=display)
            attempt = attempts.run_with_retries(writable, first_attempt, worker, retry=options.retry)
            events = attempts.read_attempt_events(attempt)
            start_events = (event for event in events if event["kind"] in ("run_started", "predict_started"))
            start_values = {key: value for event in start_events for key, value in event.items()}
            if start_values.get("sha256", target.annotation_file.sha256) != target.annotation_file.sha256:
                hint = "run the same command again"
                raise DatasetError(f"{target.annotation_file.path}: changed while in use", hint=hint)
            return _read_probas(attempt, target), start_values
        except DataError as error:
            if target.is_user_data:  # MMF read annotations generated from the user's file
                error.args = (str(error).replace(str(target.annotation_file.path), str(target.source)),)
            raise


def _read_probas(attempt: AttemptRequest, target: PredictionTarget) -> list[float]:
    """Return the probabilities that MMF wrote for the rows of the target.

    Raises:
        DataError: They do not match the rows; this is also recorded as the outcome of the attempt.
    """  # noqa: DOC501 - a function makes the error
    try:
        return read_mmf_probabilities(attempt.folder.raw_predictions, [str(row.id) for row in target.rows])
    except DataError as mismatch:
        outcome = AttemptOutcome("data", str(mismatch), mismatch.hint)
        outcome.record(attempt)
        raise outcome_error(outcome, attempt) from None


def start_model_process(
    run: Run, mmf_paths: MmfPaths, options: CommandOptions, *, checkpoint: Path, scratch: Path
) -> ModelProcess:
    """Start a model process with a checkpoint of a run.

    Args:
        run: The run.
        mmf_paths: Folders of MMF.
        options: Options of the command.
        checkpoint: Checkpoint to load.
        scratch: Folder for the files of the process.

    Returns:
        The process, ready to answer.

    Raises:
        UsageError: The model needs region features.
        MmfwError: The process ended before it could answer.
    """
    image = scratch / "grey.ppm"
    image.write_bytes(b"P6 64 64 255\n" + bytes([128]) * (64 * 64 * 3))
    target = PredictionTarget.from_image(image, "", scratch)
    # The rows are loaded in the same process. Images are not cached, since their paths will be reused.
    options = replace(options, overrides=(*options.overrides, "training.num_workers=0"))
    plan = plan_prediction(RunJob(run.request(), options, mmf_paths, run), checkpoint, target, None)
    if plan.config["dataset"].get("use_features"):
        hint = "predict memes with features by `mmfw predict --memes TABLE --features LMDB`"
        raise UsageError(f"run {run.id} needs region features, which mmfw cannot extract from images", hint=hint)
    inputs = preflight.check_prediction(plan, target, None)
    attempt = replace(
        plan.first_attempt,
        task=ServeTask(str(target.annotation_file.path)),
        attempt_dir=str(Run(scratch).create_attempt().path),
        may_query_hub=inputs.may_query_hub or options.trust,
        image_cache_dir=None,
    )
    with shared_read_lock(mmf_paths.dataset.root):
        return ModelProcess(attempt, *attempts.prepare_worker(attempt, plan))
