"""What came of a sweep: one line a combination, with means and standard deviations over its seeds.

Also how far its tasks are, and what one takes.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmf_win.errors import DataError, UsageError
from mmf_win.files import disk_usage
from mmf_win.protocol import Event, read_events
from mmf_win.protocol.metrics import is_number
from mmf_win.runs import seeds
from mmf_win.runs.folder import Run, task_id
from mmf_win.runs.history import summarize_runs, training_progress
from mmf_win.runs.scores import UNKNOWN, RunScores, is_test_split, read_scores
from mmf_win.sweeps.folder import SweepFolder, Task, TaskFolder, load_specification
from mmf_win.sweeps.grid import SEED_PARAMETERS, parse_number_or_text
from mmf_win.sweeps.planning import list_tasks
from mmf_win.sweeps.specification import Search, require_validation_metric
from mmf_win.upstream.install import require_packages

if TYPE_CHECKING:
    import pandas

_MAX_SIZED_TASKS = 20  # tasks whose files are counted


@dataclass(frozen=True)
class ResultRow:
    """One combination.

    Attributes:
        parameters: those that differ within the sweep, but for the seed.
        runs: how many of its tasks ended well, or have a score so far.
        tasks: those of them that have trained, as other commands know their runs.
        metrics: name → seed → value; of the validation of the best checkpoint, and what that checkpoint
            reached on test sets, ``test_seen_auroc`` of ``test_seen``. What the combinations are ranked by
            comes first.
        validated_on: the validation split, and how many of its rows where some are left out; None where that
            is not known.
        difference: of the mean metric from the baseline's, over the seeds that both have.
        p: two-sided p-value of a paired t-test of that; None with fewer than two seeds in common.
    """

    parameters: dict[str, Any]
    run_count: int
    task_ids: tuple[str, ...] = ()
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    validated_on: str | None = None
    difference: float | None = None
    p_value: float | None = None


def build_table(
    folder: SweepFolder, *, metric: str | None = None, baseline: Sequence[str] = ()
) -> list[ResultRow]:
    """The combinations of a sweep, the best first; those without the metric come last.

    Args:
        metric: what they are ranked by; None for what the sweep searches by, else the AUROC.
        baseline: ``PARAMETER=VALUE`` of the one to compare the others with.

    Raises UsageError where the metric is one of a test set, or not there, or ``baseline`` names not one line.
    """
    asked = load_specification(folder)
    search = asked.search if asked is not None else None
    searched = search.metric if search is not None else "auroc"
    metric = metric or searched
    require_validation_metric(metric)
    done = [task for task in list_tasks(folder) if task.finished and task.state in ("success", "queued")]
    differing = differing_parameters(done)
    shown = (
        (task, json.dumps([task.values.get(name) for name in differing]), _seed_label(task)) for task in done
    )
    found = [_build_row(folder, tasks, differing, metric, search) for tasks in seeds.group_by_config(shown)]
    found = [line for line in found if line.run_count]
    known = {name for line in found for name in line.metrics}
    if known and metric not in known:
        raise UsageError(f"there is no metric {metric}", hint=f"there are {', '.join(sorted(known))}")
    if baseline:
        found = _compare_with_baseline(found, metric, baseline)
    minimized = "loss" in metric or "entropy" in metric
    if search is not None and metric == searched:
        minimized = search.direction == "minimize"
    with_it = [line for line in found if metric in line.metrics]
    with_it.sort(key=lambda line: statistics.mean(line.metrics[metric].values()), reverse=not minimized)
    return with_it + [line for line in found if metric not in line.metrics]


def sweep_dataframe(
    sweep: str, *, metric: str | None = None, baseline: Sequence[str] = ()
) -> pandas.DataFrame:
    """The same as a table: the parameters, ``runs``, and of each metric the mean and ``<metric>_sd``.

    Args:
        sweep: its folder.
        metric, baseline: as for :func:`build_table`.

    Raises:
        MmfError: pandas is not installed.
    """
    require_packages("pandas", extra="[notebook]")
    import pandas

    found = build_table(SweepFolder(Path(sweep)), metric=metric, baseline=baseline)
    return pandas.DataFrame([flatten_row(line, with_comparison=bool(baseline)) for line in found])


def flatten_row(row: ResultRow, *, with_comparison: bool = False) -> dict[str, Any]:
    """A line's values by the names of columns."""
    told = {"runs": row.run_count, "tasks": list(row.task_ids), "validated_on": row.validated_on}
    columns: dict[str, Any] = {**row.parameters, **told}
    for name, values in row.metrics.items():
        columns[name], columns[f"{name}_sd"], _ = seeds.mean_and_std([*values.values()])
    return columns | ({"difference": row.difference, "p": row.p_value} if with_comparison else {})


