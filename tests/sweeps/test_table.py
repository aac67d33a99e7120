"""Means over seeds, ranking, and comparison with a baseline."""

from __future__ import annotations

import shutil
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mmf_win.errors import UsageError
from mmf_win.files import write_json
from mmf_win.sweeps.folder import SweepFolder, load_started_tasks, write_yaml
from mmf_win.sweeps.planning import plan_tasks
from mmf_win.sweeps.table import build_table, find_trained_runs, flatten_row, read_task_progress
from tests.worlds.event_log import EventLog
from tests.worlds.small_sweeps import ROOT, make_specification, write_ended_task, write_finished_run

SCORES = {
    "Lr_0.1-Seed_1": 0.60,
    "Lr_0.1-Seed_2": 0.70,
    "Lr_0.1-Seed_3": 0.65,
    "Lr_0.5-Seed_1": 0.70,
    "Lr_0.5-Seed_2": 0.79,
    "Lr_0.5-Seed_3": 0.76,
    "Lr_0.9-Seed_1": 0.50,
    "Lr_0.9-Seed_2": 0.55,
    "Lr_0.9-Seed_3": 0.51,
}


@pytest.fixture
def sweep(user_dir: Path) -> SweepFolder:
    """Return a sweep of three learning rates with three seeds each."""
    specification = make_specification(
        "template: {t: 'echo {lr} {seed} {same}'}\n---\nlr: [0.1, 0.5, 0.9]\nseed: [1, 2, 3]\nsame: 7\n"
    )
    folder = SweepFolder(user_dir / "sweep")
    for task in plan_tasks(specification).tasks:
        write_ended_task(folder, task)
        write_finished_run(folder.task_folder(task.name), SCORES[f"Lr_{task.values['lr']}-Seed_{task.values['seed']}"])
    return folder


def test_best_combination_is_first_with_mean_and_deviation(sweep: SweepFolder) -> None:
    rows = build_table(sweep)
    assert [line.parameters for line in rows] == [{"lr": 0.5}, {"lr": 0.1}, {"lr": 0.9}]
    best = flatten_row(rows[0])
    assert best["auroc"] == pytest.approx(statistics.mean([0.70, 0.79, 0.76]))
    assert best["auroc_sd"] == pytest.approx(statistics.stdev([0.70, 0.79, 0.76]))
    assert best["loss"] == pytest.approx(1 - best["auroc"])  # from the same validation
    assert best["validated_on"] == "dev_seen"
    by_loss = build_table(sweep, metric="loss")  # a smaller loss is better
    assert [line.parameters["lr"] for line in by_loss] == [0.5, 0.1, 0.9]
    assert {next(iter(line.metrics)) for line in by_loss} == {"loss"}


def test_task_without_a_score_is_not_counted(sweep: SweepFolder) -> None:
    unscored, scored, *_ = load_started_tasks(sweep)
    for task in (unscored, scored):  # as if a driver had run only some of their commands
        write_ended_task(sweep, task)
        replace(task, state="queued").save(sweep.task_folder(task.name))
    shutil.rmtree(sweep.task_folder(unscored.name).path / "demo")
    runs = {line.parameters["lr"]: line.run_count for line in build_table(sweep)}
    assert runs == {0.1: 3, 0.5: 3, 0.9: 3} | {unscored.values["lr"]: 2}


def test_combinations_are_compared_with_a_baseline_seed_by_seed(sweep: SweepFolder) -> None:
    from scipy.stats import ttest_rel

    better, base, worse = build_table(sweep, baseline=["lr=1e-1"])
    assert base.difference is None and base.p_value is None
    assert better.difference == pytest.approx(statistics.mean([0.10, 0.09, 0.11]))
    baseline = [SCORES[f"Lr_0.1-Seed_{n}"] for n in (1, 2, 3)]
    for line, lr in ((better, 0.5), (worse, 0.9)):
        values = [SCORES[f"Lr_{lr}-Seed_{n}"] for n in (1, 2, 3)]
        assert line.p_value == pytest.approx(ttest_rel(values, baseline).pvalue)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "test_auroc"}, "test set"),
        ({"metric": "test_seen_auroc (unknown checkpoint)"}, "test set"),
        ({"metric": "dev_seen_auroc"}, "no metric dev_seen_auroc"),
        ({"metric": "nope"}, "no metric nope"),
        ({"baseline": ["lr=7"]}, "matches 0 combinations"),
        *(({"baseline": [baseline]}, f"invalid --baseline '{baseline}'") for baseline in ("seven", "")),
    ],
)
def test_invalid_metric_or_baseline_is_rejected(sweep: SweepFolder, options: dict[str, str], message: str) -> None:
    run = sweep.task_folder(load_started_tasks(sweep)[0].name).newest_run()
    assert run is not None
    for split in ("dev_seen", "test_seen"):
        file = run.reports / f"hateful_memes_{run.path.parent.name}_{split}_2026-01-01T00-00-00.csv"
        file.parent.mkdir(exist_ok=True)
        file.touch()
        facts = {"auroc": 0.99, "split": split, "rows": 8, "full_rows": 8, "threshold": 0.5}
        write_json(file.with_suffix(".metrics.json"), facts | {"members": []})
    measured = {name for line in build_table(sweep) for name in line.metrics}
    assert measured == {"auroc", "loss", "test_seen_auroc (unknown checkpoint)"}
    with pytest.raises(UsageError, match=message):
        build_table(sweep, **options)  # type: ignore[arg-type]


