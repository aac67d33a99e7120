"""Results of a sweep: metrics per combination, with means and standard deviations over seeds.

Also the progress of its tasks, and their expected cost.
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

_MAX_SIZED_TASKS = 20  # tasks whose disk usage is measured


@dataclass(frozen=True)
class ResultRow:
    """Results of one combination.

    Attributes:
        parameters: Parameters that differ within the sweep, without the seed.
        run_count: Number of tasks that succeeded or already have a score.
        task_ids: Names of the tasks with a trained run, as other commands take them.
        metrics: Metric → seed → value: the validation of the best checkpoint, and that checkpoint's AUROC on
            test sets (``test_seen_auroc``). The ranking metric comes first.
        validated_on: Validation split, with the number of rows if some are excluded; ``None`` if unknown.
        difference: Mean difference to the baseline's metric over common seeds.
        p_value: Two-sided p-value of a paired t-test of this difference; ``None`` if it cannot be computed.
    """

    parameters: dict[str, Any]
    run_count: int
    task_ids: tuple[str, ...] = ()
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    validated_on: str | None = None
    difference: float | None = None
    p_value: float | None = None


def build_table(folder: SweepFolder, *, metric: str | None = None, baseline: Sequence[str] = ()) -> list[ResultRow]:
    """Build the result table of a sweep.

    Args:
        folder: Folder of the sweep.
        metric: Ranking metric; ``None`` for the one that the sweep searches by, else the AUROC.
        baseline: ``PARAMETER=VALUE`` of the combination to compare the others with.

    Returns:
        One row per combination, the best first; rows without the metric come last.

    Raises:
        UsageError: The metric is that of a test set or does not exist, or not exactly one row matches
            ``baseline``.
    """
    specification = load_specification(folder)
    search = specification.search if specification is not None else None
    default_metric = search.metric if search is not None else "auroc"
    metric = metric or default_metric
    require_validation_metric(metric)
    done = [task for task in list_tasks(folder) if task.finished_commands and task.state in ("success", "queued")]
    differing = find_differing_parameters(done)
    items = ((task, json.dumps([task.values.get(name) for name in differing]), _seed_label(task)) for task in done)
    rows = [_build_row(folder, tasks, differing, metric, search) for tasks in seeds.group_by_config(items)]
    rows = [row for row in rows if row.run_count]
    metrics = {name for row in rows for name in row.metrics}
    if metrics and metric not in metrics:
        raise UsageError(f"no metric {metric}", hint=f"choose one of {', '.join(sorted(metrics))}")
    if baseline:
        rows = _compare_with_baseline(rows, metric, baseline)
    minimized = "loss" in metric or "entropy" in metric
    if search is not None and metric == default_metric:
        minimized = search.direction == "minimize"
    ranked = [row for row in rows if metric in row.metrics]
    ranked.sort(key=lambda row: statistics.mean(row.metrics[metric].values()), reverse=not minimized)
    return ranked + [row for row in rows if metric not in row.metrics]


def sweep_dataframe(sweep: str, *, metric: str | None = None, baseline: Sequence[str] = ()) -> pandas.DataFrame:
    """Return the result table of a sweep as a DataFrame.

    Args:
        sweep: Folder of the sweep.
        metric: Ranking metric; see :func:`build_table`.
        baseline: Combination to compare with; see :func:`build_table`.

    Returns:
        The parameters, ``runs``, and for each metric its mean (``<metric>``) and standard deviation
        (``<metric>_sd``).

    Raises:
        MmfEnvironmentError: pandas is not installed.
    """
    require_packages("pandas", extra="[notebook]")
    import pandas

    rows = build_table(SweepFolder(Path(sweep)), metric=metric, baseline=baseline)
    return pandas.DataFrame([flatten_row(row, with_comparison=bool(baseline)) for row in rows])


def flatten_row(row: ResultRow, *, with_comparison: bool = False) -> dict[str, Any]:
    """Return the values of a row by column name."""
    details = {"runs": row.run_count, "tasks": list(row.task_ids), "validated_on": row.validated_on}
    columns: dict[str, Any] = {**row.parameters, **details}
    for name, values in row.metrics.items():
        columns[name], columns[f"{name}_sd"], _ = seeds.mean_and_std([*values.values()])
    return columns | ({"difference": row.difference, "p": row.p_value} if with_comparison else {})


def find_differing_parameters(tasks: Sequence[Task]) -> list[str]:
    """Return the parameters that differ between tasks, except seeds and names beginning with ``_``."""

    def differs(name: str) -> bool:
        return len({json.dumps(task.values.get(name), default=str) for task in tasks}) > 1

    names = dict.fromkeys(name for task in tasks for name in task.values)
    return [n for n in names if n not in SEED_PARAMETERS and not n.startswith("_") and differs(n)]


def find_trained_runs(sweep: SweepFolder) -> dict[Run, dict[str, Any]]:
    """Find the newest run of each task that succeeded or was pruned.

    Args:
        sweep: Folder of the sweep.

    Returns:
        The differing parameters of each run.

    Raises:
        UsageError: The specification of the sweep is invalid.
    """
    tasks = [task for task in list_tasks(sweep) if task.state in ("success", "pruned")]
    differing = find_differing_parameters(tasks)
    task_by_run = {sweep.task_folder(task.name).newest_run(): task for task in tasks}
    return {run: {name: task.values.get(name) for name in differing} for run, task in task_by_run.items() if run}


def read_task_progress(folder: TaskFolder) -> dict[str, Any]:
    """Return the progress of a task's newest training.

    Returns:
        ``update`` and ``max_updates``, the last training ``loss``, the ``auroc`` of the best checkpoint, the
        split that it was measured ``on``, and the remaining time ``left`` in seconds. Values that are
        unknown are ``None``.
    """
    scores, events = load_task_scores(folder)
    last: Event = next((event for event in reversed(events) if event["kind"] == "train"), {})
    (update, total), speed = training_progress(events), last.get("updates_per_s")
    remaining_s = (total - update) / speed if update and total and speed else None
    split = scores.validated_on.split_label if scores.validated_on else None
    progress = {"update": update, "max_updates": total, "loss": last.get("loss")}
    return {**progress, "auroc": scores.best_auroc, "on": split, "left": remaining_s}


def estimate_cost(
    sweep: SweepFolder, tasks: Sequence[Task], preset: str | None, save_dir: Path
) -> tuple[int, float, float] | None:
    """Estimate the cost of one more task from finished ones.

    Args:
        sweep: Folder of the sweep.
        tasks: Tasks that have started.
        preset: Preset that the tasks train, if any; its runs are used if no task has succeeded.
        save_dir: Folder with the runs of the preset.

    Returns:
        Number of finished tasks or runs used, mean duration in seconds and mean size in bytes; ``None``
        without any.
    """
    done = [task for task in tasks if task.state == "success"]
    seconds = [task.seconds for task in done]
    sizes = [disk_usage(sweep.task_folder(task.name).path)[0] for task in done[:_MAX_SIZED_TASKS]]
    if not done and preset:
        runs = summarize_runs(save_dir, preset=preset, state="done")
        seconds, sizes = [run.seconds for run in runs], [run.size for run in runs]
    return (len(seconds), statistics.mean(seconds), statistics.mean(sizes)) if seconds else None


def best_checkpoint_metrics(scores: RunScores) -> dict[str, float]:
    """Return the metrics of a run's best checkpoint: its validation metrics, and its AUROC on test sets.

    If it is unknown which checkpoint predicted a test set, the metric's name says so.

    Args:
        scores: Scores of the run.

    Returns:
        The metrics by name.
    """
    metrics = {} if scores.validation is None else validation_metrics(scores.validation)
    suffix = " (unknown checkpoint)" if scores.scored_checkpoint == UNKNOWN else ""
    for split, test in sorted(scores.scored_by_split.items()):
        if is_test_split(split) and test.auroc is not None:
            metrics[f"{split}_auroc{suffix}"] = test.auroc
    return metrics


def validation_metrics(event: Event) -> dict[str, float]:
    """Return the numeric metrics of a validation."""
    return {name: float(v) for name, v in (event.get("metrics") or {}).items() if is_number(v)}


def read_objective_value(search: Search, folder: TaskFolder) -> float | None:
    """Return the value that a search optimizes, finite or not, or ``None`` if the task has none."""
    file, is_file, keys = search.metric.partition(".json:")
    if not is_file:
        return best_checkpoint_metrics(load_task_scores(folder)[0]).get(search.metric)
    with suppress(OSError, ValueError, LookupError, TypeError, OverflowError):
        value = json.loads((folder.path / f"{file}.json").read_text(encoding="utf-8"))
        for key in keys.split("."):
            value = value[int(key) if isinstance(value, list) else key]
        return float(value)
    return None


def load_task_scores(folder: TaskFolder) -> tuple[RunScores, Sequence[Event]]:
    """Return the scores and events of a task's newest run; empty if no run can be read."""
    with suppress(DataError, OSError):
        run = folder.newest_run()
        if run is not None:
            events = read_events(run.events)
            return read_scores(run, events), events
    return RunScores(), ()


