"""Planning and execution of one ``mmfw sweep run`` command."""

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
from mmf_win.sweeps.task_runner import ResumeCallback, Slot, TaskRunner, TaskUpdate, create_local_slots
from mmf_win.unpacking.staging import require_creatable_folders
from mmf_win.upstream.install import require_packages

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SweepOptions:
    """Options of ``mmfw sweep run``; see its help.

    Attributes:
        arguments: Preset, file or sweep, and ``KEY=VALUE,VALUE`` overrides.
        count: Number of slots.
        track_arguments: Tracking options for each training of a preset.
    """

    arguments: tuple[str, ...]
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
    def mmf_paths(self) -> MmfPaths:
        """Folders of MMF."""
        return MmfPaths.resolve(self.data_dir, self.save_dir)


@dataclass
class PlannedSweep:
    """Requested sweep and its tasks.

    Attributes:
        options: Options of the command.
        specification: Specification with the choices of this command.
        folder: Folder of the sweep.
        started_tasks: Tasks that started before this command.
        tasks: Requested tasks; after the run also those that a search added.
        remaining_trials: Number of tasks that a search has yet to propose; ``None`` without a search.
        unused_parameters: Parameters that no command uses.
        runner: Runs the tasks.
        data_dir: MMF's data folder for commands that name none.
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
        """GPUs of each slot; ``None`` for all."""
        return self.options.resources or self.specification.resource

    @property
    def expected_cost(self) -> tuple[int, float, float] | None:
        """Expected cost of one more task; see :func:`mmf_win.sweeps.table.estimate_cost`."""
        return estimate_cost(self.folder, self.started_tasks, _find_preset(self.specification), self.options.save_dir)

    @property
    def resume_argv(self) -> list[str]:
        """Command line that runs the remaining tasks."""
        options = self.options
        args: list[tuple[str, object]] = [("--slots", options.count)]
        args += [*(("-r", name) for name in options.resources), *(("-c", name) for name in options.commands)]
        args += [("--on", options.cluster), ("-t", options.title)]
        args += [("--sample", options.sample), ("--data-dir", self.data_dir)]
        argv = [str(word) for option, value in args if value for word in (option, value)]
        return ["mmfw", "sweep", "run", str(self.folder.path), *argv]


def plan_sweep(options: SweepOptions, resume: ResumeCallback) -> PlannedSweep:
    """Read the specification and plan its tasks; log warnings for likely mistakes.

    Args:
        options: Options of the command.
        resume: Returns the command line that resumes a training.

    Returns:
        The planned sweep.

    Raises:
        UsageError: The sweep cannot run as requested.
        InUseError: Tasks that should run again are running.
    """
    source, title = options.arguments[0], options.title
    spec, text, folder = _resolve_specification(options)
    if readings := specification.find_surprising_readings(text):  # may explain why the planning fails
        listed = ", ".join(f"{word} as {value}" for word, value in readings.items())
        _log.warning("YAML reads %s; quote a word to keep it as text", listed)
    try:
        planned = plan_tasks(spec, title=title, commands=options.commands, sample=options.sample)
    except UsageError as error:
        raise UsageError(f"{source}: {error}", hint=error.hint) from None
    if options.debug and not planned.tasks:
        raise UsageError("no task to debug: a search has no tasks before it runs")
    for resource in options.resources:
        specification.require_resource(resource, "-r ")
    started, all_commands = load_started_tasks(folder), tuple(spec.template)
    chosen = options.commands or all_commands
    tasks = merge_tasks(planned.tasks, started)
    keys = {task.key for task in tasks}
    trials = [task for task in started if task.trial is not None and not title and task.key not in keys]
    is_searched = spec.search is not None and not (title or options.debug or options.failed)
    trials_left = max(0, spec.search.trials - len(trials)) if spec.search is not None and is_searched else None
    tasks += [task.with_planned_commands(replace(task, commands=all_commands)) for task in trials]
    if options.debug:
        tasks = tasks[:1]
    if options.failed:
        tasks = [task for task in tasks if task.state == "failed"]
    if options.force or options.debug:
        if not options.dry_run and any(task.state == "running" for task in tasks):
            raise InUseError(_in_use_message(folder))
        tasks = [task.with_commands_reset(chosen) for task in tasks]
    if not options.cluster and any(line.split()[:1] == ["mmfw"] for line in spec.template.values()):
        require_creatable_folders(options.mmf_paths)  # one error now instead of one per task
    names_data = any("--data-dir" in command for command in spec.template.values())
    data_dir = None if names_data or options.data_dir is None else options.data_dir.absolute()
    if data_dir is not None and not data_dir.is_dir():
        raise UsageError(f"{data_dir}: folder not found", hint="check the path")
    runner = TaskRunner(
        sweep=folder,
        template={name: spec.template[name] for name in chosen},
        shell=spec.shell,
        resume=resume,
        timestamp=time.strftime("%Y%m%d.%H%M%S"),
        stop_timeout=options.stop_timeout,
        echo_output=options.debug,
    )
    _warn_about_plan(spec, planned.unused_parameters, title)
    return PlannedSweep(options, spec, folder, started, tasks, trials_left, planned.unused_parameters, runner, data_dir)


def run_sweep(
    sweep: PlannedSweep, make_display: Callable[[int], AbstractContextManager[Callable[[Slot, TaskUpdate], None]]]
) -> bool:
    """Run the remaining tasks of a sweep.

    Args:
        sweep: The planned sweep; its ``tasks`` are updated.
        make_display: Returns a context manager for a number of tasks; it yields a function to show updates.

    Returns:
        Whether the user stopped the sweep.
    """
    options, folder, force = sweep.options, sweep.folder, sweep.options.force or sweep.options.debug
    execute: Callable[..., Task] = sweep.runner.run
    with ExitStack() as stack:
        if options.cluster:
            cluster = stack.enter_context(ray_backend.connect_to_ray())
            slots = cluster.make_slots(sweep.resources, options.count, folder, options.mmf_paths.data_dir)
            execute = partial(cluster.run, sweep.runner)
        else:
            slots = create_local_slots(sweep.resources, options.count)
        if sweep.data_dir is not None:
            data_environment = {"MMF_DATA_DIR": str(sweep.data_dir)}
            slots = [replace(slot, environment={**slot.environment, **data_environment}) for slot in slots]
        if sweep.remaining_trials is not None:
            require_packages("optuna", extra="[search]")  # before the folder is created
        folder.path.mkdir(parents=True, exist_ok=True)
        removing = InUseError(f"{folder.path} is being removed")
        stack.enter_context(file_lock(folder.drivers_lock, shared=True, in_use_error=removing))
        tasks = [*sweep.tasks, *sweep.started_tasks]
        search = None if sweep.remaining_trials is None else OptunaSearch(sweep.specification, folder, tasks)
        # Another command may have added choices since the specification was read.
        with file_lock(folder.path / f"{SPECIFICATION_FILE}.lock", timeout=60.0):
            text = _resolve_specification(replace(options, failed=True, dry_run=True))[1]
            write_bytes(folder.specification, text.encode())
        for task in sweep.tasks if force else ():
            task.reset_record(folder.task_folder(task.name), InUseError(_in_use_message(folder)))
        remaining = _remaining_tasks(sweep.tasks, sweep.runner.template)
        for task in () if force else remaining:
            require_intact_records(folder.task_folder(task.name))
        with make_display(len(remaining) + (sweep.remaining_trials or 0)) as show:
            driver = Driver(folder, slots, execute, show, search)
            stopped = driver.run(remaining)
        trials = [task for task in load_started_tasks(folder) if task.trial is not None] if search is not None else []
        tasks_by_key = {**{task.key: task for task in [*trials, *sweep.tasks]}, **driver.tasks}
        sweep.tasks = list(tasks_by_key.values())
    return stopped


def _in_use_message(folder: SweepFolder) -> str:
    return f"{folder.path} is in use by another `mmfw sweep run`"


def _remaining_tasks(tasks: Sequence[Task], commands: Collection[str]) -> list[Task]:
    """Return the tasks to run.

    Running tasks are included: another driver may leave them unfinished, and a task is not over before its
    state was saved.
    """
    remaining = [
        task
        for task in tasks
        if task.state == "running" or (task.state != "pruned" and {*task.remaining_commands} & {*commands})
    ]
    return [task if task.state == "running" else replace(task, state="queued", message=None) for task in remaining]


def _resolve_specification(options: SweepOptions) -> tuple[Specification, str, SweepFolder]:
    """Load the specification of a preset, a file or an existing sweep.

    Returns:
        The requested specification, the new text of the file in the sweep's folder, and the folder.

    Raises:
        UsageError: The source does not exist, or does not fit the options.
    """
    source, save_dir = options.arguments[0], options.save_dir
    path, earlier = expand_home(source), find_sweep_folder(save_dir, source)
    if source in presets.list_presets() and earlier != path.absolute():
        earlier = None  # the name is that of a preset
    if earlier is not None or (path.is_file() and re.search(r"^template\s*:", read_text(path), re.MULTILINE)):
        return _resolve_from_file(options, path, earlier)
    if source not in presets.list_presets() and not path.is_file():
        if incomplete := next((place for place in (path, save_dir / SWEEPS_DIR / source) if place.is_dir()), None):
            hint = "run the original file again, with -o and this folder"
            raise UsageError(f"{incomplete}: not a sweep (sweep.yaml not found)", hint=hint)
        candidates = [*presets.list_presets(), *(folder.name for folder in list_sweeps(save_dir))]
        hint = f"{suggestion_hint(path.stem, candidates)}run `mmfw sweep run --help` for examples"
        raise UsageError(f"no preset, file or sweep named {source}", hint=hint)
    preset = presets.load_preset(source)
    _, overrides = split_arguments(options.arguments[1:], max_names=0)
    train_options = ["--updates", str(options.updates)] if options.updates else []
    train_options += ["--data-dir", str(options.data_dir.absolute())] if options.data_dir else []
    train_options += options.track_arguments
    folder = SweepFolder(options.output or save_dir / SWEEPS_DIR / preset.name)
    text = grid.preset_specification_text(preset.file or preset.name, options.seeds, overrides, train_options)
    spec, text = join_specifications(text, folder)
    # One error now instead of one per task.
    for combination in [] if options.failed else _vary_one_at_a_time(overrides):
        command = CommandOptions(overrides=combination, updates=options.updates, dry_run=options.dry_run)
        require_trainable(command, resumes=False, seeds=options.seeds)
        command = replace(command, seed=min(options.seeds, default=None))
        training.prepare_plan(training.make_job_from_preset(source, command, options.mmf_paths))
    return spec, text, folder


def _resolve_from_file(options: SweepOptions, path: Path, sweep: Path | None) -> tuple[Specification, str, SweepFolder]:
    source, output = options.arguments[0], options.output
    preset_options: dict[str, object] = {"--seeds": options.seeds, "--updates": options.updates}
    preset_options |= {"KEY=VALUE": options.arguments[1:], "--track": options.track_arguments}
    if (preset_option := next((name for name, value in preset_options.items() if value), None)) is not None:
        raise UsageError(f"{preset_option} requires a preset; {source} lists the values to combine")
    file = path if sweep is None else sweep / SPECIFICATION_FILE
    if sweep is not None and output is not None:
        raise UsageError(f"{source} is an existing sweep and cannot continue in {output}", hint="remove -o")
    text = read_text(file)
    folder = SweepFolder(sweep or output or options.save_dir / SWEEPS_DIR / short_portable_name(path.stem))
    spec = specification.parse_specification(text, file)
    if options.data_dir and any("--data-dir" in command for command in spec.template.values()):
        raise UsageError(f"{file}: its commands already set --data-dir", hint="change --data-dir in the file")
    return spec, text, folder


def _vary_one_at_a_time(overrides: Sequence[str]) -> list[list[str]]:
    """Return the combination of all first values, and one for each other value of ``KEY=VALUE,VALUE``."""
    listed = [[f"{key}={value}" for value in values] for key, values in grid.parse_value_lists(overrides).items()]
    first = [values[0] for values in listed]
    others = [[*first[:n], value, *first[n + 1 :]] for n, values in enumerate(listed) for value in values[1:]]
    return [first, *others]


def _warn_about_plan(spec: Specification, unused_parameters: Sequence[str], title: str | None) -> None:
    """Log warnings for likely mistakes in a specification."""
    if unused_parameters:
        _log.warning("no command uses %s; the values only appear in the names of folders", ", ".join(unused_parameters))
    for name, equal in grid.find_equal_numbers(spec).items():
        _log.warning("%s has values that are equal as numbers; each is a task: %s", name, ", ".join(equal))
    count = sum(choice.title == title for choice in spec.choices)
    if title is not None and count > 1:
        _log.warning("%d choices have the title %s; all of them run", count, title)
    for name, template in spec.template.items():
        is_outside = template.split()[:2] == ["mmfw", "train"] and "--save-dir" in template
        if is_outside and "{_output}" not in template:
            _log.warning("%s saves its runs outside the sweep; they do not appear in the table", name)


def join_specifications(text: str, folder: SweepFolder) -> tuple[Specification, str]:
    """Join a specification with the one in a sweep's folder.

    Args:
        text: Specification that the command line asks for.
        folder: Folder of the sweep, which may already contain a specification.

    Returns:
        The parsed ``text``, and the new text of the folder's file.

    Raises:
        UsageError: The folder contains another sweep.
    """
    stored = load_specification(folder)
    new = specification.parse_specification(text, folder.specification)
    if stored is not None:
        if (stored.template, stored.default) != (new.template, new.default):
            message = f"{folder.path} contains another sweep: {' '.join(stored.template.values())}"
            raise UsageError(message, hint=specification.OTHER_FOLDER_HINT)
        addition = "" if new.choices[0] in stored.choices else "---\n" + text.partition("\n---\n")[2]
        text = f"{read_text(folder.specification).rstrip()}\n{addition}"
    return replace(specification.parse_specification(text, folder.specification), choices=new.choices), text


def _find_preset(spec: Specification) -> str | None:
    """Return the preset that the first command trains, or ``None`` if it trains none."""
    first = next(iter(spec.template.values()))
    values = {**dict.fromkeys(specification.placeholders(first), ""), **spec.default}
    filled = specification.render_argv(first, values)
    return Path(filled[2]).stem if filled[:2] == ["mmfw", "train"] and len(filled) > 2 else None