def differing_parameters(tasks: Sequence[Task]) -> list[str]:
    """The parameters that not all tasks have alike, but for seeds and those that begin with ``_``."""

    def differs(name: str) -> bool:
        return len({json.dumps(task.values.get(name), default=str) for task in tasks}) > 1

    names = dict.fromkeys(name for task in tasks for name in task.values)
    return [n for n in names if n not in SEED_PARAMETERS and not n.startswith("_") and differs(n)]


def trained_runs(sweep: SweepFolder) -> dict[Run, dict[str, Any]]:
    """The newest run of each task that ended well or was pruned, with the parameters that differ.

    Raises UsageError where the sweep's specification is invalid.
    """
    tasks = [task for task in list_tasks(sweep) if task.state in ("success", "pruned")]
    differing = differing_parameters(tasks)
    found = {sweep.task_folder(task.name).newest_run(): task for task in tasks}
    return {run: {name: of.values.get(name) for name in differing} for run, of in found.items() if run}


def task_progress(folder: TaskFolder) -> dict[str, Any]:
    """How far a task's newest training is; what is not known is None.

    ``auroc`` is that of the best checkpoint, measured ``on`` a split, and ``left`` is in seconds.
    """
    scores, events = load_task_scores(folder)
    last: Event = next((event for event in reversed(events) if event["kind"] == "train"), {})
    (update, total), speed = training_progress(events), last.get("updates_per_s")
    left = (total - update) / speed if update and total and speed else None
    on = scores.validated_on
    known = {"update": update, "max_updates": total, "loss": last.get("loss")}
    return {**known, "auroc": scores.best_auroc, "on": on.split_label if on else None, "left": left}


def estimate_cost(
    sweep: SweepFolder, tasks: Sequence[Task], preset: str | None, save_dir: Path
) -> tuple[int, float, float] | None:
    """What one more task will take: by how many known ones, and the means of their seconds and bytes.

    They are those of the sweep that ended well, else runs of the preset; None where there is neither.
    """
    done = [task for task in tasks if task.state == "success"]
    seconds = [task.seconds for task in done]
    sizes = [disk_usage(sweep.task_folder(task.name).path)[0] for task in done[:_MAX_SIZED_TASKS]]
    if not done and preset:
        runs = summarize_runs(save_dir, preset=preset, state="done")
        seconds, sizes = [run.seconds for run in runs], [run.size for run in runs]
    return (len(seconds), statistics.mean(seconds), statistics.mean(sizes)) if seconds else None


def best_checkpoint_metrics(scores: RunScores) -> dict[str, float]:
    """The metrics of a run's best checkpoint: of the validation, and the AUROC of each test set.

    Where no record tells which checkpoint predicted a test set, the metric's name does.
    """
    found = {} if scores.validation is None else validation_metrics(scores.validation)
    by = " (unknown checkpoint)" if scores.scored_checkpoint == UNKNOWN else ""
    for split, test in sorted(scores.scored_by_split.items()):
        if is_test_split(split) and test.auroc is not None:
            found[f"{split}_auroc{by}"] = test.auroc
    return found