def test_trained_runs_have_the_differing_parameters(sweep: SweepFolder) -> None:
    runs = find_trained_runs(sweep)
    assert len(runs) == 9
    assert {tuple(values) for values in runs.values()} == {("lr",)}


def test_task_progress_is_read_from_events(sweep: SweepFolder) -> None:
    progress = read_task_progress(sweep.task_folder(load_started_tasks(sweep)[0].name))
    expected = {"update": 30, "max_updates": 40, "loss": 0.5, "auroc": 0.60, "on": "dev_seen", "left": 5.0}
    assert progress == expected


def test_progress_includes_updates_known_only_from_validation(sweep: SweepFolder) -> None:
    folder = sweep.task_folder(load_started_tasks(sweep)[0].name)
    run = folder.newest_run()
    assert run is not None
    log = EventLog(run.events, "1")
    for update, final in ((40, False), (20, True)):  # the final validation uses the best checkpoint
        log.write("val", update=update, metrics={}, final=final, data={"split": "dev_seen", "rows": 8})
    progress = read_task_progress(folder)
    assert (progress["update"], progress["max_updates"], progress["left"]) == (40, 40, 0)


def test_training_without_train_events_has_a_total(sweep: SweepFolder) -> None:
    folder = sweep.task_folder(load_started_tasks(sweep)[0].name)
    run = folder.newest_run()
    assert run is not None
    run.events.unlink()
    log = EventLog(run.events, "1")
    log.write("train_started", max_updates=6)
    log.write("val", update=6, metrics={}, final=False, data={"split": "dev_seen", "rows": 8})
    assert (read_task_progress(folder)["update"], read_task_progress(folder)["max_updates"]) == (6, 6)


def test_notebook_code_in_the_guide_runs(sweep: SweepFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    guide = (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")
    code = guide.split("```python\n")[1].split("```")[0]
    for task in load_started_tasks(sweep):
        folder = sweep.task_folder(task.name)
        write_yaml(folder.param, task.values)
        (folder.path / "log.train.20260101.120000").write_text("one\ntwo\n", encoding="utf-8")
    sweeps_dir = sweep.path.parent / "save" / "sweeps"
    sweeps_dir.mkdir(parents=True)
    sweep.path.rename(sweeps_dir / "mmbt_grid")
    monkeypatch.chdir(sweep.path.parent)
    names: dict[str, Any] = {}
    exec(code, names)
    table = names["sweep_dataframe"]("save/sweeps/mmbt_grid")
    assert list(table["lr"]) == [0.5, 0.1, 0.9]
    assert list(table["runs"]) == [3, 3, 3]
    assert {"auroc", "auroc_sd", "loss", "loss_sd"} < set(table.columns)
    assert list(names["examiner"].table()["lines"]) == [2] * 9


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
@pytest.mark.parametrize("nonfinite", ["NaN", "Infinity", "-Infinity", '"nan"', "1e999", str(10**400)])
def test_nonfinite_value_sorts_as_missing(user_dir: Path, nonfinite: str, direction: str) -> None:
    head = f"search: {{trials: 3, metric: 'r.json:x', direction: {direction}, parameters: {{lr: [1]}}}}"
    text = f"template: {{t: 'echo {{lr}}'}}\n{head}\n---\nlr: [1, 2, 3, 4]\n"
    folder = SweepFolder(user_dir / "sweep")
    for task, value in zip(
        plan_tasks(make_specification(text)).tasks, (nonfinite, "0.5", nonfinite, "0.7"), strict=True
    ):
        write_ended_task(folder, task)
        (folder.task_folder(task.name).path / "r.json").write_text(f'{{"x": {value}}}', encoding="utf-8")
    folder.specification.write_text(text, encoding="utf-8")
    rows = build_table(folder)
    best = [4, 2] if direction == "maximize" else [2, 4]
    assert [line.parameters["lr"] for line in rows] == [*best, 1, 3]
    assert [line.metrics for line in rows[2:]] == [{}, {}]
