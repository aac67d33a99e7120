"""Predicts memes with a checkpoint of a run, in fresh workers, or in one that stays warm."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from mmf_win.dataset.own_memes import annotations_beside
from mmf_win.errors import DataError, Interrupted, UsageError
from mmf_win.files import remove
from mmf_win.paths import Places
from mmf_win.protocol import Event
from mmf_win.runs import attempts, needs
from mmf_win.runs.folder import Run
from mmf_win.runs.plan import Start, plan_prediction
from mmf_win.runs.request import CommandOptions
from mmf_win.runs.serving import Server
from mmf_win.runs.targets import Target
from mmf_win.unpacking.staging import reading


def predict(
    run: Run,
    places: Places,
    options: CommandOptions,
    *,
    checkpoint: Path,
    target: Target,
    features: Path | None,
    folder: Path | None,
    display: attempts.Display,
    export: Path | None = None,
    int8: bool = False,
) -> tuple[Path, list[Event]]:
    """Predict memes with a checkpoint of a run; return the file, and what the worker said while it made it.

    Raises an MmfwError whose class says how it ended.

    Args:
        options: what the user chose, which wins over the run's settings.
        features: an LMDB of region features to read instead of the dataset's.
        folder: where the file of predictions is made; None for the run's folder of reports.
        export: an empty folder into which the model is exported afterwards; with ``int8``, also quantized.
    """
    plan = plan_prediction(Start(run.request(), options, places, run), checkpoint, target, features)
    inputs = needs.check_prediction(plan, target, features)
    first = replace(plan.first, asks_hub=inputs.asks_hub or options.trust)
    first = replace(first, export=str(export) if export else None, int8=int8)

    with ExitStack() as stack:
        stack.enter_context(reading(places.dataset.root))
        place = stack.enter_context(attempts.place_of_attempts(run))
        csv = stack.enter_context(run.new_report(target.name, folder))
        try:
            worker = partial(attempts.run_worker, place, plan=plan, display=display)
            done = attempts.until_it_fits(place, replace(first, report=str(csv)), worker, retry=options.retry)
        except Interrupted:
            for made in (csv, annotations_beside(csv)):
                remove(made)
            raise
        except DataError as error:
            if target.is_own:  # MMF read annotations that were made of the user's file
                error.args = (str(error).replace(str(target.annotations), str(target.source)),)
            raise
        return csv, attempts.events_of_attempt(done)


def serve(run: Run, places: Places, options: CommandOptions, *, checkpoint: Path, scratch: Path) -> Server:
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
    first = replace(plan.first, asks_hub=inputs.asks_hub or options.trust, images=None, serve=True)
    first = replace(first, attempt_dir=str(Run(scratch).new_attempt().path))
    with reading(places.dataset.root):
        return Server(first, *attempts.worker_of(first, plan))
