"""Searches with the real Optuna: proposals, recorded outcomes and pruning."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmf_win.errors import DataError, UsageError
from mmf_win.sweeps.folder import SweepFolder, Task, load_started_tasks
from mmf_win.sweeps.search import OptunaSearch
from mmf_win.sweeps.specification import Search
from mmf_win.sweeps.table import read_objective_value
from tests.worlds.concurrent_processes import PROCESS_COUNT, run_concurrently, wait_at_barrier
from tests.worlds.small_sweeps import make_specification, write_ended_task, write_finished_run
from tests.worlds.tools import requires_package

pytestmark = requires_package("optuna")

_NINE_TRIALS = "trials: 9\nsampler: random\ndirection: minimize\nparameters: {x: {low: 1, high: 1000000}}"
_TWO_PARAMETERS = """\
trials: {}
sampler: random
direction: minimize
parameters: {{x: {{low: 1, high: 999}}, kind: KINDS}}
"""
_HEAD = """\
template: {t: 'echo {x} {kind}'}
default: {kind: a}
search:
  metric: 'out.json:scores.0'
  seed: 1
"""


@pytest.fixture
def sweep(user_dir: Path) -> SweepFolder:
    """Return an empty folder of a sweep."""
    folder = SweepFolder(user_dir / "sweep")
    folder.path.mkdir()
    return folder


def _open_search(sweep: SweepFolder, text: str) -> OptunaSearch:
    return OptunaSearch(make_specification(text), sweep, load_started_tasks(sweep))


def _finish_task(sweep: SweepFolder, search: OptunaSearch, task: Task) -> None:
    """End a task with the squared distance of ``x`` from 3."""
    done = write_ended_task(sweep, task)
    score = (task.values["x"] - 3) ** 2
    result = sweep.task_folder(task.name).path / "out.json"
    result.write_text(json.dumps({"scores": [score]}), encoding="utf-8")
    search.record_outcome(done)


def _run_search(sweep: SweepFolder, text: str) -> list[Task]:
    """End each proposed task."""
    search = _open_search(sweep, text)
    while (task := search.propose_task()) is not None:
        _finish_task(sweep, search, task)
    return load_started_tasks(sweep)


def _write_search(rest: str) -> str:
    return _HEAD + "".join(f"  {line}\n" for line in rest.splitlines())


def test_search_runs_the_requested_trials_and_continues(sweep: SweepFolder) -> None:
    text = "trials: {}\ndirection: minimize\nparameters: {{x: {{low: 0.0, high: 10.0}}, kind: [a, b]}}"
    assert len(_run_search(sweep, _write_search(text.format(4)))) == 4
    rows = _run_search(sweep, _write_search(text.format(25)))
    assert sorted(row.trial for row in rows if row.trial is not None) == list(range(25))
    assert all(0 <= row.values["x"] <= 10 and row.values["kind"] in "ab" for row in rows)
    late = [abs(row.values["x"] - 3) for row in rows[-8:]]
    assert sum(late) / len(late) < 2.5  # random values give 2.9, and maximizing gives 7


def test_repeated_combination_is_not_run_again(sweep: SweepFolder) -> None:
    text = "trials: 12\nsampler: random\ndirection: minimize\nparameters: {x: {low: 1, high: 3}}"
    rows = _run_search(sweep, _write_search(text))
    assert sorted(row.values["x"] for row in rows) == [1, 2, 3]


def test_ranges_are_logarithmic_integer_or_stepped(sweep: SweepFolder) -> None:
    domain = "{x: {low: 1, high: 1000, log: true}, y: {low: 0.0, high: 1.0, step: 0.25}, z: {low: 1.0, high: 2}}"
    rows = _run_search(sweep, _write_search(f"trials: 10\nparameters: {domain}"))
    assert all(type(row.values["x"]) is int and row.values["y"] % 0.25 == 0 for row in rows)
    assert all(type(row.values["z"]) is float for row in rows)


def test_training_with_poor_results_is_pruned(sweep: SweepFolder) -> None:
    head = "template: {t: 'echo {x}'}\nsearch:\n  pruner: median\n  trials: 9\n"
    specification = f"{head}  parameters: {{x: {{low: 0.0, high: 1.0}}}}\n"
    search = _open_search(sweep, specification)

    def propose() -> Task:
        task = search.propose_task()
        assert task is not None
        return task

    def should_prune(task: Task, auroc: float) -> bool:
        metrics = {"auroc": auroc}
        return search.should_prune(task, {"kind": "val", "update": 10, "metrics": metrics})

    for _ in range(5):  # Optuna's median pruner waits for five trials
        task = propose()
        assert not should_prune(task, 0.7)
        write_finished_run(sweep.task_folder(task.name), 0.7)
        search.record_outcome(write_ended_task(sweep, task))
    good, bad = propose(), propose()
    assert not should_prune(good, 0.8)
    assert should_prune(bad, 0.6)
    search.record_outcome(write_ended_task(sweep, bad, "pruned"))
    assert _open_search(sweep, specification).list_unstarted_tasks() == [good]


@pytest.mark.parametrize("content", ["{}", "[1]", "nothing", '{"scores": []}', '{"scores": ["x"]}'])
def test_missing_result_is_none(user_dir: Path, content: str) -> None:
    task = SweepFolder(user_dir).task_folder("t")
    specification = Search({"x": [1]}, 1, "out.json:scores.0")
    assert read_objective_value(specification, task) is None
    task.path.mkdir()
    (task.path / "out.json").write_text(content, encoding="utf-8")
    assert read_objective_value(specification, task) is None


def _run_all_trials(folder: Path) -> list[str]:
    """Return the names of the tasks that a driver runs while others run, too."""
    sweep = SweepFolder(folder)
    search, names = _open_search(sweep, _write_search(_NINE_TRIALS)), []
    while (task := search.propose_task()) is not None:
        names.append(task.name)
        _finish_task(sweep, search, task)
    return names


def test_drivers_started_together_share_the_trials(sweep: SweepFolder) -> None:
    names = run_concurrently(_run_all_trials, sweep.path)
    assert len(names) == len(set(names)) == 9
    assert len({task.trial for task in load_started_tasks(sweep)}) == 9


def _record_outcomes(folder: Path) -> list[str]:
    """Record the ends of tasks while other drivers do so too, and return the names of the recorded tasks."""
    sweep = SweepFolder(folder)
    search, tasks = _open_search(sweep, _write_search(_NINE_TRIALS)), load_started_tasks(sweep)
    for task in tasks:
        wait_at_barrier()
        search.record_outcome(task)
    return [task.name for task in tasks]


def test_drivers_that_see_a_task_end_record_it_once(sweep: SweepFolder) -> None:
    search = _open_search(sweep, _write_search(_NINE_TRIALS))
    while (task := search.propose_task()) is not None:
        write_ended_task(sweep, task, "failed")
    assert len(run_concurrently(_record_outcomes, sweep.path)) == PROCESS_COUNT * 9
    assert _open_search(sweep, _write_search(_NINE_TRIALS)).list_unstarted_tasks() == []


def test_lost_study_is_an_error_before_trials_run_again(sweep: SweepFolder) -> None:
    specification = _write_search(
        "trials: 2\nsampler: random\ndirection: minimize\nparameters: {x: {low: 1, high: 1000}}"
    )
    lost = _run_search(sweep, specification)[0]
    for content in (b"damaged", b""):  # empty as SQLite creates it; Windows cannot remove an open file
        sweep.study.write_bytes(content)
        with pytest.raises(DataError, match=r"optuna\.sqlite") as caught:
            _open_search(sweep, specification)
        assert "-o" in str(caught.value.hint)
    specification = specification.replace("seed: 1", "seed: 2")
    search = OptunaSearch(make_specification(specification), sweep, [])  # a search without the trial's task
    search.record_outcome(lost)  # its trial number does not exist yet
    first = search.propose_task()
    assert first is not None and first.trial == lost.trial and first.key != lost.key
    search.record_outcome(lost)
    assert not search.should_prune(lost, {"kind": "val", "update": 1, "metrics": {"out.json:scores.0": 1}})
    assert _open_search(sweep, specification).list_unstarted_tasks() == [first]


def test_trials_of_a_dead_driver_are_run_or_recorded(sweep: SweepFolder) -> None:
    specification = _write_search(
        "trials: 3\nsampler: random\ndirection: minimize\nparameters: {x: {low: 1, high: 1000}}"
    )
    dead_driver = _open_search(sweep, specification)
    proposed = [dead_driver.propose_task() for _ in range(2)]
    first, second = (task for task in proposed if task is not None)
    write_ended_task(sweep, first)  # the driver died before it recorded that
    search = _open_search(sweep, specification)
    assert search.list_unstarted_tasks() == [second]
    _finish_task(sweep, search, second)
    third = search.propose_task()
    assert third is not None and third.trial == 2
    assert search.propose_task() is None
    assert _open_search(sweep, specification).list_unstarted_tasks() == [third]


@pytest.mark.parametrize("chosen", [(), ("x",), ("x", "kind")], ids=["nothing", "some", "a repetition"])
def test_trial_of_a_driver_killed_while_choosing_does_not_count(sweep: SweepFolder, chosen: tuple[str, ...]) -> None:
    text = _TWO_PARAMETERS.replace("KINDS", "[a, b]")
    earlier_tasks = _run_search(sweep, _write_search(text.format(2)))
    import optuna

    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{sweep.study.as_posix()}")
    for _ in range(3):  # trials of drivers that were killed while choosing values
        study.enqueue_trial(earlier_tasks[0].values)
        trial = study.ask()
        if "x" in chosen:
            trial.suggest_int("x", 1, 999)
        if "kind" in chosen:
            trial.suggest_categorical("kind", ["a", "b"])
    assert len(_run_search(sweep, _write_search(text.format(6)))) == 6


def test_trials_of_a_rejected_search_space_do_not_count(sweep: SweepFolder) -> None:
    assert len(_run_search(sweep, _write_search(_TWO_PARAMETERS.format(2).replace("KINDS", "[a, b]")))) == 2
    for _ in range(3):
        with pytest.raises(UsageError, match="CategoricalDistribution"):
            _open_search(sweep, _write_search(_TWO_PARAMETERS.format(6).replace("KINDS", "[a, b, c]"))).propose_task()
    assert len(_run_search(sweep, _write_search(_TWO_PARAMETERS.format(6).replace("KINDS", "[a, b]")))) == 6


@pytest.mark.parametrize("nonfinite", ["NaN", "Infinity"])
def test_nonfinite_values_are_not_recorded_in_the_study(sweep: SweepFolder, nonfinite: str) -> None:
    specification = _write_search(_TWO_PARAMETERS.format(5).replace("KINDS", "[a, b]"))
    search = _open_search(sweep, specification)
    while (task := search.propose_task()) is not None:  # the first three trials do not end the search
        result = sweep.task_folder(task.name).path / "out.json"
        done = write_ended_task(sweep, task)
        value = nonfinite if task.order < 3 else "1"
        result.write_text(f'{{"scores": [{value}]}}', encoding="utf-8")
        search.record_outcome(done)
    import optuna

    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{sweep.study.as_posix()}")
    assert [trial.value for trial in study.trials] == [None] * 3 + [1, 1]
    assert [trial.state.name for trial in study.trials] == ["FAIL"] * 3 + ["COMPLETE"] * 2
