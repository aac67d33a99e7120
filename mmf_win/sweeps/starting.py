"""Starts a sweep, or what is left of one: reads what is asked for, plans its tasks and runs them."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from mmf_win.console import suggestion_hint
from mmf_win.errors import InUseError, UsageError
from mmf_win.files import write_bytes
from mmf_win.locking import file_lock
from mmf_win.paths import MmfPaths, expand_home, short_portable_name
from mmf_win.runs import presets, training
from mmf_win.runs.folder import SPECIFICATION_FILE, SWEEPS_DIR
from mmf_win.runs.lookup import find_sweep_folder, list_sweeps
from mmf_win.runs.override_rules import require_trainable, split_arguments
from mmf_win.runs.request import CommandOptions
from mmf_win.sweeps import grid, on_ray, specification
from mmf_win.sweeps.driver import Driver
from mmf_win.sweeps.folder import SweepFolder, Task, begun, joined, load, require_known
from mmf_win.sweeps.planning import plan
from mmf_win.sweeps.running import News, Resume, Runner, Slot, slots_here
from mmf_win.sweeps.search import OptunaSearch
from mmf_win.sweeps.specification import Specification, read_text
from mmf_win.sweeps.table import cost
from mmf_win.unpacking.staging import require_creatable_folders
from mmf_win.upstream.install import require_packages

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SweepOptions:
    """What ``mmfw sweep run`` is asked for; see its help.

    Attributes:
        words: what to run, and ``KEY=VALUE,VALUE``.
        count: how many slots.
        track: options of each training of a preset.
    """

    words: tuple[str, ...]
    seeds: tuple[int, ...]
    updates: int | None
    count: int | None
    resources: tuple[str, ...]
    cluster: Literal["ray"] | None
    title: str | None
    commands: tuple[str, ...]
    force: bool
    failed: bool
    sample: int | None
    dry_run: bool
    debug: bool
    output: Path | None
    stop_timeout: float
    data_dir: Path | None
    save_dir: Path
    track: Sequence[str] = ()

    @property
    def places(self) -> MmfPaths:
        """MMF's folders."""
        return MmfPaths.resolve(self.data_dir, self.save_dir)


@dataclass
class PlannedSweep:
    """What is asked for, and the tasks that it comes to.

    Attributes:
        asked: the specification, of the choices that are asked for now.
        before: the tasks that have begun.
        tasks: those that were asked for, as they are; once it has run, also those that were found meanwhile.
        trials: how many tasks a search still proposes; None where nothing is searched for.
        orphans: parameters that no command uses.
        data_dir: MMF's data folder, for commands that name none.
    """

    options: SweepOptions
    asked: Specification
    folder: SweepFolder
    before: Sequence[Task]
    tasks: list[Task]
    trials: int | None
    orphans: Sequence[str]
    runner: Runner
    data_dir: Path | None

    @property
    def resources(self) -> Sequence[str] | None:
        """The GPUs of each slot; None for all."""
        return self.options.resources or self.asked.resource

    @property
    def cost(self) -> tuple[int, float, float] | None:
        """What one more task will take, as :func:`cost` returns it."""
        return cost(self.folder, self.before, _preset_of(self.asked), self.options.save_dir)

    @property
    def words_to_go_on(self) -> list[str]:
        """The words of the command that runs what is left."""
        options = self.options
        again: list[tuple[str, object]] = [("--slots", options.count)]
        again += [*(("-r", name) for name in options.resources), *(("-c", name) for name in options.commands)]
        again += [("--on", options.cluster), ("-t", options.title)]
        again += [("--sample", options.sample), ("--data-dir", self.data_dir)]
        repeated = [str(word) for option, value in again if value for word in (option, value)]
        return ["mmfw", "sweep", "run", str(self.folder.path), *repeated]


