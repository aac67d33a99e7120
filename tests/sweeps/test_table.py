"""Means over seeds, what a sweep is ranked by, and the comparison with a baseline."""

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
from mmf_win.sweeps.table import build_table, flatten_row, task_progress
from mmf_win.sweeps.table import trained_runs as trained_ones
from tests.worlds.event_log import EventLog
from tests.worlds.small_sweeps import ROOT, make_specification, write_ended_task, write_finished_run

SCORES = {
    **{"Lr_0.1-Seed_1": 0.60, "Lr_0.1-Seed_2": 0.70, "Lr_0.1-Seed_3": 0.65},
    **{"Lr_0.5-Seed_1": 0.70, "Lr_0.5-Seed_2": 0.79, "Lr_0.5-Seed_3": 0.76},
    **{"Lr_0.9-Seed_1": 0.50, "Lr_0.9-Seed_2": 0.55, "Lr_0.9-Seed_3": 0.51},
}


@pytest.fixture
def sweep(user_dir: Path) -> SweepFolder:
    """Three learning rates with three seeds each."""
    asked = make_specification(
        "template: {t: 'echo {lr} {seed} {same}'}\n---\nlr: [0.1, 0.5, 0.9]\nseed: [1, 2, 3]\nsame: 7\n"
    )
    made = SweepFolder(user_dir / "sweep")
    for task in plan_tasks(asked).tasks:
        write_ended_task(made, task)
        write_finished_run(
            made.task_folder(task.name), SCORES[f"Lr_{task.values['lr']}-Seed_{task.values['seed']}"]
        )
    return made


def test_the_best_combination_comes_first_with_mean_and_deviation(sweep: SweepFolder) -> None:
    found = build_table(sweep)
    assert [line.parameters for line in found] == [{"lr": 0.5}, {"lr": 0.1}, {"lr": 0.9}]
    best = flatten_row(found[0])
    assert best["auroc"] == pytest.approx(statistics.mean([0.70, 0.79, 0.76]))
    assert best["auroc_sd"] == pytest.approx(statistics.stdev([0.70, 0.79, 0.76]))
    assert best["loss"] == pytest.approx(1 - best["auroc"])  # of the same validation
    assert best["validated_on"] == "dev_seen"
    by_loss = build_table(sweep, metric="loss")  # the smaller, the better
    assert [line.parameters["lr"] for line in by_loss] == [0.5, 0.1, 0.9]
    assert {next(iter(line.metrics)) for line in by_loss} == {"loss"}


def test_a_task_counts_once_it_has_a_score(sweep: SweepFolder) -> None:
    without, scored, *_ = load_started_tasks(sweep)
    for task in (without, scored):  # as where a driver ran some of their commands alone
        write_ended_task(sweep, task)
        replace(task, state="queued").save(sweep.task_folder(task.name))
    shutil.rmtree(sweep.task_folder(without.name).path / "demo")
    runs = {line.parameters["lr"]: line.run_count for line in build_table(sweep)}
    assert runs == {0.1: 3, 0.5: 3, 0.9: 3} | {without.values["lr"]: 2}


def test_combinations_are_compared_with_a_baseline_seed_by_seed(sweep: SweepFolder) -> None:
    from scipy.stats import ttest_rel

    better, base, worse = build_table(sweep, baseline=["lr=1e-1"])
    assert base.difference is None and base.p_value is None
    assert better.difference == pytest.approx(statistics.mean([0.10, 0.09, 0.11]))
    theirs = [SCORES[f"Lr_0.1-Seed_{n}"] for n in (1, 2, 3)]
    for line, lr in ((better, 0.5), (worse, 0.9)):
        ours = [SCORES[f"Lr_{lr}-Seed_{n}"] for n in (1, 2, 3)]
        assert line.p_value == pytest.approx(ttest_rel(ours, theirs).pvalue)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"metric": "test_auroc"}, "test set"),
        ({"metric": "test_seen_auroc (unknown checkpoint)"}, "test set"),
        ({"metric": "dev_seen_auroc"}, "no metric dev_seen_auroc"),
        ({"metric": "nope"}, "no metric nope"),
        ({"baseline": ["lr=7"]}, "matches 0 combinations"),
        *(({"baseline": [word]}, f"PARAMETER=VALUE, and '{word}' is not") for word in ("seven", "")),
    ],
)
def test_what_cannot_be_ranked_or_compared_is_refused(
    sweep: SweepFolder, how: dict[str, str], told: str
) -> None:
    run = sweep.task_folder(load_started_tasks(sweep)[0].name).newest_run()
    assert run is not None
    for split in ("dev_seen", "test_seen"):
        made = run.reports / f"hateful_memes_{run.path.parent.name}_{split}_2026-01-01T00-00-00.csv"
        made.parent.mkdir(exist_ok=True)
        made.touch()
        facts = {"auroc": 0.99, "split": split, "rows": 8, "full_rows": 8, "threshold": 0.5}
        write_json(made.with_suffix(".metrics.json"), facts | {"members": []})
    measured = {name for line in build_table(sweep) for name in line.metrics}
    assert measured == {"auroc", "loss", "test_seen_auroc (unknown checkpoint)"}
    with pytest.raises(UsageError, match=told):
        build_table(sweep, **how)  # type: ignore[arg-type]


