"""What ``mmfw sweep`` shows and removes: what would run, how far it is, and what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import click

from mmf_win.commands import options
from mmf_win.commands.examples import Command
from mmf_win.commands.runs import remove_asked
from mmf_win.console import aligned, duration, print_csv, print_json, print_line, say, shell_line, size
from mmf_win.errors import UsageError
from mmf_win.runs import seeds
from mmf_win.runs.folder import task_id
from mmf_win.sweeps.folder import State, find_sweep, remove_sweep
from mmf_win.sweeps.planning import all_tasks
from mmf_win.sweeps.running import slots_here
from mmf_win.sweeps.starting import PlannedSweep
from mmf_win.sweeps.table import Line, flat, lines, position


@click.command(cls=Command)
@click.argument("sweep", required=False)
@click.option("--state", type=click.Choice(get_args(State)), help="Only tasks in this state.")
@options.runs_and_json
def status(sweep: str | None, state: str | None, save_dir: Path, as_json: bool) -> None:
    """Show how far the tasks of a sweep are.

    SWEEP is its folder, or its name in the save dir; the newest one there is the default.

    Examples:
      mmfw sweep status                         of the newest sweep
      mmfw sweep status mmbt_grid --state failed
    """
    folder = find_sweep(save_dir, sweep)
    found = all_tasks(folder)
    counts = Counter(task.state for task in found)
    shown = [(task, folder.task(task.name)) for task in found if state in (None, task.state)]
    told = [(task_id(of.path), task, position(of)) for task, of in shown]
    if as_json:
        listed = [{**asdict(task), **where, "run": run} for run, task, where in told]
        print_json({"sweep": folder.path, "states": counts, "tasks": listed})
        return
    say(f"{folder.path}: {tasks(len(found))}, {', '.join(f'{n} {name}' for name, n in counts.items())}")
    header = ("task", "state", "slot", "at", "updates", "loss", "best AUROC", "on", "left", "time", "why")
    table = [
        (
            *(run, task.state, task.slot, task.command),
            None if where["update"] is None else f"{where['update']}/{where['max_updates'] or '?'}",
            *(where["loss"], where["auroc"], where["on"]),
            duration(where["left"]) if where["left"] and task.state == "running" else None,
            duration(task.seconds) if task.seconds else None,
            task.message,
        )
        for run, task, where in told
    ]
    kept = [n for n, _ in enumerate(header) if n < 2 or any(line[n] is not None for line in table)]
    rows = [[line[n] for n in kept] for line in table]
    print(aligned([header[n] for n in kept], rows, optional=("slot", "time", "at")))


@click.command(cls=Command)
@click.argument("sweep", required=False)
@click.option(
    "--metric",
    metavar="NAME",
    help="The validation metric to rank by.  [default: what the sweep searches by, else auroc]",
)
@click.option(
    "--baseline",
    multiple=True,
    metavar="PARAMETER=VALUE",
    help="Compare the others with this combination, by a paired t-test over the seeds; may be repeated.",
)
@options.form(
    "tsv",
    "csv",
    meaning="How to print it; tsv and csv have means and deviations in columns of their own.",
)
@options.runs_and_json
def table(
    sweep: str | None, metric: str | None, baseline: Sequence[str], form: str, save_dir: Path, as_json: bool
) -> None:
    """Show the results of a sweep: each combination with the means of its metrics over the seeds.

    Only tasks that ended well count. The metrics are those of each run's best checkpoint, on the validation
    split and on the test splits that it has predicted. Nothing is ranked by a test split. SWEEP
    is as for `mmfw sweep status`.

    Examples:
      mmfw sweep table                          of the newest sweep, the best combination first
      mmfw sweep table mmbt_grid --baseline lr=1e-05 --baseline batch_size=32
      mmfw sweep table --metric accuracy --format csv > table.csv
    """
    folder = find_sweep(save_dir, sweep)
    found = lines(folder, metric=metric, baseline=baseline)
    if as_json:
        print_json([flat(line, compared=bool(baseline)) for line in found])
    elif found:
        print_lines(found, form, compared=bool(baseline))
    else:
        say(f"{folder.path}: no task has ended well so far")


def print_lines(found: Sequence[Line], form: str = "text", *, compared: bool = False) -> None:
    """Print the table of a sweep, of one line at least."""
    if form in ("csv", "tsv"):
        rows = [{**flat(line, compared=compared), "tasks": " ".join(line.tasks)} for line in found]
        names = list(dict.fromkeys(name for row in rows for name in row))
        print_csv(names, rows, "," if form == "csv" else "\t")
        return
    metrics = list(dict.fromkeys(name for line in found for name in line.metrics))
    header = [*found[0].parameters, "runs", "on", *metrics, *(("difference", "p") if compared else ())]
    cells = [_cells(line, metrics, compared=compared) for line in found]
    print(aligned([*header, "first task"], cells, optional=["first task"]))


def _cells(of: Line, metrics: Sequence[str], *, compared: bool) -> list[object]:
    parameters = [None if value is None else str(value) for value in of.parameters.values()]
    spreads = [_spread([*of.metrics.get(name, {}).values()], of.runs) for name in metrics]
    difference = None if of.difference is None else f"{of.difference:+.4f}"
    p = None if of.p is None else f"{of.p:.3g}"
    first = next(iter(of.tasks), None)
    return [*parameters, of.runs, of.validated_on, *spreads, *((difference, p) if compared else ()), first]


def _spread(values: Sequence[float], runs: int) -> str | None:
    mean, sd, count = seeds.spread(values)
    deviation = "" if sd is None else f" ± {sd:.4f}"
    fewer = f" (of {count})" if count < runs else ""
    return None if mean is None else f"{mean:.4f}{deviation}{fewer}"


@click.command(cls=Command)
@click.argument("sweep")
@click.option("--yes", is_flag=True, help="Do not ask.")
@options.runs_and_json
def rm(sweep: str, yes: bool, save_dir: Path, as_json: bool) -> None:
    """Remove a sweep with all its runs and their checkpoints, and free their space.

    SWEEP is its folder or its name. A sweep that is in use is not removed.

    Examples:
      mmfw sweep rm mmbt_grid
    """
    folder = find_sweep(save_dir, sweep)
    remove_asked({folder.path.name: folder.path}, lambda: remove_sweep(folder), yes, as_json)


def tasks(count: int) -> str:
    """A number of tasks, for people."""
    return f"{count} task{'' if count == 1 else 's'}"


def print_plan(sweep: PlannedSweep, as_json: bool) -> None:
    """Print what would run, and what it will take."""
    runner, trials, slots = sweep.runner, sweep.trials or 0, sweep.options.count
    with suppress(UsageError):  # it is shown on another machine
        slots = len(slots_here(sweep.resources, slots))
    slots = slots or len(sweep.resources or "x")
    if sweep.data_dir is not None:
        say(f"the data folder of its mmfw commands is {sweep.data_dir}")
    plans: list[dict[str, Any]] = []
    for task in sweep.tasks:
        left = [name for name in runner.template if name in task.left and task.state != "pruned"]
        words = {name: runner.words(task, name) for name in left}
        commands = {name: each[0] if runner.shell else shell_line(*each) for name, each in words.items()}
        plans.append({"task": task.name, "state": task.state, "commands": commands})
    left_over = sum(bool(entry["commands"]) for entry in plans)
    runs = left_over + trials
    seconds = space = None
    if (expected := sweep.cost) is not None:
        known, of_one, bytes_of_one = expected
        seconds, space = of_one * -(-runs // slots), bytes_of_one * runs
    if as_json:
        print_json(
            {"tasks": plans, "orphans": sweep.orphans, "slots": slots, "seconds": seconds, "bytes": space}
        )
        return
    for entry in plans:
        print_line(f"{entry['task']}  ({entry['state']})")
        for name, command in entry["commands"].items():
            print_line(f"  {name}: {command}")
    say(f"{tasks(len(plans))}, {left_over} of them to be run, {slots} at a time")
    if trials:
        say(f"and {trials} trials, whose values Optuna chooses one after the other")
    if seconds is None or space is None:
        say("how long they take is not known: nothing like them has run so far")
    else:
        say(f"about {duration(seconds)} and {size(space)}, by {known} that ended well before")