def plan_sweep(options: SweepOptions, resume: Resume) -> PlannedSweep:
    """Read what is asked for, and plan its tasks; notes say what may not be meant.

    Raises an MmfwError where it cannot run.

    Args:
        resume: makes the words that resume a training.
    """
    what, title = options.words[0], options.title
    asked, text, folder = _read(options)
    if readings := specification.find_surprising_readings(text):  # which may be why a plan fails
        told = ", ".join(f"{word} as {value}" for word, value in readings.items())
        _log.warning("YAML reads %s; quote a word to keep it as text", told)
    try:
        planned = plan(asked, title=title, commands=options.commands, sample=options.sample)
    except UsageError as error:
        raise UsageError(f"{what}: {error}", hint=error.hint) from None
    if options.debug and not planned.tasks:
        raise UsageError("there is no task to debug: a search has none before it runs")
    for resource in options.resources:
        specification.require_resource(resource, "-r ")
    before, every = begun(folder), tuple(asked.template)
    chosen = options.commands or every
    tasks = joined(planned.tasks, before)
    keys = {task.key for task in tasks}
    trials = [task for task in before if task.trial is not None and not title and task.key not in keys]
    is_searched = asked.search is not None and not (title or options.debug or options.failed)
    more = max(0, asked.search.trials - len(trials)) if asked.search is not None and is_searched else None
    tasks += [task.asked_for(replace(task, commands=every)) for task in trials]
    if options.debug:
        tasks = tasks[:1]
    if options.failed:
        tasks = [task for task in tasks if task.state == "failed"]
    if options.force or options.debug:
        if not options.dry_run and any(task.state == "running" for task in tasks):
            raise _busy(folder)
        tasks = [task.anew(chosen) for task in tasks]
    if not options.cluster and any(line.split()[:1] == ["mmfw"] for line in asked.template.values()):
        require_creatable_folders(options.places)  # one error now instead of one a task
    names_data = any("--data-dir" in command for command in asked.template.values())
    data_dir = None if names_data or options.data_dir is None else options.data_dir.absolute()
    if data_dir is not None and not data_dir.is_dir():
        raise UsageError(f"{data_dir}: there is no such folder")
    runner = Runner(
        sweep=folder,
        template={name: asked.template[name] for name in chosen},
        shell=asked.shell,
        resume=resume,
        time=time.strftime("%Y%m%d.%H%M%S"),
        patience=options.stop_timeout,
        aloud=options.debug,
    )
    _note(asked, planned.orphans, title)
    return PlannedSweep(options, asked, folder, before, tasks, more, planned.orphans, runner, data_dir)


def run_sweep(
    sweep: PlannedSweep, show_all: Callable[[int], AbstractContextManager[Callable[[Slot, News], None]]]
) -> bool:
    """Run what is left of a sweep, and return whether the user stopped it.

    Args:
        show_all: shows so many tasks, as a :class:`Driver` tells of them.
    """
    options, folder, force = sweep.options, sweep.folder, sweep.options.force or sweep.options.debug
    execute: Callable[..., Task] = sweep.runner.run
    with ExitStack() as stack:
        if options.cluster:
            on_cluster = stack.enter_context(on_ray.connected())
            slots = on_cluster.slots(sweep.resources, options.count, folder, options.places.data_dir)
            execute = partial(on_cluster.run, sweep.runner)
        else:
            slots = slots_here(sweep.resources, options.count)
        if sweep.data_dir is not None:
            of_data = {"MMF_DATA_DIR": str(sweep.data_dir)}
            slots = [replace(slot, environment={**slot.environment, **of_data}) for slot in slots]
        if sweep.trials is not None:
            require_packages("optuna", extra="[search]")  # before there is a folder
        folder.path.mkdir(parents=True, exist_ok=True)
        removed = InUseError(f"another mmfw is removing {folder.path}")
        stack.enter_context(file_lock(folder.drivers, shared=True, in_use_error=removed))
        known = [*sweep.tasks, *sweep.before]
        search = None if sweep.trials is None else OptunaSearch(sweep.asked, folder, known)
        # Another command may have added choices meanwhile.
        with file_lock(folder.path / f"{SPECIFICATION_FILE}.lock", timeout=60.0):
            text = _read(replace(options, failed=True, dry_run=True))[1]
            write_bytes(folder.specification, text.encode())
        for task in sweep.tasks if force else ():
            task.forget(folder.task(task.name), _busy(folder))
        wanted = _left(sweep.tasks, sweep.runner.template)
        for task in () if force else wanted:
            require_known(folder.task(task.name))
        with show_all(len(wanted) + (sweep.trials or 0)) as show:
            driver = Driver(folder, slots, execute, show, search)
            stopped = driver.run(wanted)
        of_others = [task for task in begun(folder) if task.trial is not None] if search is not None else []
        now = {**{task.key: task for task in [*of_others, *sweep.tasks]}, **driver.tasks}
        sweep.tasks = list(now.values())
    return stopped


