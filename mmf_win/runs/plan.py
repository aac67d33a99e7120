"""Plans the attempts of a run: what the first one does, and what the next one does after memory ran out.

The order in which attempts shrink is in :func:`smaller`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mmf_win.paths import Places
from mmf_win.protocol import AttemptRequest, Event, Exit
from mmf_win.runs import fits
from mmf_win.runs.overrides import BATCH_SIZE, FEATURES, lasting, of_prediction, without
from mmf_win.runs.presets import merge
from mmf_win.runs.request import RunRequest
from mmf_win.runs.targets import Target
from mmf_win.upstream import settings
from mmf_win.upstream.install import Installed
from mmf_win.upstream.versions import read_version

_WORKERS = "training.num_workers"


def training(
    mmf: Installed, request: RunRequest, places: Places, checkpoint: Path | None, *, weights_alone: bool
) -> AttemptRequest:
    """The first attempt to train.

    Args:
        mmf: the installed MMF.
        request: what was asked for.
        places: MMF's folders.
        checkpoint: the file to start from; None for the weights that MMF begins with.
        weights_alone: take only the weights of the checkpoint, and begin at update 0.
    """
    # MMF loads the test set before it trains, and fails without one.
    has_test = places.dataset.split(request.splits["test"]).is_file()
    splits = request.splits if has_test else {**request.splits, "test": request.splits["val"]}
    tree = merge(
        settings.common(request.model, splits, mmf.version),
        settings.train(request.updates),
        request.settings,
        settings.options(
            mmf.version,
            seed=request.seed,
            batch_size=request.batch_size,
            updates=request.updates,
            detect_anomaly=request.detect_anomaly,
        ),
        settings.resume(checkpoint) if checkpoint else {},
    )
    return AttemptRequest(
        "train",
        request.model,
        str(mmf.root),
        settings=settings.with_hooks(tree, mmf.version),
        overrides=request.overrides,
        base_config=request.config,
        checkpoint=str(checkpoint) if checkpoint else None,
        weights_alone=weights_alone,
        trust=request.trust,
        epochs=request.epochs,
        detect_anomaly=request.detect_anomaly,
        keep=1 if request.keep is None else request.keep,
        find_micro_batch=bool(request.auto_batch),
        fits=fits.load() if request.remembered else {},
    )


def prediction(
    mmf: Installed,
    request: RunRequest,
    target: Target,
    checkpoint: Path,
    *,
    batch_size: int | None,
    features: Path | None,
    overrides: Sequence[str],
) -> AttemptRequest:
    """The first attempt to predict; arguments as for :func:`mmf_win.runs.predicting.predict`."""
    tree = merge(
        settings.common(request.model, {**request.splits, "test": target.name}, mmf.version),
        request.settings,
        settings.options(mmf.version, seed=request.seed, batch_size=batch_size or request.batch_size),
        settings.predict(checkpoint),
        target.settings,
        settings.features_in(features) if features else {},
    )
    replaced = target.keys | (FEATURES if features else set()) | (BATCH_SIZE if batch_size else set())
    return AttemptRequest(
        "predict",
        request.model,
        str(mmf.root),
        settings=settings.with_hooks(tree, mmf.version),
        overrides=[*of_prediction(request.overrides, replaced), *overrides],
        base_config=request.config,
        checkpoint=str(checkpoint),
        trust=request.trust,
        annotations=str(target.annotations),
        keep_annotations=target.is_own,
    )


def smaller(failed: AttemptRequest, end: Exit, started: Event | None) -> dict[str, int] | None:
    """What the next attempt has less of; None when memory is not the cause, or nothing smaller is left.

    The host's memory: half the DataLoader's workers, down to none. The GPU's in validation and prediction:
    fewer rows there. Else the GPU's: a smaller micro-batch; an update keeps its rows.

    Args:
        failed: the attempt that failed.
        end: how it ended.
        started: the event that tells what it really had; without it, not even the model fitted.
    """
    if started is None:
        return None
    if end.outcome == "host_oom":
        return {"workers": started["workers"] // 2} if started["workers"] else None
    if end.outcome != "cuda_oom":
        return None
    if end.phase in ("val", "predict"):
        rows = smaller_rows(started["batch"], failed.eval_batch or started["batch"])
        return {"eval_batch": rows} if rows else None
    rows = smaller_rows(started["batch"], started["micro_batch"])
    return {"micro_batch": rows} if rows else None


def smaller_rows(batch: int, failed: int) -> int | None:
    """The largest proper divisor of ``batch`` at or under three quarters of what failed; None at one row."""
    divisors = (rows for rows in range(1, batch) if batch % rows == 0 and 4 * rows <= 3 * failed)
    return max(divisors, default=None)


def following(
    failed: AttemptRequest, less: dict[str, int], started: Event, saved: Path | None
) -> AttemptRequest:
    """The attempt after one for which memory did not suffice.

    Args:
        failed: what was asked of that one.
        less: what this one has less of, as :func:`smaller` says.
        started: the event that tells with which seed that one began.
        saved: the newest intact checkpoint, if that one saved any; else this one begins where that one did.
    """
    following = replace(
        failed,
        micro_batch=less.get("micro_batch", failed.micro_batch),
        eval_batch=less.get("eval_batch", failed.eval_batch),
    )
    changes: settings.Settings = {}
    if saved is not None:
        changes = settings.resume(saved)
        # What says where a run starts must not send a later attempt back there.
        kept = lasting(failed.overrides)
        following = replace(
            following, checkpoint=str(saved), weights_alone=False, trust=False, overrides=kept
        )
    elif failed.action == "train" and (failed.checkpoint is None or failed.weights_alone):
        changes = {"training": {"seed": started["seed"]}}
    if "eval_batch" in less:
        changes |= settings.evaluate_on_cpu(read_version(Path(failed.mmf)))
    if "workers" in less:
        # An override of the user's would win over a setting.
        fewer = f"{_WORKERS}={less['workers']}"
        following = replace(following, overrides=[*without(following.overrides, {_WORKERS}), fewer])
    return replace(following, settings=merge(failed.settings, changes))
