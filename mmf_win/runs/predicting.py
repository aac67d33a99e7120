"""Predicts memes with a checkpoint of a run, in fresh workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from mmf_win.errors import DataError
from mmf_win.paths import Places
from mmf_win.runs import needs, plan
from mmf_win.runs.attempts import Display, run_worker, silent, until_it_fits
from mmf_win.runs.folder import Run
from mmf_win.runs.targets import Target


def predict(
    run: Run,
    places: Places,
    *,
    checkpoint: Path,
    target: Target,
    overrides: tuple[str, ...],
    batch_size: int | None,
    features: Path | None = None,
    report: Path | None = None,
    retry: bool = True,
    trust: bool = False,
    stop_timeout: float = 30.0,
    display: Display = silent,
) -> Path:
    """Predict memes with a checkpoint of a run.

    Args:
        run: the run that knows the model's configuration.
        places: MMF's folders.
        checkpoint: the weights.
        target: the memes.
        overrides: the user's ``KEY=VALUE`` overrides, after those of the run.
        batch_size: memes a batch; None for the run's own.
        features: an LMDB of region features to read instead of the dataset's.
        report: where the predictions go; None for the run's folder of reports.
        retry: try again with less, when memory runs out.
        trust: load the checkpoint even if it holds classes that torch refuses.
        stop_timeout: seconds without progress after which a worker that was asked to stop is killed.
        display: shows each attempt while it runs.

    Returns:
        The CSV; its metrics lie beside it.

    Raises:
        MmfwError: the class says how it ended.
    """
    request = replace(run.request(), trust=trust, stop_timeout=stop_timeout)
    asked = plan.prediction(
        needs.mmf_for(request),
        request,
        target,
        checkpoint,
        batch_size=batch_size,
        features=features,
        overrides=overrides,
    )
    needs.check_prediction(asked, request, places, target, features)
    report = report or run.report(target.name)
    with _naming_own_file(target):
        until_it_fits(
            run,
            replace(asked, report=str(report)),
            lambda asked: run_worker(run, asked, request, places, display),
            retry=retry,
        )
    return report


@contextmanager
def _naming_own_file(target: Target) -> Iterator[None]:
    """Name the user's own file in errors, where MMF reads annotations that were made of it."""
    try:
        yield
    except DataError as error:
        if target.is_own:
            error.args = (str(error).replace(str(target.annotations), str(target.source)),)
        raise
