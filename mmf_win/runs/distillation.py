"""The predictions that a student learns from, checked before it is trained."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmf_win.console import summarize_list
from mmf_win.dataset.annotations import AnnotationRow, read_annotations
from mmf_win.dataset.prediction_file import read_predictions
from mmf_win.errors import DataError, UsageError
from mmf_win.files import read_json
from mmf_win.inputs.discovery import list_dataset_paths
from mmf_win.inputs.verification import VerifiedInputs
from mmf_win.integrity.digest import file_digest
from mmf_win.protocol import AttemptRequest
from mmf_win.runs.history import read_run_events
from mmf_win.runs.lookup import run_containing
from mmf_win.runs.request import RunRequest
from mmf_win.upstream.config import DATASET, MMFW_GROUP, Settings

_log = logging.getLogger(__name__)

_DEFAULT_WEIGHT = 0.7
_REQUIRED_LOSS = "cross_entropy"


def attach_teacher(
    request: RunRequest, first_attempt: AttemptRequest, config: Settings, inputs: VerifiedInputs
) -> tuple[RunRequest, AttemptRequest]:
    """A request that remembers its teacher, and an attempt that has its probability for each training row.

    ``config`` is as :func:`mmf_win.upstream.config.resolve_config` gives it. A note says where the teacher
    is known to have been trained on these rows.

    Raises:
        UsageError: there is a weight and no teacher, or the model has another loss than cross-entropy.
        DataError: the file is missing, has changed since the run began, or is not of these rows.
    """
    from omegaconf import OmegaConf

    settings = request.mmfw_settings
    if settings.teacher is None:
        raise UsageError("--teacher-weight is for --teacher FILE", hint="leave it out, or name the file")
    _require_loss(request.model, config["model"])
    path = Path(OmegaConf.create([settings.teacher])[0])  # any name is kept, as a literal
    train = inputs.splits_read.get("train", {})  # nothing where there are several annotation files
    split = train.get("split", "train")
    hint = f"`mmfw predict RUN --split {split}` writes one, and --teacher FILE names it"
    if not path.is_file():
        raise DataError(f"{path}: there is no such file of a teacher's predictions", hint=hint)
    sha256 = file_digest(path).hex()
    if settings.teacher_sha256 not in (None, sha256):
        message = f"{path}: the teacher's predictions are not those that this run began with"
        raise DataError(message, hint="bring them back, or name the new ones with --teacher")
    record: Any = {}
    with suppress(OSError, ValueError):
        record = read_json(path.with_suffix(".metrics.json"))
    record = record if isinstance(record, dict) else {}
    if train and (predicted_split := record.get("split") or split) != split:
        raise DataError(f"{path}: it predicts {predicted_split}, and the run trains on {split}", hint=hint)
    _, rows = inputs.kept_rows.get("train", (path, None))
    if rows is None:
        rows = [
            row
            for file in list_dataset_paths(config["dataset"], "annotations", ["train"])
            for row in read_annotations(file)
        ]
    probas = _read_teacher_probas(path, rows, split, hint)
    if train and record.get("annotations_sha256") not in (None, train["sha256"]):
        _log.warning("the teacher predicted another %s, whose memes have the same ids: %s", split, path)
    if train and _is_trained_on(record, train["sha256"]):
        _log.warning("the teacher was trained on these rows, so it is surer of them than of others: %s", path)
    weight = settings.teacher_weight or _DEFAULT_WEIGHT
    request = request.merged_with({MMFW_GROUP: {"teacher_sha256": sha256, "teacher_weight": weight}})
    return request, replace(
        first_attempt, task=replace(first_attempt.train_task, teacher_probas=probas, teacher_weight=weight)
    )


def _require_loss(model: str, config: Settings) -> None:
    """Refuse a model whose losses are not all cross-entropy: those in a list, or the named ones in use."""
    losses, heads = config.get("losses") or [], config.get("heads")
    if isinstance(losses, dict):
        names = (
            {head.get("loss") for head in heads.get(DATASET, [])} if isinstance(heads, dict) else {DATASET}
        )
        losses = [loss for name, loss in losses.items() if name in names]
    types = sorted({str(entry.get("type") if isinstance(entry, dict) else entry) for entry in losses})
    if types != [_REQUIRED_LOSS]:
        description = f"the loss {', '.join(types)}" if types else "none in its configuration"
        message = f"--teacher is for models with the loss {_REQUIRED_LOSS}, and {model} has {description}"
        raise UsageError(message, hint=f"model_config.{model}.losses names them")


def _read_teacher_probas(path: Path, rows: list[AnnotationRow], split: str, hint: str) -> dict[str, float]:
    """MMF's id of each row → what the file predicts for it; a DataError where that is not one probability."""
    predictions = read_predictions(path)
    for line, row in enumerate(predictions, start=2):
        if not 0 <= row.proba <= 1:
            raise DataError(f"{path}:{line}: {row.proba} is not a probability from 0 to 1", hint=hint)
    if duplicates := [name for name, count in Counter(row.id for row in predictions).items() if count > 1]:
        raise DataError(f"{path}: predicts memes more than once ({summarize_list(duplicates)})", hint=hint)
    proba_by_id = {row.id: row.proba for row in predictions}
    if missing := [row.display_id for row in rows if row.display_id not in proba_by_id]:
        count = f"{len(missing)} of {len(rows)} memes of {split}"
        raise DataError(f"{path}: no prediction for {count} ({summarize_list(missing)})", hint=hint)
    return {str(row.id): proba_by_id[row.display_id] for row in rows}


def _is_trained_on(record: dict[str, Any], sha256: str) -> bool:
    """Whether a run that made the predictions is here and was trained on the annotations with this hash."""
    with suppress(OSError, TypeError, KeyError, DataError):  # a record may be anyone's
        runs = [run_containing(Path(member["checkpoint"])) for member in record["members"]]
        events = [event for run in runs if run for event in read_run_events(run)]
        trained = [event.get("data") or {} for event in events if event["kind"] == "train_started"]
        return any(data.get("sha256") == sha256 for data in trained)
    return False