def test_the_page_gets_the_runs_with_what_differs(sweep: SweepFolder) -> None:
    found = trained_ones(sweep)
    assert len(found) == 9
    assert {tuple(values) for values in found.values()} == {("lr",)}


def test_where_a_training_is_comes_from_its_events(sweep: SweepFolder) -> None:
    where = task_progress(sweep.task_folder(load_started_tasks(sweep)[0].name))
    known = {"update": 30, "max_updates": 40, "loss": 0.5, "auroc": 0.60, "on": "dev_seen", "left": 5.0}
    assert where == known


def test_the_last_updates_count_of_which_the_validation_alone_tells(sweep: SweepFolder) -> None:
    folder = sweep.task_folder(load_started_tasks(sweep)[0].name)
    run = folder.newest_run()
    assert run is not None
    log = EventLog(run.events, "1")
    for update, final in ((40, False), (20, True)):  # the final one is of the best checkpoint
        log.write("val", update=update, metrics={}, final=final, data={"split": "dev_seen", "rows": 8})
    where = task_progress(folder)
    assert (where["update"], where["max_updates"], where["left"]) == (40, 40, 0)


def test_a_training_without_a_report_of_its_updates_has_a_total(sweep: SweepFolder) -> None:
    folder = sweep.task_folder(load_started_tasks(sweep)[0].name)
    run = folder.newest_run()
    assert run is not None
    run.events.unlink()
    log = EventLog(run.events, "1")
    log.write("train_started", max_updates=6)
    log.write("val", update=6, metrics={}, final=False, data={"split": "dev_seen", "rows": 8})
    assert (task_progress(folder)["update"], task_progress(folder)["max_updates"]) == (6, 6)


def test_the_guides_lines_for_a_notebook_run(sweep: SweepFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    guide = (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")
    code = guide.split("```python\n")[1].split("```")[0]
    for task in load_started_tasks(sweep):
        folder = sweep.task_folder(task.name)
        write_yaml(folder.param, task.values)
        (folder.path / "log.train.20260101.120000").write_text("one\ntwo\n", encoding="utf-8")
    there = sweep.path.parent / "save" / "sweeps"
    there.mkdir(parents=True)
    sweep.path.rename(there / "mmbt_grid")
    monkeypatch.chdir(sweep.path.parent)
    names: dict[str, Any] = {}
    exec(code, names)
    table = names["sweep_dataframe"]("save/sweeps/mmbt_grid")
    assert list(table["lr"]) == [0.5, 0.1, 0.9]
    assert list(table["runs"]) == [3, 3, 3]
    assert {"auroc", "auroc_sd", "loss", "loss_sd"} < set(table.columns)
    assert list(names["examiner"].table()["lines"]) == [2] * 9


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
@pytest.mark.parametrize("odd", ["NaN", "Infinity", "-Infinity", '"nan"', "1e999", str(10**400)])
def test_a_value_that_is_not_finite_sorts_as_missing(user_dir: Path, odd: str, direction: str) -> None:
    head = f"search: {{trials: 3, metric: 'r.json:x', direction: {direction}, parameters: {{lr: [1]}}}}"
    text = f"template: {{t: 'echo {{lr}}'}}\n{head}\n---\nlr: [1, 2, 3, 4]\n"
    made = SweepFolder(user_dir / "sweep")
    for task, value in zip(plan_tasks(make_specification(text)).tasks, (odd, "0.5", odd, "0.7"), strict=True):
        write_ended_task(made, task)
        (made.task_folder(task.name).path / "r.json").write_text(f'{{"x": {value}}}', encoding="utf-8")
    made.specification.write_text(text, encoding="utf-8")
    found = build_table(made)
    best = [4, 2] if direction == "maximize" else [2, 4]
    assert [line.parameters["lr"] for line in found] == [*best, 1, 3]
    assert [line.metrics for line in found[2:]] == [{}, {}]