def validation_metrics(event: Event) -> dict[str, float]:
    """The metrics of a validation that are numbers."""
    return {name: float(v) for name, v in (event.get("metrics") or {}).items() if is_number(v)}


def objective_value(search: Search, folder: TaskFolder) -> float | None:
    """Return what a search maximizes or minimizes, of a task that ended, finite or not; None for none."""
    file, found, keys = search.metric.partition(".json:")
    if not found:
        return best_checkpoint_metrics(load_task_scores(folder)[0]).get(search.metric)
    with suppress(OSError, ValueError, LookupError, TypeError, OverflowError):
        value = json.loads((folder.path / f"{file}.json").read_text(encoding="utf-8"))
        for key in keys.split("."):
            value = value[int(key) if isinstance(value, list) else key]
        return float(value)
    return None


def load_task_scores(folder: TaskFolder) -> tuple[RunScores, Sequence[Event]]:
    """The scores and events of a task's newest run; none where there is none that can be read."""
    with suppress(DataError, OSError):
        run = folder.newest_run()
        if run is not None:
            events = read_events(run.events)
            return read_scores(run, events), events
    return RunScores(), ()


def _seed_label(task: Task) -> str:
    return " ".join(str(task.values[name]) for name in SEED_PARAMETERS if name in task.values) or task.name


def _build_row(
    folder: SweepFolder,
    tasks: Sequence[Task],
    parameter_names: Sequence[str],
    metric: str,
    search: Search | None,
) -> ResultRow:
    values: dict[str, dict[str, float]] = defaultdict(dict)
    validated_on: set[str] = set()
    runs, trained = 0, []
    for task in tasks:
        of_task = folder.task_folder(task.name)
        scores, _ = load_task_scores(of_task)
        found = best_checkpoint_metrics(scores)
        if scores.validated_on is not None:
            validated_on.add(scores.validated_on.split_label)
        if search is not None and search.metric not in found:
            value = objective_value(search, of_task)
            found |= {} if value is None or not math.isfinite(value) else {search.metric: value}
        runs += bool(found) or task.state == "success"
        if scores.validation is not None:
            trained.append(task_id(of_task.path))
        for name, value in found.items():
            values[name][_seed_label(task)] = value
    metrics = {name: values[name] for name in sorted(values, key=lambda name: (name != metric, name))}
    parameters = {name: tasks[0].values.get(name) for name in parameter_names}
    return ResultRow(parameters, runs, tuple(trained), metrics, ", ".join(sorted(validated_on)) or None)


def _compare_with_baseline(
    rows: Sequence[ResultRow], metric: str, baseline: Sequence[str]
) -> list[ResultRow]:
    if wrong := [word for word in baseline if "=" not in word]:
        raise UsageError(f"--baseline takes PARAMETER=VALUE, and {wrong[0]!r} is not")
    asked = dict(word.split("=", 1) for word in baseline)
    wanted = {name: str(parse_number_or_text(value)) for name, value in asked.items()}
    fit = [line for line in rows if all(str(line.parameters.get(k)) == v for k, v in wanted.items())]
    if len(fit) != 1 or len(asked) != len(baseline):
        there = "; ".join(" ".join(f"{k}={v}" for k, v in line.parameters.items()) for line in rows[:5])
        message = f"{' '.join(baseline)} matches {len(fit)} combinations, and must match one"
        raise UsageError(message, hint=f"there are {there}")
    return [line if line is fit[0] else _compare_rows(line, fit[0], metric) for line in rows]


def _compare_rows(row: ResultRow, baseline_row: ResultRow, metric: str) -> ResultRow:
    ours, theirs = (one.metrics.get(metric, {}) for one in (row, baseline_row))
    differences = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    if not differences:
        return row
    p = None
    if len(set(differences)) > 1:  # else there is nothing to tell it from
        require_packages("scipy", extra="[report]")
        from scipy.stats import ttest_1samp

        p = float(ttest_1samp(differences, 0.0).pvalue)
    return replace(row, difference=statistics.mean(differences), p_value=p)
