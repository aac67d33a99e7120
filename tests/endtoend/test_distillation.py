"""Training of a student with a teacher's predictions for the training rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmf_win.dataset.prediction_file import read_predictions, write_predictions
from mmf_win.protocol import read_events
from tests.endtoend.conftest import SetFaults, Tool, assert_same_weights, logged_losses, read_events_of_kind
from tests.endtoend.test_memory import write_large_step_preset


@pytest.fixture
def teacher_predictions(tool: Tool) -> Path:
    """Return the predictions of a trained model for the training rows."""
    teacher = tool.get_trained_run("vilbert", run="teacher")
    return Path(tool("predict", teacher.id, "--split", "train", "--no-report")["csv"])


def test_student_keeps_its_teacher_after_a_resume_and_with_micro_batches(
    tool: Tool, set_faults: SetFaults, teacher_predictions: Path
) -> None:
    options = (
        "--seed",
        "3",
        "--batch-size",
        "13",
        "training.checkpoint_interval=1",
        "scheduler.params.num_training_steps=20",
    )
    preset = write_large_step_preset(tool)
    full_batch_run = tool.train(
        preset, "--updates", "4", *options, "--teacher", str(teacher_predictions), "--name", "whole"
    )
    assert "the teacher was trained on the same memes" in tool.errors
    run_without_teacher = tool.train(preset, "--updates", "4", *options, "--name", "alone")
    assert logged_losses(full_batch_run)[0] != pytest.approx(logged_losses(run_without_teacher)[0], rel=1e-4), (
        "the teacher must contribute to the loss"
    )

    set_faults({"at": "forward", "do": "cuda_oom", "above": 7})
    started_run = tool.train(
        preset, "--updates", "2", *options, "--teacher", str(teacher_predictions), "--name", "parts"
    )
    assert logged_losses(started_run) == pytest.approx(logged_losses(full_batch_run)[:2], rel=1e-4)
    resumed_run = tool.train("--resume", "parts", "--updates", "4")
    assert resumed_run == started_run
    assert logged_losses(resumed_run)[-2:] == pytest.approx(logged_losses(full_batch_run)[-2:], rel=1e-4)
    assert_same_weights(resumed_run, full_batch_run, rtol=1e-4, atol=1e-5)

    write_predictions(teacher_predictions, read_predictions(teacher_predictions)[::-1])
    assert tool.run_for_exit_code("train", "--resume", "parts", "--updates", "6") == 3
    assert f"{teacher_predictions}: the teacher's predictions have changed" in tool.errors
    teacher_predictions.unlink()
    assert tool.run_for_exit_code("train", "--resume", "parts", "--updates", "6") == 3
    assert f"{teacher_predictions}: prediction file of the teacher not found" in tool.errors
    assert not [e for e in read_events(resumed_run.events) if e.get("attempt") == "4"], "no worker may start"


@pytest.mark.wide
def test_teacher_that_predicts_the_labels_changes_neither_loss_nor_validation(
    tool: Tool, teacher_predictions: Path
) -> None:
    """With a weight of 1, such a teacher must give the same loss as a training without a teacher."""
    annotations = (tool.world.dataset / "annotations" / "train.jsonl").read_text(encoding="utf-8")
    labels = {str(int(row["id"])): row["label"] for row in map(json.loads, annotations.splitlines())}
    certain_predictions = [
        type(row)(row.id, float(labels[row.id]), labels[row.id]) for row in read_predictions(teacher_predictions)
    ]
    write_predictions(teacher_predictions, certain_predictions)
    arguments = (write_large_step_preset(tool), "--updates", "2", "--seed", "3", "training.evaluation_interval=1")
    run_without_teacher = tool.train(*arguments, "--name", "alone")
    student = tool.train(*arguments, "--teacher", str(teacher_predictions), "--teacher-weight", "1", "--name", "taught")
    assert logged_losses(student) == pytest.approx(logged_losses(run_without_teacher), rel=1e-5)
    val = [[event["metrics"] for event in read_events_of_kind(run, "val")] for run in (run_without_teacher, student)]
    assert val[0] and "cross_entropy" in val[0][0]
    for expected, metrics in zip(*val, strict=True):
        assert metrics == pytest.approx(expected, rel=1e-4)  # the teacher has no predictions for that split


def test_teacher_is_set_by_its_option_and_not_by_an_override(tool: Tool, teacher_predictions: Path) -> None:
    assert tool.run_for_exit_code("train", tool.write_preset("bert"), f"mmfw.teacher={teacher_predictions}") == 2
    assert "--teacher FILE" in tool.errors
    assert tool.run_for_exit_code("train", tool.write_preset("bert"), "--teacher-weight", "0.5") == 2
    assert "--teacher-weight requires --teacher" in tool.errors
    result = tool("train", tool.write_preset("bert"), "--teacher", str(teacher_predictions), "--dry-run")
    assert result["training"] and not tool.save_dir.joinpath("bert").exists()


@pytest.mark.wide
@pytest.mark.parametrize("name", ["mmbt", "visual_bert"])
def test_models_with_other_losses_accept_a_teacher(tool: Tool, teacher_predictions: Path, name: str) -> None:
    arguments = (tool.write_preset(name), "--updates", "1", "--seed", "2", "training.log_interval=1")
    student = tool.train(*arguments, "--teacher", str(teacher_predictions), "--name", "taught")
    assert logged_losses(student) != logged_losses(tool.train(*arguments, "--name", "alone"))


@pytest.mark.parametrize("name", ["lxmert", "vilt", "mmf_transformer"])
def test_models_of_the_newest_mmf_accept_a_teacher(
    only_rc12: None, tool: Tool, teacher_predictions: Path, name: str
) -> None:
    test_models_with_other_losses_accept_a_teacher(tool, teacher_predictions, name)
