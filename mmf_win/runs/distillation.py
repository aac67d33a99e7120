"""Knowledge distillation: the teacher's predictions, checked before the student is trained."""

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
from mmf_win.runs.lookup import find_run_containing
from mmf_win.runs.request import RunRequest
from mmf_win.upstream.config import DATASET, MMFW_GROUP, Settings

_log = logging.getLogger(__name__)

_DEFAULT_WEIGHT = 0.7
_REQUIRED_LOSS = "cross_entropy"


def attach_teacher(
    request: RunRequest, attempt: AttemptRequest, config: Settings, inputs: VerifiedInputs
) -> tuple[RunRequest, AttemptRequest]:
    """Add the teacher's predictions to an attempt and remember them in the request.

    Logs a warning if the teacher is known to have been trained on the same rows.

    Args:
        request: Request of the run.
        attempt: The attempt to extend.
        config: Resolved configuration (see :func:`mmf_win.upstream.config.resolve_config`).
        inputs: Verified inputs of the run.

    Returns:
        The request with the hash of the prediction file and the weight, and the attempt with the teacher's
        probability for each training row.

    Raises:
        UsageError: A weight without a teacher, or a model whose loss is not cross-entropy.
        DataError: The prediction file is missing, changed since the run began, or does not match the rows.
    """
    from omegaconf import OmegaConf

    settings = request.mmfw_settings
    if settings.teacher is None:
        hint = "add --teacher FILE, or remove --teacher-weight"
        raise UsageError("--teacher-weight requires --teacher FILE", hint=hint)
    _require_loss(request.model, config["model"])
    path = Path(OmegaConf.create([settings.teacher])[0])  # the stored path is escaped
    train = inputs.splits_read.get("train", {})  # empty if there are several annotation files
    split = train.get("split", "train")
    hint = f"create it with `mmfw predict RUN --split {split}`, then pass it with --teacher FILE"
    if not path.is_file():
        raise DataError(f"{path}: prediction file of the teacher not found", hint=hint)
    sha256 = file_digest(path).hex()
    if settings.teacher_sha256 not in (None, sha256):
        message = f"{path}: the teacher's predictions have changed since this run began"
        raise DataError(message, hint="restore the file, or pass the new one with --teacher")
    record: Any = {}
    with suppress(OSError, ValueError):
        record = read_json(path.with_suffix(".metrics.json"))
    record = record if isinstance(record, dict) else {}
    if train and (predicted_split := record.get("split") or split) != split:
        raise DataError(f"{path}: predictions of {predicted_split}, but the run trains on {split}", hint=hint)
    _, rows = inputs.kept_rows.get("train", (path, None))
    if rows is None:
        files = list_dataset_paths(config["dataset"], "annotations", ["train"])
        rows = [row for file in files for row in read_annotations(file)]
    probas = _read_teacher_probas(path, rows, split, hint)
    if train and record.get("annotations_sha256") not in (None, train["sha256"]):
        _log.warning("%s: predicted from another version of %s, which has the same ids", path, split)
    if train and _is_trained_on(record, train["sha256"]):
        advice = "use a teacher that was trained on other memes"
        _log.warning("%s: overconfident, because the teacher was trained on the same memes; %s", path, advice)
    weight = settings.teacher_weight or _DEFAULT_WEIGHT
    request = request.merged_with({MMFW_GROUP: {"teacher_sha256": sha256, "teacher_weight": weight}})
    return request, replace(attempt, task=replace(attempt.train_task, teacher_probas=probas, teacher_weight=weight))


def _require_loss(model: str, config: Settings) -> None:
    """Check that all losses of the model are cross-entropy.

    If the losses have names, only those that a head uses count.

    Raises:
        UsageError: The model has no loss or another one.
    """
    losses, heads = config.get("losses") or [], config.get("heads")
    if isinstance(losses, dict):
        names = {head.get("loss") for head in heads.get(DATASET, [])} if isinstance(heads, dict) else {DATASET}
        losses = [loss for name, loss in losses.items() if name in names]
    types = sorted({str(entry.get("type") if isinstance(entry, dict) else entry) for entry in losses})
    if types != [_REQUIRED_LOSS]:
        description = f"the loss {', '.join(types)}" if types else "none in its configuration"
        message = f"--teacher requires the loss {_REQUIRED_LOSS}, but {model} has {description}"
        raise UsageError(message, hint=f"see model_config.{model}.losses")


def _read_teacher_probas(path: Path, rows: list[AnnotationRow], split: str, hint: str) -> dict[str, float]:
    """Read the teacher's probability of each training row.

    Args:
        path: Prediction file.
        rows: Training rows.
        split: Name of the split, for errors.
        hint: Hint of errors.

    Returns:
        MMF's ID of each row, mapped to the probability.

    Raises:
        DataError: A probability is missing, duplicated or outside of 0 to 1.
    """
    predictions = read_predictions(path)
    for line, row in enumerate(predictions, start=2):
        if not 0 <= row.proba <= 1:
            raise DataError(f"{path}:{line}: {row.proba} is not a probability from 0 to 1", hint=hint)
    if duplicates := [name for name, count in Counter(row.id for row in predictions).items() if count > 1]:
        raise DataError(f"{path}: duplicate predictions ({summarize_list(duplicates)})", hint=hint)
    proba_by_id = {row.id: row.proba for row in predictions}
    if missing := [row.display_id for row in rows if row.display_id not in proba_by_id]:
        count = f"{len(missing)} of {len(rows)} memes of {split}"
        raise DataError(f"{path}: no prediction for {count} ({summarize_list(missing)})", hint=hint)
    return {str(row.id): proba_by_id[row.display_id] for row in rows}


def _is_trained_on(record: dict[str, Any], sha256: str) -> bool:
    """Return whether a run that made the predictions is known to be trained on annotations with this hash."""
    with suppress(OSError, TypeError, KeyError, DataError):  # another program may have written the record
        runs = [find_run_containing(Path(member["checkpoint"])) for member in record["members"]]
        events = [event for run in runs if run for event in read_run_events(run)]
        trained = [event.get("data") or {} for event in events if event["kind"] == "train_started"]
        return any(data.get("sha256") == sha256 for data in trained)
    return False
