"""``mmfw sweep``."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from mmf_win.commands import options
from mmf_win.commands.overrides import require_trainable, split_words
from mmf_win.commands.sweep_display import SweepDisplay
from mmf_win.commands.sweep_show import print_lines, print_plan, rm, status, table, tasks
from mmf_win.commands.track import usable
from mmf_win.commands.train import resumed
from mmf_win.console import did_you_mean, print_json, say, shell_line
from mmf_win.errors import Interrupted, InUseError, TrainingError, UsageError
from mmf_win.files import write_bytes
from mmf_win.locking import locked
from mmf_win.paths import Places, expanded, name_part
from mmf_win.runs import presets, training
from mmf_win.runs.folder import SPECIFICATION, SWEEPS
from mmf_win.runs.lookup import sweep_named, sweeps_in
from mmf_win.runs.request import Once
from mmf_win.sweeps import grid, on_ray, specification
from mmf_win.sweeps.driver import Driver
from mmf_win.sweeps.folder import SweepFolder, Task, begun, joined, load, require_known
from mmf_win.sweeps.planning import plan
from mmf_win.sweeps.running import Runner, slots_here
from mmf_win.sweeps.search import OptunaSearch
from mmf_win.sweeps.specification import Specification, read_text
from mmf_win.sweeps.table import cost, flat, lines
from mmf_win.tracking import Models
from mmf_win.tracking.sending import What
from mmf_win.tracking.tracker import require_no_id
from mmf_win.unpacking.staging import require_makeable
from mmf_win.upstream.install import require_packages

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


@click.group(
    epilog="""\b
Examples:
  mmfw sweep run mmbt_grid --seeds 1-5 optimizer.params.lr=1e-5,5e-5
  mmfw sweep run params.yaml --dry-run
  mmfw sweep status
  mmfw sweep table --baseline lr=1e-05""",
)
def command() -> None:
    """Run many experiments: grids, seeds and searches, one process per GPU."""


@command.command(
    epilog="""\b
