"""``mmfw sweep``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import click
from click.core import ParameterSource

from mmf_win.commands import options
from mmf_win.commands.help_examples import Group
from mmf_win.commands.runs import confirm_and_remove
from mmf_win.commands.sweep_display import SweepDisplay
from mmf_win.commands.track import select_enabled_trackers, tracking_options
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
from mmf_win.records import to_stored
from mmf_win.runs import seeds
from mmf_win.runs.folder import task_id
from mmf_win.sweeps.folder import TaskState, find_sweep, remove_sweep
from mmf_win.sweeps.launch import PlannedSweep, SweepOptions, plan_sweep, run_sweep
from mmf_win.sweeps.planning import list_tasks
from mmf_win.sweeps.table import ResultRow, build_table, flatten_row, read_task_progress
from mmf_win.sweeps.task_runner import create_local_slots
from mmf_win.tracking.tracker import require_no_env_run_id
from mmf_win.tracking.upload import UploadOptions

_MAX_SEEDS = 10_000
_SEED_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def _parse_seeds(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[int, ...]:
    """Return the seeds of numbers and ranges such as ``1-3,7``.

    Raises:
        click.BadParameter: The value is something else.
    """
    seeds: list[int] = []
    for part in [] if value is None else value.split(","):
        match = _SEED_RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < 2**32 or last - first >= _MAX_SEEDS:
            raise click.BadParameter(f"{value} is not a list of seeds such as 1-5 or 1,2,7")
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
@click.option("--seeds", callback=_parse_seeds, metavar="N-M", help="Seeds for each combination.")
@options.number("--updates", help_text="Total updates of each run of a preset.")
@options.number(
    "--slots", "count", help_text="Tasks that run at the same time; they get the GPUs in turn.  [default: one per GPU]"
)
@click.option(
    "-r",
    "--resource",
    "resources",
    multiple=True,
    metavar="GPUS",
    help="GPUs of a slot: one, several as 0,1, or cpu; once per slot.  [default: the file's, or each GPU]",
)
@click.option(
    "--on",
    "cluster",
    type=click.Choice(["ray"]),
    help="Run the tasks on the Ray cluster that this machine is part of.  [default: on this machine]",
)
@click.option("-t", "--title", metavar="TITLE", help="Only the choices with this _title.")
@click.option("-c", "--command", "commands", multiple=True, metavar="NAME", help="Only this command of each task.")
@click.option("-f", "--force", is_flag=True, help="Run finished tasks again, from the beginning.")
@click.option("--failed", is_flag=True, help="Only the tasks that failed.")
@options.number("--sample", help_text="Only N random combinations of each choice.")
@click.option("--dry-run", is_flag=True, help="Show the tasks and their expected cost; run nothing.")
@click.option("-d", "--debug", is_flag=True, help="Run only the first task, and show its output.")
@options.output("Folder of the sweep.  [default: sweeps/NAME in the save dir]")
@tracking_options
@options.stop_timeout
@options.data_dir
@options.save_dir_and_json
@options.collect_options(sweep_options=SweepOptions)
def run(sweep_options: SweepOptions, trackers: tuple[str, ...], upload_options: UploadOptions, as_json: bool) -> None:
    """Run a sweep, or the remaining tasks of one.

    A PRESET is trained with every combination of the values and seeds. A FILE defines the commands and their
    values (docs/sweeps.md). Each task has a folder that is named after its parameters. Finished tasks are not
    run again, and interrupted trainings are resumed. After Ctrl+C, the running tasks save and exit.

    Examples:
      mmfw sweep run mmbt_grid --seeds 1-5      five seeds, one process per GPU
      mmfw sweep run mmbt_grid --seeds 1-3 optimizer.params.lr=1e-5,5e-5 training.batch_size=16,32
      mmfw sweep run demo --slots 2 --dry-run optimizer.params.lr=1e-4,7e-4
      mmfw sweep run params.yaml                the tasks of a file; mlrunner's files work, too
      mmfw sweep run params.yaml -t norm -c test -r 0,1 -r 2,3
      mmfw sweep run save/sweeps/mmbt_grid      the remaining tasks of an earlier sweep
      mmfw sweep run save/sweeps/mmbt_grid --failed

    Raises:
        UsageError: No preset, file or sweep is given.
    """
    if not any(sweep_options.arguments[:1]):
        raise UsageError("missing PRESET, FILE or SWEEP", hint="see the examples of `mmfw sweep run --help`")
    require_no_env_run_id(select_enabled_trackers(trackers, upload_options))
    explicit = click.get_current_context().get_parameter_source("trackers") is ParameterSource.COMMANDLINE
    arguments = [item for name in trackers if explicit for item in ("--track", name)]  # tasks inherit MMFW_TRACK
    sweep = plan_sweep(replace(sweep_options, track_arguments=[*arguments, *upload_options.arguments]), resume_argv)
    if sweep_options.dry_run:
        _print_plan(sweep, as_json)
    else:
        stopped = run_sweep(sweep, SweepDisplay)
        _print_outcome(sweep, stopped=stopped, as_json=as_json)


def _print_outcome(sweep: PlannedSweep, *, stopped: bool, as_json: bool) -> None:
    """Print the table and the states.

    Raises:
        StoppedByUserError: The sweep was stopped.
        TrainingError: A task failed.
    """
    folder, tasks, resume_command = sweep.folder, sweep.tasks, format_command(*sweep.resume_argv)
    # Commands that were not selected for this call may remain.
    done = (task.state == "queued" and not {*task.remaining_commands} & {*sweep.runner.template} for task in tasks)
    states = Counter("success" if is_done else task.state for task, is_done in zip(tasks, done, strict=True))
    rows = build_table(folder) if as_json or states["success"] else []
    if as_json:
        print_json({"sweep": folder.path, "states": states, "table": [flatten_row(row) for row in rows]})
    elif rows:
        _print_table(rows)
    state_counts = ", ".join(f"{count} {state}" for state, count in states.items()) or "nothing to run"
    if stopped:
        hint = f"run `{resume_command}` to continue" if states["queued"] else None
        raise StoppedByUserError(f"stopped: {state_counts}", hint=hint)
    print_status(f"{_format_task_count(len(tasks))} in {folder.path}: {state_counts}")
    if failed := states["failed"]:
        status_command = format_command("mmfw", "sweep", "status", folder.path, "--state", "failed")
        hint = f"run `{status_command}` to see why, and `{resume_command} --failed` to run them again"
        raise TrainingError(f"{failed} of {_format_task_count(len(tasks))} failed", hint=hint)


def _print_plan(sweep: PlannedSweep, as_json: bool) -> None:
    """Print the tasks that would run, and their expected cost."""
    runner, trials, slots = sweep.runner, sweep.remaining_trials or 0, sweep.options.count
    with suppress(UsageError):  # the machine that shows the plan may lack the GPUs
        slots = len(create_local_slots(sweep.resources, slots))
    slots = slots or len(sweep.resources or "x")
    if sweep.data_dir is not None:
        print_status(f"data folder of the mmfw commands: {sweep.data_dir}")
    plans: list[dict[str, Any]] = []
    for task in sweep.tasks:
        remaining = [name for name in runner.template if name in task.remaining_commands and task.state != "pruned"]
        argv_by_name = {name: runner.build_command(task, name) for name in remaining}
        commands = {name: argv[0] if runner.shell else format_command(*argv) for name, argv in argv_by_name.items()}
        plans.append({"task": task.name, "state": task.state, "commands": commands})
    remaining_tasks = sum(bool(entry["commands"]) for entry in plans)
    runs = remaining_tasks + trials
    seconds = space = None
    if (cost := sweep.expected_cost) is not None:
        finished_count, seconds_per_run, bytes_per_run = cost
        seconds, space = seconds_per_run * -(-runs // slots), bytes_per_run * runs
    if as_json:
        print_json(
            {"tasks": plans, "orphans": sweep.unused_parameters, "slots": slots, "seconds": seconds, "bytes": space}
        )
        return
    for entry in plans:
        print_result(f"{entry['task']}  ({entry['state']})")
        for name, command in entry["commands"].items():
            print_result(f"  {name}: {command}")
    print_status(f"{_format_task_count(len(plans))}, {remaining_tasks} to run, {slots} at a time")
    if trials:
        print_status(f"and {trials} trials with values chosen by Optuna")
    if seconds is None or space is None:
        print_status("expected time: unknown, because no similar task has finished")
    else:
        expected = f"about {format_duration(seconds)} and {format_size(space)}"
        print_status(f"expected: {expected}, from {finished_count} finished before")


@command.command()
@click.argument("sweep", required=False)
@click.option("--state", type=click.Choice(get_args(TaskState)), help="Only tasks in this state.")
@options.save_dir_and_json
def status(sweep: str | None, state: str | None, save_dir: Path, as_json: bool) -> None:
    """Show the state and progress of a sweep's tasks.

    SWEEP is a sweep's folder, or its name in the save dir; the default is the newest sweep there.

    Examples:
      mmfw sweep status                         the newest sweep
      mmfw sweep status mmbt_grid --state failed
    """
    folder = find_sweep(save_dir, sweep)
    tasks = list_tasks(folder)
    counts = Counter(task.state for task in tasks)
    selected = [(task, folder.task_folder(task.name)) for task in tasks if state in (None, task.state)]
    entries = [(task_id(task_dir.path), task, read_task_progress(task_dir)) for task, task_dir in selected]
    if as_json:
        listed = [{**to_stored(task), **progress, "run": run} for run, task, progress in entries]
        print_json({"sweep": folder.path, "states": counts, "tasks": listed})
        return
    by_state = ", ".join(f"{n} {name}" for name, n in counts.items())
    print_status(f"{folder.path}: {_format_task_count(len(tasks))}, {by_state}")
    header = ["task", "state", "slot", "command", "updates", "loss", "best AUROC"]
    header += ["split", "left", "time", "message"]
    table = [
        (
            *(run, task.state, task.slot, task.command),
            None if progress["update"] is None else f"{progress['update']}/{progress['max_updates'] or '?'}",
            *(progress["loss"], progress["auroc"], progress["on"]),
            format_duration(progress["left"]) if progress["left"] and task.state == "running" else None,
            format_duration(task.seconds) if task.seconds else None,
            task.message,
        )
        for run, task, progress in entries
    ]
    columns = [n for n, _ in enumerate(header) if n < 2 or any(cells[n] is not None for cells in table)]
    rows = [[cells[n] for n in columns] for cells in table]
    print(format_table([header[n] for n in columns], rows, optional=("slot", "time", "command")))


@command.command()
@click.argument("sweep", required=False)
@click.option(
    "--metric",
    metavar="NAME",
    help="Validation metric to rank by.  [default: the metric of the sweep's search, else auroc]",
)
@click.option(
    "--baseline",
    multiple=True,
    metavar="PARAMETER=VALUE",
    help="Compare the other combinations with this one by a paired t-test over the seeds; may be repeated.",
)
@options.output_format(
    "tsv", "csv", help_text="Output format; tsv and csv have separate columns for means and deviations."
)
@options.save_dir_and_json
def table(
    sweep: str | None, metric: str | None, baseline: Sequence[str], form: str, save_dir: Path, as_json: bool
) -> None:
    """Show the results of a sweep: the mean of each metric for each combination.

    The means are over the seeds. Only finished tasks count. The metrics are those of each run's best
    checkpoint, on the validation split and on the test splits that it has predicted. Test splits are never
    used for ranking. SWEEP is the same as for `mmfw sweep status`.

    Examples:
      mmfw sweep table                          the newest sweep, the best combination first
      mmfw sweep table mmbt_grid --baseline lr=1e-05 --baseline batch_size=32
      mmfw sweep table --metric accuracy --format csv > table.csv
    """
    folder = find_sweep(save_dir, sweep)
    rows = build_table(folder, metric=metric, baseline=baseline)
    if as_json:
        print_json([flatten_row(row, with_comparison=bool(baseline)) for row in rows])
    elif rows:
        _print_table(rows, form, with_comparison=bool(baseline))
    else:
        print_status(f"{folder.path}: no finished tasks")


def _print_table(rows: Sequence[ResultRow], table_format: str = "text", *, with_comparison: bool = False) -> None:
    """Print the table of a sweep, which has at least one row."""
    if table_format in ("csv", "tsv"):
        flat_rows = [flatten_row(row, with_comparison=with_comparison) for row in rows]
        records = [flat | {"tasks": " ".join(row.task_ids)} for flat, row in zip(flat_rows, rows, strict=True)]
        names = list(dict.fromkeys(name for record in records for name in record))
        print_csv(names, records, "," if table_format == "csv" else "\t")
        return
    metrics = list(dict.fromkeys(name for row in rows for name in row.metrics))
    header = [*rows[0].parameters, "runs", "split", *metrics, *(("difference", "p") if with_comparison else ())]
    cells = [_table_cells(row, metrics, with_comparison=with_comparison) for row in rows]
    print(format_table([*header, "first task"], cells, optional=["first task"]))


def _table_cells(row: ResultRow, metrics: Sequence[str], *, with_comparison: bool) -> list[object]:
    parameters = [None if value is None else str(value) for value in row.parameters.values()]
    means = [_format_mean([*row.metrics.get(name, {}).values()], row.run_count) for name in metrics]
    difference = None if row.difference is None else f"{row.difference:+.4f}"
    p = None if row.p_value is None else f"{row.p_value:.3g}"
    task = next(iter(row.task_ids), None)
    return [*parameters, row.run_count, row.validated_on, *means, *((difference, p) if with_comparison else ()), task]


def _format_mean(values: Sequence[float], run_count: int) -> str | None:
    mean, sd, count = seeds.mean_and_std(values)
    deviation = "" if sd is None else f" ± {sd:.4f}"
    count_text = f" (of {count})" if count < run_count else ""
    return None if mean is None else f"{mean:.4f}{deviation}{count_text}"


@command.command()
@click.argument("sweep")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@options.save_dir_and_json
def rm(sweep: str, yes: bool, save_dir: Path, as_json: bool) -> None:
    """Remove a sweep with all its runs and their checkpoints, and free their space.

    SWEEP is the sweep's folder or name. A sweep that is in use is not removed.

    Examples:
      mmfw sweep rm mmbt_grid
    """
    folder = find_sweep(save_dir, sweep)
    confirm_and_remove({folder.path.name: folder.path}, lambda: remove_sweep(folder), yes, as_json)


def _format_task_count(count: int) -> str:
    """Return a count such as ``1 task`` or ``3 tasks``."""
    return f"{count} task{'' if count == 1 else 's'}"