def _seed_label(task: Task) -> str:
    return " ".join(str(task.values[name]) for name in SEED_PARAMETERS if name in task.values) or task.name


def _build_row(
    folder: SweepFolder, tasks: Sequence[Task], parameter_names: Sequence[str], metric: str, search: Search | None
) -> ResultRow:
    values: dict[str, dict[str, float]] = defaultdict(dict)
    validated_on: set[str] = set()
    runs, trained = 0, []
    for task in tasks:
        task_folder = folder.task_folder(task.name)
        scores, _ = load_task_scores(task_folder)
        metrics_of_task = best_checkpoint_metrics(scores)
        if scores.validated_on is not None:
            validated_on.add(scores.validated_on.split_label)
        if search is not None and search.metric not in metrics_of_task:
            value = read_objective_value(search, task_folder)
            metrics_of_task |= {} if value is None or not math.isfinite(value) else {search.metric: value}
        runs += bool(metrics_of_task) or task.state == "success"
        if scores.validation is not None:
            trained.append(task_id(task_folder.path))
        for name, value in metrics_of_task.items():
            values[name][_seed_label(task)] = value
    metrics = {name: values[name] for name in sorted(values, key=lambda name: (name != metric, name))}
    parameters = {name: tasks[0].values.get(name) for name in parameter_names}
    return ResultRow(parameters, runs, tuple(trained), metrics, ", ".join(sorted(validated_on)) or None)


