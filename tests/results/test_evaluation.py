"""Files read and written by a prediction; a function replaces the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mmf_win.commands.progress import RunDisplay
from mmf_win.dataset import annotations
from mmf_win.dataset.prediction_file import read_predictions, write_predictions
from mmf_win.errors import CheckpointError
from mmf_win.results import evaluation
from mmf_win.results.evaluation import PredictionOptions, RunCheckpoint
from mmf_win.runs.targets import PredictionTarget
from tests.worlds import report_world
from tests.worlds.report_world import SPLIT, ReportWorld
from tests.worlds.tools import requires_package

pytestmark = [pytest.mark.torch, requires_package("numpy")]
VALIDATION = "dev_unseen"


@pytest.fixture
def world_with_validation(tmp_path: Path) -> ReportWorld:
    """Return a world whose validation split has the same memes as its other split."""
    world = report_world.make(tmp_path, draw_images=False)
    world.dataset.annotation_file(VALIDATION).write_bytes(world.dataset.annotation_file(SPLIT).read_bytes())
    return world


def make_checkpoint(world: ReportWorld) -> RunCheckpoint:
    run = world.add_run()
    run.checkpoints.mkdir()
    best = run.checkpoints / "best.ckpt"
    best.write_bytes(b"weights")
    return RunCheckpoint(run, best)


def predict_by_label(
    *_: Any, target: PredictionTarget, begin: Callable[[], object], **__: Any
) -> tuple[list[float], dict[str, Any]]:
    """Predict 0.6 for benign memes and 0.8 for hateful ones."""
    begin()
    return [0.8 if row.label else 0.6 for row in target.rows], {"mmf": "1.0.0rc12"}


def test_each_split_is_read_once_and_each_submission_written_once(
    world_with_validation: ReportWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_splits: list[str] = []
    written_names: list[str] = []

    def read_text(path: Path, shown: str, original: Any = annotations.read_text_and_sha256) -> tuple[str, str]:
        read_splits.append(path.stem)
        ids: tuple[str, str] = original(path, shown)
        return ids

    def write(csv: Path, rows: Any) -> None:
        written_names.append(csv.name)
        write_predictions(csv, rows)

    monkeypatch.setattr(annotations, "read_text_and_sha256", read_text)
    monkeypatch.setattr(evaluation, "write_predictions", write)
    member = make_checkpoint(world_with_validation)
    options = PredictionOptions(split=[SPLIT, VALIDATION], threshold="best-accuracy", predict_function=predict_by_label)
    results = list(evaluation.predict_and_score([member], world_with_validation.save, options, RunDisplay))
    assert sorted(read_splits) == sorted([SPLIT, VALIDATION])
    assert written_names == [result.scored.csv.name for result in results]
    assert [result.record["accuracy"] for result in results] == [1.0, 1.0]
    for result in results:
        labels = [row.label for row in read_predictions(result.scored.csv)]
        assert labels == [meme.row.label for meme in result.scored.memes]
    assert not list(member.run.reports.glob("*.reserved"))


def test_checkpoint_replaced_during_prediction_leaves_no_predictions(world_with_validation: ReportWorld) -> None:
    member = make_checkpoint(world_with_validation)

    def replace_and_predict(*arguments: Any, **options: Any) -> tuple[list[float], dict[str, Any]]:
        member.checkpoint.write_bytes(b"others")
        return predict_by_label(*arguments, **options)

    with pytest.raises(CheckpointError, match=r"best\.ckpt: replaced while in use"):
        list(
            evaluation.predict_and_score(
                [member],
                world_with_validation.save,
                PredictionOptions(split=[SPLIT], predict_function=replace_and_predict),
                RunDisplay,
            )
        )
    assert not list(member.run.reports.iterdir())
