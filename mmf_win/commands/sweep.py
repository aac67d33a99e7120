"""``mmfw sweep``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import click
from click.core import ParameterSource

from mmf_win.commands import options
from mmf_win.commands.help_examples import Group
from mmf_win.commands.runs import confirm_and_remove
from mmf_win.commands.sweep_display import SweepDisplay
from mmf_win.commands.track import enabled_trackers, tracking_options
from mmf_win.commands.train import resume_argv
from mmf_win.console import (
    format_command,
    format_duration,
    format_size,
    format_table,
    print_csv,
    print_json,
    print_result,
    print_status,
)
from mmf_win.errors import StoppedByUserError, TrainingError, UsageError
from mmf_win.runs import seeds
from mmf_win.runs.folder import task_id
from mmf_win.sweeps.folder import TaskState, find_sweep, remove_sweep
from mmf_win.sweeps.launch import PlannedSweep, SweepOptions, plan_sweep, run_sweep
from mmf_win.sweeps.planning import list_tasks
from mmf_win.sweeps.table import ResultRow, build_table, flatten_row, task_progress
from mmf_win.sweeps.task_runner import local_slots
from mmf_win.tracking.tracker import require_no_env_run_id
from mmf_win.tracking.upload import UploadOptions

_MAX_SEEDS = 10_000
_SEED_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def _parse_seeds(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[int, ...]:
    """Numbers and ranges of them, such as ``1-3,7``."""
    seeds: list[int] = []
    for part in [] if value is None else value.split(","):
        found = _SEED_RANGE.fullmatch(part.strip())
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if not first <= last < 2**32 or last - first >= _MAX_SEEDS:
            raise click.BadParameter(f"{value} is no list of seeds, such as 1-5 or 1,2,7")
        seeds += range(first, last + 1)
    return tuple(dict.fromkeys(seeds))


@click.group(cls=Group)
def command() -> None:
    """Run many experiments: grids, seeds and searches, one process per GPU.

    Examples:
      mmfw sweep run mmbt_grid --seeds 1-5 optimizer.params.lr=1e-5,5e-5
      mmfw sweep run params.yaml --dry-run
      mmfw sweep status
      mmfw sweep table --baseline lr=1e-05
    """


@command.command()
@options.positional_arguments("PRESET|FILE|SWEEP [KEY=VALUE,VALUE ...]", "PRESET")
@click.option("--seeds", callback=_parse_seeds, metavar="N-M", help="Seeds, for each combination.")
@options.number("--updates", help_text="The total of each training of a preset.")
@options.number(
    "--slots",
    "count",
    help_text="How many tasks run at a time; they share the GPUs in turn.  [default: one per GPU]",
)
@click.option(
    "-r",
    "--resource",
    "resources",
    multiple=True,
    metavar="GPUS",
    help="The GPUs of a slot: one, several as 0,1, or cpu; once per slot.  [default: the file's or each GPU]",
)
@click.option(
    "--on",
    "cluster",
    type=click.Choice(["ray"]),
    help="Run the tasks on the Ray cluster that this machine is part of.  [default: here]",
)
@click.option("-t", "--title", metavar="TITLE", help="Only the choices with this _title.")
@click.option(
    "-c", "--command", "commands", multiple=True, metavar="NAME", help="Only this command of a task."
)
@click.option("-f", "--force", is_flag=True, help="Run again, from the beginning, what ended well.")
@click.option("--failed", is_flag=True, help="Only the tasks that failed.")
@options.number("--sample", help_text="Only N combinations of each choice, drawn at random.")
@click.option("--dry-run", is_flag=True, help="Show the tasks with expected time and disk; run nothing.")
@click.option("-d", "--debug", is_flag=True, help="Run the first task alone, and show what it prints.")
@options.output("The sweep's folder.  [default: sweeps/NAME in the save dir]")
@tracking_options
@options.stop_timeout
@options.data_dir
@options.save_dir_and_json
@options.collect_options(sweep_options=SweepOptions)
def run(
    sweep_options: SweepOptions, trackers: tuple[str, ...], upload_options: UploadOptions, as_json: bool
) -> None:
    """Run a sweep, or what is left of one.

    A PRESET is trained with every combination of the values and seeds. A FILE says which commands to run, and
    with which values (docs/sweeps.md). Each task has a folder that its parameters name. What ended well is
    not run again, and a training that was stopped is resumed. Ctrl+C lets the running tasks save and exit.

    Examples:
      mmfw sweep run mmbt_grid --seeds 1-5      five seeds, one process per GPU
      mmfw sweep run mmbt_grid --seeds 1-3 optimizer.params.lr=1e-5,5e-5 training.batch_size=16,32
      mmfw sweep run demo --slots 2 --dry-run optimizer.params.lr=1e-4,7e-4
      mmfw sweep run params.yaml                what a file says; mlrunner's files work, too
      mmfw sweep run params.yaml -t norm -c test -r 0,1 -r 2,3
      mmfw sweep run save/sweeps/mmbt_grid      what is left of an earlier sweep
      mmfw sweep run save/sweeps/mmbt_grid --failed
    """
    if not any(sweep_options.words[:1]):
        raise UsageError("name a preset, a file or a sweep", hint="`mmfw sweep run --help` has examples")
    require_no_env_run_id(enabled_trackers(trackers, upload_options))
    named = click.get_current_context().get_parameter_source("trackers") is ParameterSource.COMMANDLINE
    track = [word for name in trackers if named for word in ("--track", name)]  # MMFW_TRACK they inherit
    sweep = plan_sweep(
        replace(sweep_options, track_arguments=[*track, *upload_options.arguments]), resume_argv
    )
    if sweep_options.dry_run:
        _print_plan(sweep, as_json)
    else:
        stopped = run_sweep(sweep, SweepDisplay)
        _print_outcome(sweep, stopped=stopped, as_json=as_json)


def _print_outcome(sweep: PlannedSweep, *, stopped: bool, as_json: bool) -> None:
    """Print the table, and end with an error where not all went well."""
    folder, found, again = sweep.folder, sweep.tasks, format_command(*sweep.resume_argv)
    # Others of its commands may be left.
    done = (
        task.state == "queued" and not {*task.remaining_commands} & {*sweep.runner.template} for task in found
    )
    states = Counter("success" if over else task.state for task, over in zip(found, done, strict=True))
    table_of = build_table(folder) if as_json or states["success"] else []
    if as_json:
        print_json(
            {"sweep": folder.path, "states": states, "table": [flatten_row(line) for line in table_of]}
        )
    elif table_of:
        _print_table(table_of)
    told = ", ".join(f"{count} {state}" for state, count in states.items()) or "nothing to run"
    if stopped:
        raise StoppedByUserError(
            f"stopped: {told}", hint=f"go on with: {again}" if states["queued"] else None
        )
    print_status(f"{_format_task_count(len(found))} in {folder.path}: {told}")
    if failed := states["failed"]:
        show = format_command("mmfw", "sweep", "status", folder.path, "--state", "failed")
        hint = f"`{show}` shows why; `{again} --failed` runs them again"
        raise TrainingError(f"{failed} of {_format_task_count(len(found))} failed", hint=hint)


def _print_plan(sweep: PlannedSweep, as_json: bool) -> None:
    """Print what would run, and what it will take."""
    runner, trials, slots = sweep.runner, sweep.remaining_trials or 0, sweep.options.count
    with suppress(UsageError):  # it is shown on another machine
        slots = len(local_slots(sweep.resources, slots))
    slots = slots or len(sweep.resources or "x")
    if sweep.data_dir is not None:
        print_status(f"the data folder of its mmfw commands is {sweep.data_dir}")
    plans: list[dict[str, Any]] = []
    for task in sweep.tasks:
        left = [
            name for name in runner.template if name in task.remaining_commands and task.state != "pruned"
        ]
        words = {name: runner.build_command(task, name) for name in left}
        commands = {name: each[0] if runner.shell else format_command(*each) for name, each in words.items()}
        plans.append({"task": task.name, "state": task.state, "commands": commands})
    left_over = sum(bool(entry["commands"]) for entry in plans)
    runs = left_over + trials
    seconds = space = None
    if (expected := sweep.expected_cost) is not None:
        known, of_one, bytes_of_one = expected
        seconds, space = of_one * -(-runs // slots), bytes_of_one * runs
    if as_json:
        print_json(
            {
                "tasks": plans,
                "orphans": sweep.unused_parameters,
                "slots": slots,
                "seconds": seconds,
                "bytes": space,
            }
        )
        return
    for entry in plans:
        print_result(f"{entry['task']}  ({entry['state']})")
        for name, command in entry["commands"].items():
            print_result(f"  {name}: {command}")
    print_status(f"{_format_task_count(len(plans))}, {left_over} of them to be run, {slots} at a time")
    if trials:
        print_status(f"and {trials} trials, whose values Optuna chooses one after the other")
    if seconds is None or space is None:
        print_status("how long they take is not known: nothing like them has run so far")
    else:
        print_status(
            f"about {format_duration(seconds)} and {format_size(space)}, by {known} that ended well before"
        )


@command.command()
@click.argument("sweep", required=False)
@click.option("--state", type=click.Choice(get_args(TaskState)), help="Only tasks in this state.")
@options.save_dir_and_json
def status(sweep: str | None, state: str | None, save_dir: Path, as_json: bool) -> None:
    """Show how far the tasks of a sweep are.

    SWEEP is its folder, or its name in the save dir; the newest one there is the default.

    Examples:
      mmfw sweep status                         of the newest sweep
      mmfw sweep status mmbt_grid --state failed
    """
    folder = find_sweep(save_dir, sweep)
    found = list_tasks(folder)
    counts = Counter(task.state for task in found)
    shown = [(task, folder.task_folder(task.name)) for task in found if state in (None, task.state)]
    told = [(task_id(of.path), task, task_progress(of)) for task, of in shown]
    if as_json:
        listed = [{**asdict(task), **where, "run": run} for run, task, where in told]
        print_json({"sweep": folder.path, "states": counts, "tasks": listed})
        return
    by_state = ", ".join(f"{n} {name}" for name, n in counts.items())
    print_status(f"{folder.path}: {_format_task_count(len(found))}, {by_state}")
    header = ("task", "state", "slot", "at", "updates", "loss", "best AUROC", "on", "left", "time", "why")
    table = [
        (
            *(run, task.state, task.slot, task.command),
            None if where["update"] is None else f"{where['update']}/{where['max_updates'] or '?'}",
            *(where["loss"], where["auroc"], where["on"]),
            format_duration(where["left"]) if where["left"] and task.state == "running" else None,
            format_duration(task.seconds) if task.seconds else None,
            task.message,
        )
        for run, task, where in told
    ]
    kept = [n for n, _ in enumerate(header) if n < 2 or any(line[n] is not None for line in table)]
    rows = [[line[n] for n in kept] for line in table]
    print(format_table([header[n] for n in kept], rows, optional=("slot", "time", "at")))


@command.command()
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
@options.output_format(
    "tsv", "csv", help_text="How to print it; tsv and csv have means and deviations in columns of their own."
)
@options.save_dir_and_json
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
    found = build_table(folder, metric=metric, baseline=baseline)
    if as_json:
        print_json([flatten_row(line, with_comparison=bool(baseline)) for line in found])
    elif found:
        _print_table(found, form, with_comparison=bool(baseline))
    else:
        print_status(f"{folder.path}: no task has ended well so far")


def _print_table(
    table_rows: Sequence[ResultRow], table_format: str = "text", *, with_comparison: bool = False
) -> None:
    """Print the table of a sweep, of one line at least."""
    if table_format in ("csv", "tsv"):
        rows = [
            {**flatten_row(line, with_comparison=with_comparison), "tasks": " ".join(line.task_ids)}
            for line in table_rows
        ]
        names = list(dict.fromkeys(name for row in rows for name in row))
        print_csv(names, rows, "," if table_format == "csv" else "\t")
        return
    metrics = list(dict.fromkeys(name for line in table_rows for name in line.metrics))
    header = [
        *table_rows[0].parameters,
        "runs",
        "on",
        *metrics,
        *(("difference", "p") if with_comparison else ()),
    ]
    cells = [_table_cells(line, metrics, with_comparison=with_comparison) for line in table_rows]
    print(format_table([*header, "first task"], cells, optional=["first task"]))


def _table_cells(row: ResultRow, metrics: Sequence[str], *, with_comparison: bool) -> list[object]:
    parameters = [None if value is None else str(value) for value in row.parameters.values()]
    spreads = [_format_mean([*row.metrics.get(name, {}).values()], row.run_count) for name in metrics]
    difference = None if row.difference is None else f"{row.difference:+.4f}"
    p = None if row.p_value is None else f"{row.p_value:.3g}"
    first = next(iter(row.task_ids), None)
    return [
        *parameters,
        row.run_count,
        row.validated_on,
        *spreads,
        *((difference, p) if with_comparison else ()),
        first,
    ]


def _format_mean(values: Sequence[float], run_count: int) -> str | None:
    mean, sd, count = seeds.mean_and_std(values)
    deviation = "" if sd is None else f" ± {sd:.4f}"
    fewer = f" (of {count})" if count < run_count else ""
    return None if mean is None else f"{mean:.4f}{deviation}{fewer}"


@command.command()
@click.argument("sweep")
@click.option("--yes", is_flag=True, help="Do not ask.")
@options.save_dir_and_json
def rm(sweep: str, yes: bool, save_dir: Path, as_json: bool) -> None:
    """Remove a sweep with all its runs and their checkpoints, and free their space.

    SWEEP is its folder or its name. A sweep that is in use is not removed.

    Examples:
      mmfw sweep rm mmbt_grid
    """
    folder = find_sweep(save_dir, sweep)
    confirm_and_remove({folder.path.name: folder.path}, lambda: remove_sweep(folder), yes, as_json)


def _format_task_count(count: int) -> str:
    """A number of tasks, for people."""
    return f"{count} task{'' if count == 1 else 's'}"