Examples:
  mmfw sweep run mmbt_grid --seeds 1-5      five seeds, one process per GPU
  mmfw sweep run mmbt_grid --seeds 1-3 optimizer.params.lr=1e-5,5e-5 training.batch_size=16,32
  mmfw sweep run demo --slots 2 --dry-run optimizer.params.lr=1e-4,7e-4
  mmfw sweep run params.yaml                what a file says; mlrunner's files work, too
  mmfw sweep run params.yaml -t norm -c test -r 0,1 -r 2,3
  mmfw sweep run save/sweeps/mmbt_grid      what is left of an earlier sweep
  mmfw sweep run save/sweeps/mmbt_grid --failed"""
)
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
@options.tracking
@options.stop_timeout
@options.data_dir
@options.runs_and_json
def run(
    words: tuple[str, ...],
    seeds: tuple[int, ...],
    updates: int | None,
    count: int | None,
    resources: tuple[str, ...],
    cluster: str | None,
    title: str | None,
    commands: tuple[str, ...],
    force: bool,
    failed: bool,
    sample: int | None,
    dry_run: bool,
    debug: bool,
    output: Path | None,
    trackers: tuple[str, ...],
    models: Models,
    page: bool,
    stop_timeout: float,
    data_dir: Path | None,
    save_dir: Path,
    as_json: bool,
) -> None:
    """Run a sweep, or what is left of one.

    A PRESET is trained with every combination of the values and seeds. A FILE says which commands to run, and
    with which values (docs/sweeps.md). Each task has a folder that its parameters name. What ended well is
    not run again, and a training that was stopped is resumed. Ctrl+C lets the running tasks save and exit.
    """
    if not any(words[:1]):
        raise UsageError("name a preset, a file or a sweep", hint="`mmfw sweep run --help` has examples")
    require_no_id(usable(trackers, models, page))
    named = click.get_current_context().get_parameter_source("trackers") is ParameterSource.COMMANDLINE
    track = [word for name in trackers if named for word in ("--track", name)]  # MMFW_TRACK they inherit
    track += What(models, page).options
    typed: dict[str, Any] = {"--seeds": seeds, "--updates": updates, "--data-dir": data_dir}
    typed |= {"KEY=VALUE": words[1:], "--track": track}
    asked, text, folder = _read(words[0], typed, output, save_dir, failed=failed, dry_run=dry_run)
    if readings := specification.find_surprising_readings(text):  # which may be why a plan fails
        told = ", ".join(f"{word} as {value}" for word, value in readings.items())
        say(f"note: YAML reads {told}; quote a word to keep it as text")
    try:
        planned = plan(asked, title=title, commands=commands, sample=sample)
    except UsageError as error:
        raise UsageError(f"{words[0]}: {error}", hint=error.hint) from None
    if debug and not planned.tasks:
        raise UsageError("there is no task to debug: a search has none before it runs")
    force |= debug
    for resource in resources:
        specification.require_resource(resource, "-r ")
    given, every = resources or asked.resource, tuple(asked.template)
    before, chosen = begun(folder), commands or every
    entered = joined(planned.tasks, before)
    known = {task.key for task in entered}
    trials = [task for task in before if task.trial is not None and not title and task.key not in known]
    search_for = None if title or debug or failed else asked.search
    more = 0 if search_for is None else max(0, search_for.trials - len(trials))
    entered += [task.asked_for(replace(task, commands=every)) for task in trials]
    if debug:
        entered = entered[:1]
    if failed:
        entered = [task for task in entered if task.state == "failed"]
    if force:
        busy = InUseError(f"{folder.path}: another mmfw sweep run still works on it")
        if not dry_run and any(task.state == "running" for task in entered):
            raise busy
        entered = [task.anew(chosen) for task in entered]
    if not cluster and any(words.split()[:1] == ["mmfw"] for words in asked.template.values()):
        require_makeable(Places.resolve(data_dir, save_dir))  # one error now instead of one a task
    names_data = any("--data-dir" in command for command in asked.template.values())
    of_file = None if names_data or data_dir is None else data_dir.absolute()
    if of_file is not None and not of_file.is_dir():
        raise UsageError(f"{of_file}: there is no such folder")
    runner = Runner(
        sweep=folder,
        template={name: asked.template[name] for name in chosen},
        shell=asked.shell,
        resume=resumed,
        time=time.strftime("%Y%m%d.%H%M%S"),
        patience=stop_timeout,
        aloud=debug,
    )
    _note(asked, planned.orphans, title)
    if dry_run:
        with suppress(UsageError):  # it is shown on another machine
            count = len(slots_here(given, count))
        expected = cost(folder, before, _preset_of(asked), save_dir)
        if of_file is not None:
            say(f"the data folder of its mmfw commands is {of_file}")
        print_plan(runner, entered, more, planned.orphans, count or len(given or "x"), expected, as_json)
        return
    execute: Callable[..., Task] = runner.run
    if cluster:
        on_cluster = click.get_current_context().with_resource(on_ray.connected())
        places = on_cluster.slots(given, count, folder, Places.resolve(data_dir, save_dir).data_dir)
        execute = partial(on_cluster.run, runner)
    else:
        places = slots_here(given, count)
    if of_file is not None:
        places = [replace(p, environment={**p.environment, "MMF_DATA_DIR": str(of_file)}) for p in places]
    if search_for is not None:
        require_packages("optuna", extra="[search]")  # before there is a folder
    folder.path.mkdir(parents=True, exist_ok=True)
    removed = InUseError(f"another mmfw is removing {folder.path}")
    click.get_current_context().with_resource(locked(folder.drivers, shared=True, refused=removed))
    search = None if search_for is None else OptunaSearch(asked, folder, [*entered, *before])
    # Another command may have added choices meanwhile.
    with locked(folder.path / f"{SPECIFICATION}.lock", patience=60.0):
        text = _read(words[0], typed, output, save_dir, failed=True, dry_run=True)[1]
        write_bytes(folder.specification, text.encode())
    if force:
        for task in entered:
            task.forget(folder.task(task.name), busy)
    # One that somebody else runs may be left by him, and is not over before he has noted that.
    left = [t for t in entered if t.state == "running" or (t.state != "pruned" and set(t.left) & set(chosen))]
    wanted = [t if t.state == "running" else replace(t, state="queued", message=None) for t in left]
    for task in [] if force else wanted:
        require_known(folder.task(task.name))
    with SweepDisplay(len(wanted) + more) as display:
        driver = Driver(folder, places, execute, display, search)
        stopped = driver.run(wanted)
    of_others = [task for task in begun(folder) if task.trial is not None] if search is not None else []
    now = {**{task.key: task for task in [*of_others, *entered]}, **driver.tasks}
    again: list[tuple[str, Any]] = [("--slots", count), *(("-r", name) for name in resources)]
    again += [*(("-c", name) for name in commands), ("--on", cluster), ("-t", title)]
    again += [("--sample", sample), ("--data-dir", of_file)]
    repeated = [word for option, value in again if value for word in (option, value)]
    go_on = shell_line("mmfw", "sweep", "run", folder.path, *repeated)
    _report(folder, list(now.values()), chosen, go_on, stopped, as_json)


command.add_command(status)
command.add_command(table)
command.add_command(rm)


def _read(
    what: str, typed: Mapping[str, Any], output: Path | None, save_dir: Path, *, failed: bool, dry_run: bool
) -> tuple[Specification, str, SweepFolder]:
    """What a preset, a file or an earlier sweep stands for; of ``typed``, a file takes ``--data-dir`` alone.

    Returns what is asked for now, its text with what was asked for before in the same folder, and the folder.
    """
    path, earlier = expanded(what), sweep_named(save_dir, what)
    if what in presets.names() and earlier != path.absolute():
        earlier = None  # the preset is meant
    if earlier is not None or (path.is_file() and re.search(r"^template\s*:", read_text(path), re.MULTILINE)):
        given = next((name for name, value in typed.items() if value and name != "--data-dir"), None)
        if given is not None:
            raise UsageError(f"{given} is for a preset; {what} says which values to combine")
        file = path if earlier is None else earlier / SPECIFICATION
        if earlier is not None and output is not None:
            raise UsageError(f"{what} is a sweep, which goes on in its own folder, not in {output}")
        text = read_text(file)
        folder = SweepFolder(earlier or output or save_dir / SWEEPS / name_part(path.stem))
        asked = specification.parse(text, file)
        if typed["--data-dir"] and any("--data-dir" in command for command in asked.template.values()):
            raise UsageError(f"{file}: its commands have a --data-dir of their own", hint="change it there")
        return asked, text, folder
    if what not in presets.names() and not path.is_file():
        if lost := next((place for place in (path, save_dir / SWEEPS / what) if place.is_dir()), None):
            hint = "run the file that it was made of again, with -o and this folder"
            raise UsageError(f"{lost}: no sweep, or one that has lost its sweep.yaml", hint=hint)
        known = [*presets.names(), *(folder.name for folder in sweeps_in(save_dir))]
        hint = f"{did_you_mean(path.stem, known)}`mmfw sweep run --help` has examples"
        raise UsageError(f"{what}: there is no such preset, file or sweep", hint=hint)
    preset = presets.load(what)
    seeds, updates, data_dir = (typed[option] for option in ("--seeds", "--updates", "--data-dir"))
    _, overrides = split_words(typed["KEY=VALUE"], names=0)
    words = ["--updates", str(updates)] if updates else []
    words += [*(["--data-dir", str(data_dir.absolute())] if data_dir else []), *typed["--track"]]
    folder = SweepFolder(output or save_dir / SWEEPS / preset.name)
    typed_file = grid.of_preset(preset.file or preset.name, seeds, overrides, words)
    asked, text = join_specifications(typed_file, folder)
    places = Places.resolve(data_dir, save_dir)
    for each in [] if failed else _one_by_one(overrides):  # one error now instead of one a task
        require_trainable(each, {"updates": updates, "seeds": seeds}, resumes=False)
        once = Once.of(each, updates=updates, seed=min(seeds, default=None), dry_run=dry_run)
        training.prepare(training.new(what, once, places))
    return asked, text, folder


def _one_by_one(typed: Sequence[str]) -> list[list[str]]:
    """Combinations in which each value of ``KEY=VALUE,VALUE`` is: the first ones, and one other in turn."""
    listed = [[f"{key}={value}" for value in values] for key, values in grid.values_of(typed).items()]
    first = [values[0] for values in listed]
    others = [[*first[:n], value, *first[n + 1 :]] for n, values in enumerate(listed) for value in values[1:]]
    return [first, *others]


def _note(asked: Specification, orphans: Sequence[str], title: str | None) -> None:
    """Say what may not be meant."""
    if orphans:
        say(f"note: no command uses {', '.join(orphans)}; they only name folders")
    for name, equal in grid.find_equal_numbers(asked).items():
        say(f"note: {name} has values that are equal as numbers, each a task: {', '.join(equal)}")
    alike = sum(choice.title == title for choice in asked.choices)
    if title is not None and alike > 1:
        say(f"note: {alike} choices have the title {title}, and all of them run")
    for name, template in asked.template.items():
        elsewhere = template.split()[:2] == ["mmfw", "train"] and "--save-dir" in template
        if elsewhere and "{_output}" not in template:
            say(f"note: {name} saves its runs elsewhere, where the table does not look for them")


def join_specifications(text: str, folder: SweepFolder) -> tuple[Specification, str]:
    """Join a specification with the one in a sweep's folder.

    Args:
        text: The specification that the command line asks for.
        folder: The folder of the sweep, which may have a specification already.

    Returns:
        The parsed ``text``, and the new text of the folder's file.

    Raises:
        UsageError: The folder has another sweep.
    """
    before, asked = load(folder), specification.parse(text, folder.specification)
    if before is not None:
        if (before.template, before.default) != (asked.template, asked.default):
            message = f"{folder.path} has another sweep: {' '.join(before.template.values())}"
            raise UsageError(message, hint=specification.ELSEWHERE)
        new = "" if asked.choices[0] in before.choices else "---\n" + text.partition("\n---\n")[2]
        text = f"{read_text(folder.specification).rstrip()}\n{new}"
    return replace(specification.parse(text, folder.specification), choices=asked.choices), text


def _preset_of(asked: Specification) -> str | None:
    """The preset that the first command trains, if it does."""
    first = next(iter(asked.template.values()))
    values = {**dict.fromkeys(specification.placeholders(first), ""), **asked.default}
    filled = specification.fill_words(first, values)
    return Path(filled[2]).stem if filled[:2] == ["mmfw", "train"] and len(filled) > 2 else None


def _report(
    folder: SweepFolder, found: Sequence[Task], names: Sequence[str], again: str, stopped: bool, as_json: bool
) -> None:
    """Print the table, and end with an error where not all went well; ``again`` is how to go on then."""
    done = (task.state == "queued" and not set(task.left) & set(names) for task in found)  # others are left
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
