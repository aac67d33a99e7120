"""Checks of a teacher's predictions before a student is trained."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mmf_win.errors import DataError, UsageError
from mmf_win.inputs.verification import VerifiedInputs
from mmf_win.integrity.digest import file_digest
from mmf_win.protocol import AttemptRequest
from mmf_win.protocol.attempt import TrainTask
from mmf_win.runs import distillation
from mmf_win.runs.folder import Run
from mmf_win.runs.request import CommandOptions, RunRequest

LOSSES = [{"type": "cross_entropy"}]


@pytest.fixture
def annotations_file(tmp_path: Path) -> Path:
    """Write the annotations of two memes, one with a custom ID, and return their file."""
    path = tmp_path / "train.jsonl"
    rows = [{"id": "00007", "own_id": None}, {"id": 8, "own_id": "b"}]
    rows = [{**row, "img": "img/1.png", "text": "", "label": 0} for row in rows]
    rows[0].pop("own_id")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def make_request(path: Path, **options: Any) -> RunRequest:
    return RunRequest(model="mmbt").merged_with(CommandOptions(teacher=path, **options).settings)


def attach_teacher(
    request: RunRequest, annotations_file: Path, losses: object = LOSSES
) -> tuple[RunRequest, dict[str, float]]:
    config = {
        "model": {"losses": losses, "heads": {"hateful_memes": [{"loss": "used"}]}},
        "dataset": {"annotations": {"train": [str(annotations_file)]}, "data_dir": ""},
    }
    data = {"train": {"split": "train", "sha256": file_digest(annotations_file).hex()}}
    attempt = AttemptRequest(TrainTask(), "mmbt", "mmf")
    request, attempt = distillation.attach_teacher(request, attempt, config, VerifiedInputs(splits_read=data))
    assert attempt.train_task.teacher_weight == request.mmfw_settings.teacher_weight
    return request, attempt.train_task.teacher_probas


def write_predictions(folder: Path, *rows: str) -> Path:
    path = folder / "учитель ${x}.csv"
    path.write_text("\n".join(("id,proba,label", *rows)), encoding="utf-8")
    return path


def test_teacher_probabilities_use_ids_of_mmf(annotations_file: Path, tmp_path: Path) -> None:
    path = write_predictions(tmp_path, "b,0.25,0", "7,0.75,1", "9,0.5,0")
    request, probas = attach_teacher(make_request(path), annotations_file)
    assert probas == {"7": 0.75, "8": 0.25}
    assert request.mmfw_settings.teacher_weight == 0.7
    assert attach_teacher(request, annotations_file)[0] == request, (
        "the unchanged file must be accepted when the run is resumed"
    )
    assert request.merged_with(CommandOptions(teacher=path).settings).mmfw_settings.teacher_weight == 0.7
    write_predictions(tmp_path, "b,0.25,0", "7,0.5,1")
    with pytest.raises(DataError, match="have changed since this run began"):
        attach_teacher(request, annotations_file)
    assert (
        attach_teacher(request.merged_with(CommandOptions(teacher=path).settings), annotations_file)[1]["7"] == 0.5
    ), "naming the file again must accept its new content"
    path.unlink()
    with pytest.raises(DataError, match=r"учитель \$\{x\}.csv: prediction file of the teacher not found"):
        attach_teacher(request, annotations_file)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["7,0.5,0"], r"no prediction for 1 of 2 memes of train \(b\)"),
        (["7,0.5,0", "b,0.5,0", "7,0.5,0"], r"duplicate predictions \(7\)"),
        (["7,0.5,0", "b,1.5,0"], "csv:3: 1.5 is not a probability"),
        (["7,0.5,0", "b,nan,0"], "first id b, line 3"),
        (["7,0.5,0", "b,,0"], "not a prediction file"),
    ],
)
def test_predictions_must_cover_each_row_once(
    annotations_file: Path, tmp_path: Path, rows: list[str], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        attach_teacher(make_request(write_predictions(tmp_path, *rows)), annotations_file)


def test_predictions_of_another_split_are_rejected(annotations_file: Path, tmp_path: Path) -> None:
    path = write_predictions(tmp_path, "7,0.5,0", "b,0.5,0")
    path.with_suffix(".metrics.json").write_text('{"split": "dev_seen"}', encoding="utf-8")
    with pytest.raises(DataError, match="predictions of dev_seen, but the run trains on train"):
        attach_teacher(make_request(path), annotations_file)


@pytest.mark.parametrize("same", [True, False])
def test_warning_if_teacher_predicted_other_memes_with_same_ids(
    annotations_file: Path, tmp_path: Path, same: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_predictions(tmp_path, "7,0.5,0", "b,0.5,0")
    record = {"split": None, "annotations_sha256": file_digest(annotations_file).hex() if same else "other"}
    path.with_suffix(".metrics.json").write_text(json.dumps(record), encoding="utf-8")
    attach_teacher(make_request(path), annotations_file)
    assert ("another version of train" in caplog.text) is not same


@pytest.mark.parametrize("seen", [True, False])
def test_warning_if_teacher_was_trained_on_these_rows(
    annotations_file: Path, tmp_path: Path, seen: bool, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run.create(tmp_path / "save", "big")
    run.save_request(RunRequest(model="mmbt"))
    sha256 = file_digest(annotations_file).hex() if seen else "other"
    event = {"t": 1.0, "kind": "train_started", "attempt": "1", "data": {"sha256": sha256}}
    run.events.write_text(json.dumps(event) + "\n", encoding="utf-8")
    path = write_predictions(tmp_path, "7,0.5,0", "b,0.5,0")
    record = {"split": "train", "members": [{"checkpoint": str(run.checkpoints / "best.ckpt")}]}
    path.with_suffix(".metrics.json").write_text(json.dumps(record), encoding="utf-8")
    attach_teacher(make_request(path), annotations_file)
    assert ("was trained on the same memes" in caplog.text) is seen


@pytest.mark.parametrize(
    ("losses", "actual_loss"),
    [
        (["cross_entropy", {"type": "logit_bce"}], "the loss cross_entropy, logit_bce"),
        ({"used": "bce", "unused": "cross_entropy"}, "the loss bce"),
        (None, "none in its configuration"),
    ],
)
def test_model_with_another_loss_is_rejected(
    annotations_file: Path, tmp_path: Path, losses: object, actual_loss: str
) -> None:
    request = make_request(write_predictions(tmp_path, "7,0.5,0", "b,0.5,0"))
    with pytest.raises(UsageError, match=f"mmbt has {actual_loss}"):
        attach_teacher(request, annotations_file, losses)
    assert attach_teacher(request, annotations_file, {"used": "cross_entropy", "unused": "bce"})[1]


def test_weight_without_teacher_is_rejected(annotations_file: Path) -> None:
    with pytest.raises(UsageError, match="--teacher-weight requires --teacher"):
        attach_teacher(replace(RunRequest(), settings=CommandOptions(teacher_weight=0.5).settings), annotations_file)


def test_empty_teacher_path_is_not_ignored() -> None:
    settings = CommandOptions(teacher="").settings
    assert RunRequest().merged_with(settings).mmfw_settings.teacher == str(Path.cwd()), (
        "a folder, which is rejected later"
    )
