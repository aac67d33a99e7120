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
from mmf_win.sweeps import grid, ray_backend, specification
from mmf_win.sweeps.driver import Driver
from mmf_win.sweeps.folder import (
    SweepFolder,
    Task,
    load_specification,
    load_started_tasks,
    merge_tasks,
    require_intact_records,
)
from mmf_win.sweeps.planning import plan_tasks
from mmf_win.sweeps.search import OptunaSearch
from mmf_win.sweeps.specification import Specification, read_text
from mmf_win.sweeps.table import estimate_cost
from mmf_win.sweeps.task_runner import ResumeCallback, Slot, TaskRunner, TaskUpdate, local_slots
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
    track_arguments: Sequence[str] = ()

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
    specification: Specification
    folder: SweepFolder
    started_tasks: Sequence[Task]
    tasks: list[Task]
    remaining_trials: int | None
    unused_parameters: Sequence[str]
    runner: TaskRunner
    data_dir: Path | None

    @property
    def resources(self) -> Sequence[str] | None:
        """The GPUs of each slot; None for all."""
        return self.options.resources or self.specification.resource

    @property
    def expected_cost(self) -> tuple[int, float, float] | None:
        """What one more task will take, as :func:`expected_cost` returns it."""
        return estimate_cost(
            self.folder, self.started_tasks, _trained_preset(self.specification), self.options.save_dir
        )

    @property
    def resume_argv(self) -> list[str]:
        """The words of the command that runs what is left."""
        options = self.options
        again: list[tuple[str, object]] = [("--slots", options.count)]
        again += [*(("-r", name) for name in options.resources), *(("-c", name) for name in options.commands)]
        again += [("--on", options.cluster), ("-t", options.title)]
        again += [("--sample", options.sample), ("--data-dir", self.data_dir)]
        repeated = [str(word) for option, value in again if value for word in (option, value)]
        return ["mmfw", "sweep", "run", str(self.folder.path), *repeated]


def plan_sweep(options: SweepOptions, resume: ResumeCallback) -> PlannedSweep:
    """Read what is asked for, and plan its tasks; notes say what may not be meant.

    Raises an MmfwError where it cannot run.

    Args:
        resume: makes the words that resume a training.
    """
    what, title = options.words[0], options.title
    asked, text, folder = _resolve_specification(options)
    if readings := specification.find_surprising_readings(text):  # which may be why a plan fails
        told = ", ".join(f"{word} as {value}" for word, value in readings.items())
        _log.warning("YAML reads %s; quote a word to keep it as text", told)
    try:
        planned = plan_tasks(asked, title=title, commands=options.commands, sample=options.sample)
    except UsageError as error:
        raise UsageError(f"{what}: {error}", hint=error.hint) from None
    if options.debug and not planned.tasks:
        raise UsageError("there is no task to debug: a search has none before it runs")
    for resource in options.resources:
        specification.require_resource(resource, "-r ")
    before, every = load_started_tasks(folder), tuple(asked.template)
    chosen = options.commands or every
    tasks = merge_tasks(planned.tasks, before)
    keys = {task.key for task in tasks}
    trials = [task for task in before if task.trial is not None and not title and task.key not in keys]
    is_searched = asked.search is not None and not (title or options.debug or options.failed)
    more = max(0, asked.search.trials - len(trials)) if asked.search is not None and is_searched else None
    tasks += [task.with_planned_commands(replace(task, commands=every)) for task in trials]
    if options.debug:
        tasks = tasks[:1]
    if options.failed:
        tasks = [task for task in tasks if task.state == "failed"]
    if options.force or options.debug:
        if not options.dry_run and any(task.state == "running" for task in tasks):
            raise _in_use_error(folder)
        tasks = [task.with_commands_reset(chosen) for task in tasks]
    if not options.cluster and any(line.split()[:1] == ["mmfw"] for line in asked.template.values()):
        require_creatable_folders(options.places)  # one error now instead of one a task
    names_data = any("--data-dir" in command for command in asked.template.values())
    data_dir = None if names_data or options.data_dir is None else options.data_dir.absolute()
    if data_dir is not None and not data_dir.is_dir():
        raise UsageError(f"{data_dir}: there is no such folder")
    runner = TaskRunner(
        sweep=folder,
        template={name: asked.template[name] for name in chosen},
        shell=asked.shell,
        resume=resume,
        timestamp=time.strftime("%Y%m%d.%H%M%S"),
        stop_timeout=options.stop_timeout,
        echo_output=options.debug,
    )
    _warn_about_plan(asked, planned.unused_parameters, title)
    return PlannedSweep(
        options, asked, folder, before, tasks, more, planned.unused_parameters, runner, data_dir
    )


