"""A student learns from a teacher's predictions of the training rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmf_win.dataset.prediction_file import read_predictions, write_predictions
from mmf_win.protocol import read_events
from tests.endtoend.conftest import SetFaults, Tool, assert_same_weights, logged_losses, read_events_of_kind
from tests.endtoend.test_memory import without_dropout


@pytest.fixture
def lessons(tool: Tool) -> Path:
    """Return the predictions of a trained model for the training rows."""
    teacher = tool.get_trained_run("vilbert", run="teacher")
    return Path(tool("predict", teacher.id, "--split", "train", "--no-report")["csv"])


def test_a_student_keeps_its_teacher_when_it_resumes_and_in_parts(
    tool: Tool, set_faults: SetFaults, lessons: Path
) -> None:
    words = (
        "--seed",
        "3",
        "--batch-size",
        "13",
        "training.checkpoint_interval=1",
        "scheduler.params.num_training_steps=20",
    )
    preset = without_dropout(tool)
    whole = tool.train(preset, "--updates", "4", *words, "--teacher", str(lessons), "--name", "whole")
    assert "the teacher was trained on the same memes" in tool.errors
    alone = tool.train(preset, "--updates", "4", *words, "--name", "alone")
    assert logged_losses(whole)[0] != pytest.approx(logged_losses(alone)[0], rel=1e-4), "the teacher has a share"

    set_faults({"at": "forward", "do": "cuda_oom", "above": 7})
    begun = tool.train(preset, "--updates", "2", *words, "--teacher", str(lessons), "--name", "parts")
    assert logged_losses(begun) == pytest.approx(logged_losses(whole)[:2], rel=1e-4)
    parts = tool.train("--resume", "parts", "--updates", "4")
    assert parts == begun
    assert logged_losses(parts)[-2:] == pytest.approx(logged_losses(whole)[-2:], rel=1e-4)
    assert_same_weights(parts, whole, rtol=1e-4, atol=1e-5)

    write_predictions(lessons, read_predictions(lessons)[::-1])
    assert tool.run_for_exit_code("train", "--resume", "parts", "--updates", "6") == 3
    assert f"{lessons}: the teacher's predictions have changed" in tool.errors
    lessons.unlink()
    assert tool.run_for_exit_code("train", "--resume", "parts", "--updates", "6") == 3
    assert f"{lessons}: prediction file of the teacher not found" in tool.errors
    assert not [e for e in read_events(parts.events) if e.get("attempt") == "4"], "no worker has started"


@pytest.mark.wide
def test_a_teacher_of_its_own_labels_leaves_validation_as_it_is(tool: Tool, lessons: Path) -> None:
    """A share of 1 of a teacher that says what the labels say is the loss without one."""
    annotations = (tool.world.dataset / "annotations" / "train.jsonl").read_text(encoding="utf-8")
    labels = {str(int(row["id"])): row["label"] for row in map(json.loads, annotations.splitlines())}
    sure = [type(row)(row.id, float(labels[row.id]), labels[row.id]) for row in read_predictions(lessons)]
    write_predictions(lessons, sure)
    words = (without_dropout(tool), "--updates", "2", "--seed", "3", "training.evaluation_interval=1")
    alone = tool.train(*words, "--name", "alone")
    taught = tool.train(*words, "--teacher", str(lessons), "--teacher-weight", "1", "--name", "taught")
    assert logged_losses(taught) == pytest.approx(logged_losses(alone), rel=1e-5)
    val = [[event["metrics"] for event in read_events_of_kind(run, "val")] for run in (alone, taught)]
    assert val[0] and "cross_entropy" in val[0][0]
    for one, other in zip(*val, strict=True):
        assert other == pytest.approx(one, rel=1e-4)  # it knows no row of that split


def test_a_teacher_is_named_by_the_option(tool: Tool, lessons: Path) -> None:
    assert tool.run_for_exit_code("train", tool.preset("bert"), f"mmfw.teacher={lessons}") == 2
    assert "--teacher FILE" in tool.errors
    assert tool.run_for_exit_code("train", tool.preset("bert"), "--teacher-weight", "0.5") == 2
    assert "--teacher-weight requires --teacher" in tool.errors
    shown = tool("train", tool.preset("bert"), "--teacher", str(lessons), "--dry-run")
    assert shown["training"] and not tool.save_dir.joinpath("bert").exists()


@pytest.mark.wide
@pytest.mark.parametrize("name", ["mmbt", "visual_bert"])
def test_every_list_of_losses_takes_a_teacher(tool: Tool, lessons: Path, name: str) -> None:
    words = (tool.preset(name), "--updates", "1", "--seed", "2", "training.log_interval=1")
    taught = tool.train(*words, "--teacher", str(lessons), "--name", "taught")
    assert logged_losses(taught) != logged_losses(tool.train(*words, "--name", "alone"))


@pytest.mark.parametrize("name", ["lxmert", "vilt", "mmf_transformer"])
def test_models_of_the_newest_mmf_take_a_teacher(only_rc12: None, tool: Tool, lessons: Path, name: str) -> None:
    test_every_list_of_losses_takes_a_teacher(tool, lessons, name)
