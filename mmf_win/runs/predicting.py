"""Predicts memes with a checkpoint of a run, in fresh workers, or in one that stays warm."""

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
from mmf_win.runs import attempts, needs
from mmf_win.runs.folder import Run
from mmf_win.runs.outcomes import as_error
from mmf_win.runs.plan import Start, plan_prediction
from mmf_win.runs.request import CommandOptions
from mmf_win.runs.serving import Server
from mmf_win.runs.targets import Target
from mmf_win.unpacking.staging import shared_read_lock


def predict(
    run: Run,
    places: MmfPaths,
    options: CommandOptions,
    *,
    checkpoint: Path,
    target: Target,
    features: Path | None,
    display: attempts.Display,
    begin: Callable[[], object] = lambda: None,
    export: Path | None = None,
    int8: bool = False,
) -> tuple[list[float], Event]:
    """Predict memes with a checkpoint of a run.

    Return their probabilities, and what the worker said as it began: its versions and precision. Raises an
    MmfwError whose class says how it ended.

    Args:
        options: what the user chose, which wins over the run's settings.
        features: an LMDB of region features to read instead of the dataset's.
        begin: called before the worker starts, once all that it reads is checked.
        export: an empty folder into which the model is exported afterwards; with ``int8``, also quantized.
    """
    plan = plan_prediction(Start(run.request(), options, places, run), checkpoint, target, features)
    inputs = needs.check_prediction(plan, target, features)
    first = replace(plan.first, may_query_hub=inputs.may_query_hub or options.trust)
    if export is not None:
        first = replace(first, task=ExportTask(str(target.file.path), export_dir=str(export), int8=int8))

    with shared_read_lock(places.dataset.root), attempts.place_of_attempts(run) as place:
        begin()
        try:
            worker = partial(attempts.run_worker, place, plan=plan, display=display)
            done = attempts.until_it_fits(place, first, worker, retry=options.retry)
            events = attempts.events_of_attempt(done)
            told = (event for event in events if event["kind"] in ("run_started", "predict_started"))
            began = {key: value for event in told for key, value in event.items()}
            if began.get("sha256", target.file.sha256) != target.file.sha256:
                hint = "run the same command again"
                raise DatasetError(f"{target.file.path}: it was changed while it was in use", hint=hint)
            return _probas(done, target), began
        except DataError as error:
            if target.is_own:  # MMF read annotations that were made of the user's file
                error.args = (str(error).replace(str(target.file.path), str(target.source)),)
            raise


def _probas(done: AttemptRequest, target: Target) -> list[float]:
    """The probabilities that MMF wrote; a DataError where they are not those of these memes."""
    try:
        return read_mmf_probabilities(done.folder.raw_predictions, [str(row.id) for row in target.rows])
    except DataError as error:
        end = AttemptOutcome("data", str(error), error.hint)
        end.record(done)
        raise as_error(end, done) from None


def serve(run: Run, places: MmfPaths, options: CommandOptions, *, checkpoint: Path, scratch: Path) -> Server:
    """A worker that has loaded a checkpoint of a run, and answers; its files lie in ``scratch``.

    Raises an MmfwError as :func:`predict` does, and UsageError where the model reads region features.
    """
    image = scratch / "grey.ppm"
    image.write_bytes(b"P6 64 64 255\n" + bytes([128]) * (64 * 64 * 3))
    target = Target.of_image(image, "", scratch)
    # One process has the model and its rows, and keeps no images, whose paths will soon mean others.
    options = replace(options, overrides=(*options.overrides, "training.num_workers=0"))
    plan = plan_prediction(Start(run.request(), options, places, run), checkpoint, target, None)
    if plan.config["dataset"].get("use_features"):
        hint = "`mmfw predict --memes TABLE --features LMDB` predicts memes whose features are there"
        raise UsageError(f"run {run.id} reads region features, which nothing makes of new images", hint=hint)
    inputs = needs.check_prediction(plan, target, None)
    first = replace(
        plan.first,
        task=ServeTask(str(target.file.path)),
        attempt_dir=str(Run(scratch).new_attempt().path),
        may_query_hub=inputs.may_query_hub or options.trust,
        image_cache_dir=None,
    )
    with shared_read_lock(places.dataset.root):
        return Server(first, *attempts.worker_of(first, plan))