def _compare_with_baseline(rows: Sequence[ResultRow], metric: str, baseline: Sequence[str]) -> list[ResultRow]:
    if invalid := [word for word in baseline if "=" not in word]:
        raise UsageError(f"invalid --baseline {invalid[0]!r}: expected PARAMETER=VALUE")
    parameters = dict(word.split("=", 1) for word in baseline)
    expected = {name: str(parse_number_or_text(value)) for name, value in parameters.items()}
    matches = [row for row in rows if all(str(row.parameters.get(k)) == v for k, v in expected.items())]
    if len(matches) != 1 or len(parameters) != len(baseline):
        examples = "; ".join(" ".join(f"{k}={v}" for k, v in row.parameters.items()) for row in rows[:5])
        message = f"{' '.join(baseline)} matches {len(matches)} combinations instead of one"
        raise UsageError(message, hint=f"choose one of {examples}")
    return [row if row is matches[0] else _compare_rows(row, matches[0], metric) for row in rows]


def _compare_rows(row: ResultRow, baseline_row: ResultRow, metric: str) -> ResultRow:
    values, baseline_values = (compared.metrics.get(metric, {}) for compared in (row, baseline_row))
    differences = [values[seed] - baseline_values[seed] for seed in values if seed in baseline_values]
    if not differences:
        return row
    p = None
    if len(set(differences)) > 1:  # the test needs at least two values and some variance
        require_packages("scipy", extra="[report]")
        from scipy.stats import ttest_1samp

        p = float(ttest_1samp(differences, 0.0).pvalue)
    return replace(row, difference=statistics.mean(differences), p_value=p)