def run_sweep(
    sweep: PlannedSweep,
    make_display: Callable[[int], AbstractContextManager[Callable[[Slot, TaskUpdate], None]]],
) -> bool:
    """Run what is left of a sweep, and return whether the user stopped it.

    Args:
        show_all: shows so many tasks, as a :class:`Driver` tells of them.
    """
    options, folder, force = sweep.options, sweep.folder, sweep.options.force or sweep.options.debug
    execute: Callable[..., Task] = sweep.runner.run
    with ExitStack() as stack:
        if options.cluster:
            on_cluster = stack.enter_context(ray_backend.connect())
            slots = on_cluster.make_slots(sweep.resources, options.count, folder, options.places.data_dir)
            execute = partial(on_cluster.run, sweep.runner)
        else:
            slots = local_slots(sweep.resources, options.count)
        if sweep.data_dir is not None:
            of_data = {"MMF_DATA_DIR": str(sweep.data_dir)}
            slots = [replace(slot, environment={**slot.environment, **of_data}) for slot in slots]
        if sweep.remaining_trials is not None:
            require_packages("optuna", extra="[search]")  # before there is a folder
        folder.path.mkdir(parents=True, exist_ok=True)
        removed = InUseError(f"another mmfw is removing {folder.path}")
        stack.enter_context(file_lock(folder.drivers_lock, shared=True, in_use_error=removed))
        known = [*sweep.tasks, *sweep.started_tasks]
        search = None if sweep.remaining_trials is None else OptunaSearch(sweep.specification, folder, known)
        # Another command may have added choices meanwhile.
        with file_lock(folder.path / f"{SPECIFICATION_FILE}.lock", timeout=60.0):
            text = _resolve_specification(replace(options, failed=True, dry_run=True))[1]
            write_bytes(folder.specification, text.encode())
        for task in sweep.tasks if force else ():
            task.reset_record(folder.task_folder(task.name), _in_use_error(folder))
        wanted = _remaining_tasks(sweep.tasks, sweep.runner.template)
        for task in () if force else wanted:
            require_intact_records(folder.task_folder(task.name))
        with make_display(len(wanted) + (sweep.remaining_trials or 0)) as show:
            driver = Driver(folder, slots, execute, show, search)
            stopped = driver.run(wanted)
        of_others = (
            [task for task in load_started_tasks(folder) if task.trial is not None]
            if search is not None
            else []
        )
        now = {**{task.key: task for task in [*of_others, *sweep.tasks]}, **driver.tasks}
        sweep.tasks = list(now.values())
    return stopped


def _in_use_error(folder: SweepFolder) -> InUseError:
    return InUseError(f"{folder.path}: another mmfw sweep run still works on it")


def _remaining_tasks(tasks: Sequence[Task], commands: Collection[str]) -> list[Task]:
    """The tasks that are to be run.

    One that somebody else runs may be left by him, and is not over before he has noted that.
    """
    left = [
        t
        for t in tasks
        if t.state == "running" or (t.state != "pruned" and {*t.remaining_commands} & {*commands})
    ]
    return [t if t.state == "running" else replace(t, state="queued", message=None) for t in left]


