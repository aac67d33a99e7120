"""``mmfw sweep``."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import click
from click.core import ParameterSource

from mmf_win.commands import options
from mmf_win.commands.examples import Group
from mmf_win.commands.sweep_display import SweepDisplay
from mmf_win.commands.sweep_show import print_lines, print_plan, rm, status, table, tasks
from mmf_win.commands.track import tracking, usable
from mmf_win.commands.train import resumed
from mmf_win.console import print_json, say, shell_line
from mmf_win.errors import Interrupted, TrainingError, UsageError
from mmf_win.sweeps.starting import PlannedSweep, SweepOptions, plan_sweep, run_sweep
from mmf_win.sweeps.table import flat, lines
from mmf_win.tracking.sending import What
from mmf_win.tracking.tracker import require_no_id

_MOST_SEEDS = 10_000
_SEEDS = re.compile(r"(\d+)(?:-(\d+))?")


def _seeds(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[int, ...]:
    """Numbers and ranges of them, such as ``1-3,7``."""
    seeds: list[int] = []
    for part in [] if value is None else value.split(","):
        found = _SEEDS.fullmatch(part.strip())
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if not first <= last < 2**32 or last - first >= _MOST_SEEDS:
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
@options.words("PRESET|FILE|SWEEP [KEY=VALUE,VALUE ...]", "PRESET")
@click.option("--seeds", callback=_seeds, metavar="N-M", help="Seeds, for each combination.")
@options.number("--updates", meaning="The total of each training of a preset.")
@options.number(
    "--slots",
    "count",
    meaning="How many tasks run at a time; they share the GPUs in turn.  [default: one per GPU]",
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
@options.number("--sample", meaning="Only N combinations of each choice, drawn at random.")
@click.option("--dry-run", is_flag=True, help="Show the tasks with expected time and disk; run nothing.")
@click.option("-d", "--debug", is_flag=True, help="Run the first task alone, and show what it prints.")
@options.output("The sweep's folder.  [default: sweeps/NAME in the save dir]")
@tracking
@options.stop_timeout
@options.data_dir
@options.runs_and_json
@options.gather(asked=SweepOptions)
def run(asked: SweepOptions, trackers: tuple[str, ...], what: What, as_json: bool) -> None:
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
    if not any(asked.words[:1]):
        raise UsageError("name a preset, a file or a sweep", hint="`mmfw sweep run --help` has examples")
    require_no_id(usable(trackers, what))
    named = click.get_current_context().get_parameter_source("trackers") is ParameterSource.COMMANDLINE
    track = [word for name in trackers if named for word in ("--track", name)]  # MMFW_TRACK they inherit
    sweep = plan_sweep(replace(asked, track=[*track, *what.options]), resumed)
    if asked.dry_run:
        print_plan(sweep, as_json)
    else:
        stopped = run_sweep(sweep, SweepDisplay)
        _report(sweep, stopped=stopped, as_json=as_json)


command.add_command(status)
command.add_command(table)
command.add_command(rm)


def _report(sweep: PlannedSweep, *, stopped: bool, as_json: bool) -> None:
    """Print the table, and end with an error where not all went well."""
    folder, found, again = sweep.folder, sweep.tasks, shell_line(*sweep.words_to_go_on)
    # Others of its commands may be left.
    done = (task.state == "queued" and not {*task.left} & {*sweep.runner.template} for task in found)
    states = Counter("success" if over else task.state for task, over in zip(found, done, strict=True))
    table_of = lines(folder) if as_json or states["success"] else []
    if as_json:
        print_json({"sweep": folder.path, "states": states, "table": [flat(line) for line in table_of]})
    elif table_of:
        print_lines(table_of)
    told = ", ".join(f"{count} {state}" for state, count in states.items()) or "nothing to run"
    if stopped:
        raise Interrupted(f"stopped: {told}", hint=f"go on with: {again}" if states["queued"] else None)
    say(f"{tasks(len(found))} in {folder.path}: {told}")
    if failed := states["failed"]:
        show = shell_line("mmfw", "sweep", "status", folder.path, "--state", "failed")
        hint = f"`{show}` shows why; `{again} --failed` runs them again"
        raise TrainingError(f"{failed} of {tasks(len(found))} failed", hint=hint)