def _busy(folder: SweepFolder) -> InUseError:
    return InUseError(f"{folder.path}: another mmfw sweep run still works on it")


def _left(tasks: Sequence[Task], commands: Collection[str]) -> list[Task]:
    """The tasks that are to be run.

    One that somebody else runs may be left by him, and is not over before he has noted that.
    """
    left = [t for t in tasks if t.state == "running" or (t.state != "pruned" and {*t.left} & {*commands})]
    return [t if t.state == "running" else replace(t, state="queued", message=None) for t in left]


def _read(options: SweepOptions) -> tuple[Specification, str, SweepFolder]:
    """What a preset, a file or an earlier sweep stands for; a file takes no options of a preset.

    Returns what is asked for now, its text with what was asked for before in the same folder, and the folder.
    """
    what, save_dir = options.words[0], options.save_dir
    path, earlier = expand_home(what), find_sweep_folder(save_dir, what)
    if what in presets.names() and earlier != path.absolute():
        earlier = None  # the preset is meant
    if earlier is not None or (path.is_file() and re.search(r"^template\s*:", read_text(path), re.MULTILINE)):
        return _read_file(options, path, earlier)
    if what not in presets.names() and not path.is_file():
        if lost := next((place for place in (path, save_dir / SWEEPS_DIR / what) if place.is_dir()), None):
            hint = "run the file that it was made of again, with -o and this folder"
            raise UsageError(f"{lost}: no sweep, or one that has lost its sweep.yaml", hint=hint)
        known = [*presets.names(), *(folder.name for folder in list_sweeps(save_dir))]
        hint = f"{suggestion_hint(path.stem, known)}`mmfw sweep run --help` has examples"
        raise UsageError(f"{what}: there is no such preset, file or sweep", hint=hint)
    preset = presets.load(what)
    _, overrides = split_arguments(options.words[1:], max_names=0)
    words = ["--updates", str(options.updates)] if options.updates else []
    words += ["--data-dir", str(options.data_dir.absolute())] if options.data_dir else []
    folder = SweepFolder(options.output or save_dir / SWEEPS_DIR / preset.name)
    text = grid.of_preset(preset.file or preset.name, options.seeds, overrides, [*words, *options.track])
    asked, text = join_specifications(text, folder)
    for each in [] if options.failed else _one_by_one(overrides):  # one error now instead of one a task
        once = CommandOptions(overrides=each, updates=options.updates, dry_run=options.dry_run)
        require_trainable(once, resumes=False, seeds=options.seeds)
        once = replace(once, seed=min(options.seeds, default=None))
        training.prepare_plan(training.job_from_preset(what, once, options.places))
    return asked, text, folder


def _read_file(
    options: SweepOptions, path: Path, earlier: Path | None
) -> tuple[Specification, str, SweepFolder]:
    what, output = options.words[0], options.output
    of_preset: dict[str, object] = {"--seeds": options.seeds, "--updates": options.updates}
    of_preset |= {"KEY=VALUE": options.words[1:], "--track": options.track}
    if (given := next((name for name, value in of_preset.items() if value), None)) is not None:
        raise UsageError(f"{given} is for a preset; {what} says which values to combine")
    file = path if earlier is None else earlier / SPECIFICATION_FILE
    if earlier is not None and output is not None:
        raise UsageError(f"{what} is a sweep, which goes on in its own folder, not in {output}")
    text = read_text(file)
    folder = SweepFolder(earlier or output or options.save_dir / SWEEPS_DIR / short_portable_name(path.stem))
    asked = specification.parse(text, file)
    if options.data_dir and any("--data-dir" in command for command in asked.template.values()):
        raise UsageError(f"{file}: its commands have a --data-dir of their own", hint="change it there")
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
        _log.warning("no command uses %s; they only name folders", ", ".join(orphans))
    for name, equal in grid.find_equal_numbers(asked).items():
        _log.warning("%s has values that are equal as numbers, each a task: %s", name, ", ".join(equal))
    alike = sum(choice.title == title for choice in asked.choices)
    if title is not None and alike > 1:
        _log.warning("%d choices have the title %s, and all of them run", alike, title)
    for name, template in asked.template.items():
        elsewhere = template.split()[:2] == ["mmfw", "train"] and "--save-dir" in template
        if elsewhere and "{_output}" not in template:
            _log.warning("%s saves its runs elsewhere, where the table does not look for them", name)


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