def _resolve_specification(options: SweepOptions) -> tuple[Specification, str, SweepFolder]:
    """What a preset, a file or an earlier sweep stands for; a file takes no options of a preset.

    Returns what is asked for now, its text with what was asked for before in the same folder, and the folder.
    """
    what, save_dir = options.words[0], options.save_dir
    path, earlier = expand_home(what), find_sweep_folder(save_dir, what)
    if what in presets.names() and earlier != path.absolute():
        earlier = None  # the preset is meant
    if earlier is not None or (path.is_file() and re.search(r"^template\s*:", read_text(path), re.MULTILINE)):
        return _resolve_from_file(options, path, earlier)
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
    text = grid.preset_specification_text(
        preset.file or preset.name, options.seeds, overrides, [*words, *options.track_arguments]
    )
    asked, text = join_specifications(text, folder)
    for each in (
        [] if options.failed else _vary_one_at_a_time(overrides)
    ):  # one error now instead of one a task
        once = CommandOptions(overrides=each, updates=options.updates, dry_run=options.dry_run)
        require_trainable(once, resumes=False, seeds=options.seeds)
        once = replace(once, seed=min(options.seeds, default=None))
        training.prepare_plan(training.job_from_preset(what, once, options.places))
    return asked, text, folder


def _resolve_from_file(
    options: SweepOptions, path: Path, earlier_sweep: Path | None
) -> tuple[Specification, str, SweepFolder]:
    what, output = options.words[0], options.output
    of_preset: dict[str, object] = {"--seeds": options.seeds, "--updates": options.updates}
    of_preset |= {"KEY=VALUE": options.words[1:], "--track": options.track_arguments}
    if (given := next((name for name, value in of_preset.items() if value), None)) is not None:
        raise UsageError(f"{given} is for a preset; {what} says which values to combine")
    file = path if earlier_sweep is None else earlier_sweep / SPECIFICATION_FILE
    if earlier_sweep is not None and output is not None:
        raise UsageError(f"{what} is a sweep, which goes on in its own folder, not in {output}")
    text = read_text(file)
    folder = SweepFolder(
        earlier_sweep or output or options.save_dir / SWEEPS_DIR / short_portable_name(path.stem)
    )
    asked = specification.parse_specification(text, file)
    if options.data_dir and any("--data-dir" in command for command in asked.template.values()):
        raise UsageError(f"{file}: its commands have a --data-dir of their own", hint="change it there")
    return asked, text, folder


def _vary_one_at_a_time(overrides: Sequence[str]) -> list[list[str]]:
    """Combinations in which each value of ``KEY=VALUE,VALUE`` is: the first ones, and one other in turn."""
    listed = [
        [f"{key}={value}" for value in values] for key, values in grid.parse_value_lists(overrides).items()
    ]
    first = [values[0] for values in listed]
    others = [[*first[:n], value, *first[n + 1 :]] for n, values in enumerate(listed) for value in values[1:]]
    return [first, *others]


def _warn_about_plan(sweep_spec: Specification, unused_parameters: Sequence[str], title: str | None) -> None:
    """Say what may not be meant."""
    if unused_parameters:
        _log.warning("no command uses %s; they only name folders", ", ".join(unused_parameters))
    for name, equal in grid.find_equal_numbers(sweep_spec).items():
        _log.warning("%s has values that are equal as numbers, each a task: %s", name, ", ".join(equal))
    alike = sum(choice.title == title for choice in sweep_spec.choices)
    if title is not None and alike > 1:
        _log.warning("%d choices have the title %s, and all of them run", alike, title)
    for name, template in sweep_spec.template.items():
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
    before, asked = load_specification(folder), specification.parse_specification(text, folder.specification)
    if before is not None:
        if (before.template, before.default) != (asked.template, asked.default):
            message = f"{folder.path} has another sweep: {' '.join(before.template.values())}"
            raise UsageError(message, hint=specification.OTHER_FOLDER_HINT)
        new = "" if asked.choices[0] in before.choices else "---\n" + text.partition("\n---\n")[2]
        text = f"{read_text(folder.specification).rstrip()}\n{new}"
    return replace(specification.parse_specification(text, folder.specification), choices=asked.choices), text


def _trained_preset(sweep_spec: Specification) -> str | None:
    """The preset that the first command trains, if it does."""
    first = next(iter(sweep_spec.template.values()))
    values = {**dict.fromkeys(specification.placeholders(first), ""), **sweep_spec.default}
    filled = specification.render_argv(first, values)
    return Path(filled[2]).stem if filled[:2] == ["mmfw", "train"] and len(filled) > 2 else None
