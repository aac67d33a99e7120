"""Scores with their split and checkpoint, in tables of one split and the best checkpoints."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from mmf_win.files import write_json
from mmf_win.runs.folder import Run
from mmf_win.runs.request import RunRequest
from mmf_win.sweeps.folder import TaskFolder
from mmf_win.sweeps.table import best_checkpoint_metrics, load_task_scores
from tests.worlds.event_log import EventLog
from tests.worlds.memes import RUN_SPLITS
from tests.worlds.tools import MmfwRunner


def make_run(save: Path, name: str, **request_fields: Any) -> Run:
    run = Run(save / name / "2026-01-01T00-00-00")
    run.reports.mkdir(parents=True)
    run.save_request(RunRequest(preset="demo", model="mmbt", splits=RUN_SPLITS, data_dir="data", **request_fields))
    return run


def log_checkpoint(run: Run, update: int, auroc: float, *, best: bool = False, attempt: str = "1") -> None:
    """Record a validation and a checkpoint, whose hash consists of its update and attempt."""
    log = EventLog(run.events, attempt)
    log.write("val", update=update, metrics={"auroc": auroc}, final=False)
    log.write("checkpoint", update=update, best=best, sha256=f"{update} of {attempt}")


def add_predictions(run: Run, split: str, sha256: str, auroc: float, rows: int = 8) -> Path:
    """Add a prediction that is newer than the existing ones."""
    number = len(list(run.reports.glob("*.csv")))
    csv_file = run.reports / f"hateful_memes_{run.path.parent.name}_{split}_2026-01-01T00-00-{number:02}.csv"
    csv_file.touch()
    facts = {"auroc": auroc, "split": split, "rows": rows, "full_rows": 8, "threshold": 0.5}
    member = {"run": run.id, "checkpoint": "best.ckpt", "checkpoint_sha256": sha256}
    write_json(csv_file.with_suffix(".metrics.json"), facts | {"members": [member]})
    return csv_file


def list_scores(mmfw: MmfwRunner, save: Path) -> dict[str, tuple[Any, ...]]:
    """Return the scores of each run in the list, after checking that all formats agree."""
    keys = ("best_auroc", "test_auroc", "test_split", "test_checkpoint")
    runs = mmfw.json("runs", "--save-dir", save)
    rows = csv.DictReader(io.StringIO(mmfw("runs", "--save-dir", save, "--format", "csv")))
    values_as_text = [[str(run[key] or "") for key in keys] for run in runs]
    assert [[row[key] for key in keys] for row in rows] == values_as_text
    return {run["id"].split("/")[0]: tuple(run[key] for key in keys) for run in runs}


@pytest.fixture
def run(user_dir: Path) -> Run:
    """Return a run that was best at update 10, with predictions of its best and last checkpoint."""
    run = make_run(user_dir, "a")
    log_checkpoint(run, 10, 0.9, best=True)
    log_checkpoint(run, 20, 0.8)
    add_predictions(run, "test_seen", "10 of 1", 0.7)
    add_predictions(run, "test_seen", "20 of 1", 0.6)
    add_predictions(run, "test_seen", "of another run", 0.5)
    add_predictions(run, "dev_seen", "10 of 1", 0.4)
    return run


@pytest.mark.parametrize("record", [[], 1, {"members": 1}])
def test_record_of_wrong_type_is_ignored(mmfw: MmfwRunner, run: Run, record: object) -> None:
    write_json(add_predictions(run, "dev_seen", "10 of 1", 0.4).with_suffix(".metrics.json"), record)
    assert list_scores(mmfw, run.path.parents[1]) == {"a": (0.9, 0.7, "test_seen", "best")}


def test_score_is_of_best_checkpoint_and_others_are_named(mmfw: MmfwRunner, run: Run) -> None:
    save = run.path.parents[1]
    assert list_scores(mmfw, save) == {"a": (0.9, 0.7, "test_seen", "best")}
    text = mmfw("runs", "--save-dir", save)
    assert "0.7000  test_seen   best" in text
    shown = mmfw.json("runs", "show", "a", "--save-dir", save)["predictions"]
    names = {prediction["auroc"]: (prediction["split"], prediction["checkpoint"]) for prediction in shown}
    assert names == {
        0.7: ("test_seen", "best"),
        0.6: ("test_seen", "update 20"),
        0.5: ("test_seen", "unknown"),
        0.4: ("dev_seen", "best"),
    }
    other = make_run(save, "b")
    log_checkpoint(other, 10, 0.6)
    log_checkpoint(other, 20, 0.7, best=True)
    add_predictions(other, "test_seen", "10 of 1", 0.75)
    add_predictions(other, "dev_seen", "20 of 1", 0.65, rows=4)
    scores = mmfw.json("runs", "compare", "a", "b", "--save-dir", save)["scores"]
    assert scores["best_auroc"] == [0.9, 0.7]
    assert (scores["test_seen_auroc"], scores["test_seen_by"]) == ([0.7, None], ["best, 8 rows of test_seen", None])
    assert scores["dev_seen_by"] == ["best, 8 rows of dev_seen", "best, 4 of 8 rows of dev_seen"]


def test_new_best_checkpoint_resets_test_score(mmfw: MmfwRunner, run: Run) -> None:
    save = run.path.parents[1]
    log_checkpoint(run, 30, 0.95, best=True, attempt="2")
    assert list_scores(mmfw, save) == {"a": (0.95, None, None, None)}
    shown = mmfw.json("runs", "show", "a", "--save-dir", save)["predictions"]
    assert "update 10" in {prediction["checkpoint"] for prediction in shown}
    add_predictions(run, "test_seen", "30 of 2", 0.3)
    assert list_scores(mmfw, save) == {"a": (0.95, 0.3, "test_seen", "best")}
    task = TaskFolder(run.path.parents[1])
    assert best_checkpoint_metrics(load_task_scores(task)[0]) == {"auroc": 0.95, "test_seen_auroc": 0.3}


def test_best_auroc_is_that_of_best_checkpoint(mmfw: MmfwRunner, run: Run) -> None:
    """It need not be the highest, because another metric may select the best checkpoint."""
    log_checkpoint(run, 30, 0.6, best=True)
    assert list_scores(mmfw, run.path.parents[1])["a"][0] == 0.6


def test_list_uses_one_test_split(mmfw: MmfwRunner, run: Run) -> None:
    save = run.path.parents[1]
    for name in ("b", "c"):
        other = make_run(save, name)
        log_checkpoint(other, 10, 0.6, best=True)
        add_predictions(other, "test_unseen", "10 of 1", 0.55)
    add_predictions(run, "dev_seen", "10 of 1", 0.45)
    scores = list_scores(mmfw, save)
    assert scores["a"] == (0.9, None, None, None)
    assert scores["b"] == (0.6, 0.55, "test_unseen", "best")


def test_checkpoint_of_legacy_records_is_unknown(mmfw: MmfwRunner, user_dir: Path) -> None:
    old = make_run(user_dir, "a")
    EventLog(old.events, "1").write("val", update=10, metrics={"auroc": 0.9}, final=False)
    EventLog(old.events, "1").write("checkpoint", update=10)
    add_predictions(old, "test_seen", "10 of 1", 0.7)
    assert list_scores(mmfw, user_dir) == {"a": (0.9, 0.7, "test_seen", "unknown")}
    assert "test_seen   unknown" in mmfw("runs", "--save-dir", user_dir)
    assert (
        best_checkpoint_metrics(load_task_scores(TaskFolder(user_dir))[0])["test_seen_auroc (unknown checkpoint)"]
        == 0.7
    )
    log_checkpoint(old, 20, 0.8)
    assert list_scores(mmfw, user_dir)["a"][-1] == "unknown", "the best checkpoint may be the old one"
    log_checkpoint(old, 30, 0.95, best=True)
    assert list_scores(mmfw, user_dir)["a"] == (0.95, None, None, None)


def test_published_weights_count_as_best_and_last_is_used_before_a_best(mmfw: MmfwRunner, user_dir: Path) -> None:
    published = make_run(user_dir, "a", published_weights="x", published_sha256="weights")
    add_predictions(published, "test_seen", "weights", 0.7)
    short = make_run(user_dir, "b")
    EventLog(short.events, "1").write("checkpoint", update=5, best=False, sha256="5 of 1")
    add_predictions(short, "test_seen", "5 of 1", 0.6)
    assert list_scores(mmfw, user_dir) == {
        "a": (None, 0.7, "test_seen", "best"),
        "b": (None, 0.6, "test_seen", "update 5"),
    }
