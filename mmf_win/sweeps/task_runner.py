"""Runner of one task's commands, in a slot of this machine or of a Ray cluster."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from mmf_win import machine
from mmf_win.console import format_command
from mmf_win.errors import DataError, InUseError, UsageError
from mmf_win.files import read_tail
from mmf_win.locking import file_lock
from mmf_win.paths import module_command
from mmf_win.protocol import Event, EventReader
from mmf_win.runs import checkpoints, history
from mmf_win.runs.folder import Run
from mmf_win.runs.lookup import list_runs
from mmf_win.runs.request import CommandOptions
from mmf_win.supervise import ChildExit, StopPolicy, run_child
from mmf_win.sweeps.folder import SweepFolder, Task, TaskFolder, TaskState, load_task, write_yaml
from mmf_win.sweeps.specification import CPU, OTHER_GPUS_HINT, RESERVED_PLACEHOLDERS, render_argv, render_shell_line

_SIGTERM_DELAY_SECONDS = 5.0  # time to react to the stop file before SIGTERM is sent
_POLLS_PER_RUN_SEARCH = 5  # searching for a new run costs more than reading new events
_LOG_TAIL_BYTES = 4096  # end of a log that is searched for the error

#: Lets ``mmfw train`` use all GPUs of its slot.
ALL_GPUS_ENVIRONMENT = {"MMFW_NPROC": "auto"}

#: Turns an ``mmfw train …`` command line into one that resumes its run.
ResumeCallback = Callable[[Sequence[str], Run], list[str]]
#: Update of a running task: the task itself when it starts, an event of its training, or its output.
TaskUpdate: TypeAlias = Task | Event | str
OnUpdate: TypeAlias = Callable[[TaskUpdate], None]


@dataclass(frozen=True)
class Slot:
    """Place to run one task at a time.

    Attributes:
        number: Index of the slot.
        resource: GPUs of the slot as in CUDA_VISIBLE_DEVICES, or ``cpu``.
        environment: Environment variables for its commands.
        gpu_count: Number of GPUs on a cluster, which selects them itself.
    """

    number: int
    resource: str
    environment: Mapping[str, str]
    gpu_count: int = 0


def create_local_slots(resources: Sequence[str] | None, count: int | None) -> list[Slot]:
    """Create the slots of this machine.

    Args:
        resources: Resource of each slot; ``None`` for all visible GPUs, or the CPU without any.
        count: Number of slots, which use the resources in turn; ``None`` for one per resource.

    Returns:
        The slots.

    Raises:
        UsageError: The machine lacks a GPU.
    """
    gpus = [str(number) for number in range(len(machine.installed_gpus()))]
    if resources is None:
        visible_gpus = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(gpus)).split(",")
        resources = [name for name in visible_gpus if name not in ("", "-1")] or [CPU]
    for resource in resources:
        for gpu in () if resource == CPU else map(str.strip, resource.split(",")):
            if gpu not in gpus and not gpu.startswith(("GPU-", "MIG-")):
                available = f"available: {', '.join(gpus)}" if gpus else "the NVIDIA driver reports none"
                raise UsageError(f"this machine has no GPU {gpu}; {available}", hint=OTHER_GPUS_HINT)
    names = list(islice(cycle(resources), count or len(resources)))
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, machine.available_cpus() // len(names))))
    visible = [{"CUDA_VISIBLE_DEVICES": "-1" if name == CPU else name} for name in names]
    common = [{"OMP_NUM_THREADS": threads, **(ALL_GPUS_ENVIRONMENT if "," in name else {})} for name in names]
    return [Slot(n, name, visible[n] | common[n]) for n, name in enumerate(names)]


class TaskSignals(NamedTuple):
    """Requests to a running task.

    Attributes:
        stop_count: Number of stop requests: after one, the command saves and exits; after two, it is killed.
        is_pruned: The task was stopped by the pruner.
    """

    stop_count: int = 0
    is_pruned: bool = False


@dataclass(frozen=True)
class TaskRunner:
    """Runner of a sweep's tasks; can be pickled and sent to another machine.

    Attributes:
        sweep: Folder of the sweep.
        template: Templates of the commands to run, in order.
        shell: Whether commands run in a shell.
        resume: Returns the command line that resumes a training.
        timestamp: Start time of the sweep, used in the names of logs.
        stop_timeout: Seconds without progress after which a command that was asked to stop is killed.
        echo_output: Whether the output of commands is sent as updates.
    """

    sweep: SweepFolder
    template: Mapping[str, str]
    shell: bool
    resume: ResumeCallback
    timestamp: str
    stop_timeout: float = CommandOptions.stop_timeout
    echo_output: bool = False

    def build_command(self, task: Task, name: str) -> list[str]:
        """Build the command line of a task from a template.

        Args:
            task: Task with the values of the placeholders.
            name: Name of the template.

        Returns:
            The program and its arguments; if ``shell`` is true, a list with one item, the line for the shell.
        """
        values = {**task.values, **self.reserved_values(task)}
        template = self.template[name]
        return [render_shell_line(template, values)] if self.shell else render_argv(template, values)

    def reserved_values(self, task: Task) -> dict[str, str]:
        """Return the values of the placeholders that are set by mmfw."""
        return {"_output": str(self.sweep.task_folder(task.name).path), "_name": task.name, "_time": self.timestamp}

    def run(
        self, task: Task, slot: Slot, on_update: OnUpdate, get_signals: Callable[[], TaskSignals] = TaskSignals
    ) -> Task:
        """Claim a task and run its commands until one fails.

        Args:
            task: Task as it was when the driver started.
            slot: Slot to run in.
            on_update: Receives the updates of the task.
            get_signals: Returns the current signals for the task.

        Returns:
            The task in its new state: ``running`` if another driver holds it, ``queued`` if it was stopped.

        Raises:
            OSError: The folder of the task cannot be written.
        """
        folder = self.sweep.task_folder(task.name)
        folder.path.mkdir(parents=True, exist_ok=True)
        try:
            with file_lock(folder.lock, in_use_error=InUseError(f"{folder.path}: the task is running")) as lock_fd:
                current = load_task(folder) or task
                if task.matches(current):
                    if current.start_count > task.start_count and current.state in ("failed", "pruned"):
                        return current  # another driver was faster
                    planned = current.with_planned_commands(task)
                    return _TaskExecution(self, planned, slot, folder, lock_fd, on_update, get_signals).run()
        except InUseError:
            return replace(task, state="running")
        # The folder belongs to other values that have the same name.
        return self.run(task.with_unique_name(), slot, on_update, get_signals)


@dataclass
class _TaskExecution:
    """Execution of a task whose lock is held by this process as ``lock_fd``."""

    runner: TaskRunner
    task: Task
    slot: Slot
    folder: TaskFolder
    lock_fd: int
    on_update: OnUpdate
    get_signals: Callable[[], TaskSignals]

    def run(self) -> Task:
        """Run the remaining commands and return the task in its new state."""
        remaining = [name for name in self.runner.template if name in self.task.remaining_commands]
        if not remaining:
            return replace(self.task, state="success")
        start_time = time.monotonic()
        task = replace(self.task, state="running", command=None, message=None)
        self.task = replace(task, slot=self.slot.resource, start_count=task.start_count + 1)
        self.on_update(self.task)
        try:
            state, message = self._run_commands(remaining)
        except Exception as error:  # only this task fails
            state, message = "failed", f"{type(error).__name__}: {error}"
        command = self.task.command if state == "failed" else None
        seconds = self.task.seconds + time.monotonic() - start_time
        self._update_task(state=state, message=message, command=command, slot=None, seconds=seconds)
        return self.task

    def _run_commands(self, names: Sequence[str]) -> tuple[TaskState, str | None]:
        """Run commands until one fails; return the final state, and the reason for a failure."""
        commands = {name: self.runner.build_command(self.task, name) for name in names}
        write_yaml(self.folder.param, {**self.task.values, **self.runner.reserved_values(self.task)})
        for name, argv in commands.items():
            if self.get_signals().stop_count:
                return self._stop_state(), None
            # Without the values that differ each time a sweep is started.
            values = {**self.task.values, **dict.fromkeys(RESERVED_PLACEHOLDERS, "")}
            script = format_command(*render_argv(self.runner.template[name], values))
            earlier = self._find_started_run(name, script) if list(argv[:2]) == ["mmfw", "train"] else None
            # If the earlier run is done, the driver died before it recorded that.
            if earlier is None or history.run_state(earlier) != "done":
                if earlier is not None and checkpoints.can_resume(earlier):
                    self._update_task(command=name)
                    argv = self.runner.resume(argv, earlier)
                else:
                    self._update_task(command=name, runs={**self.task.runs, name: {"script": script}})
                state, message = self._run_command(name, argv)
                if state != "success":
                    return state, message
            self._update_task(finished_commands=(*self.task.finished_commands, name))
        return "success", None

    def _run_command(self, name: str, argv: Sequence[str]) -> tuple[TaskState, str | None]:
        runner, folder = self.runner, self.folder
        log = folder.path / f"log.{name}.{runner.timestamp}"
        is_mmfw = not runner.shell and argv[0] == "mmfw"
        handles_stop_file = is_mmfw or (runner.shell and "mmfw " in argv[0])
        try:
            result = run_child(
                _child_command(argv, runner.shell),
                log=log,
                environment=self._environment(),
                stop_file=folder.stop_file.absolute(),
                poll_progress=self._make_watcher(name, log),
                stop_policy=StopPolicy(
                    2 * runner.stop_timeout,  # the command's own timeout ends first
                    terminate_after=None if handles_stop_file else _SIGTERM_DELAY_SECONDS,
                    count_requests=lambda: self.get_signals().stop_count,
                ),
                inherited_fds=[self.lock_fd],
            )
        except FileNotFoundError as error:  # on Linux the keeper process reports this instead
            log.write_text(f"{argv[0]}: {error.strerror}\n", encoding="utf-8")
            result = ChildExit(127, stop_requested=False, killed=False)
        # Other programs may exit with 0 after a stop request; mmfw does so only if it has finished.
        if result.exit_code == 0 and not result.killed and (is_mmfw or not result.stop_requested):
            return "success", None
        if result.stop_requested:
            return self._stop_state(), None
        return "failed", f"{name}: {_find_error_line(log) or f'exit code {result.exit_code}'}"

    def _find_started_run(self, name: str, script: str) -> Run | None:
        """Return the run that the same command line has started before, or ``None``."""
        record = self.task.runs.get(name, {})
        if "run" not in record or record.get("script") != script:
            return None
        run = Run(self.folder.path / record["run"])
        with suppress(DataError):
            # The recorded folder must be a run of this task that still exists.
            if run in list_runs(self.folder.path) and history.run_state(run):
                return run
        return None

    def _make_watcher(self, name: str, log: Path) -> Callable[[], bool]:
        """Return a function that sends a command's updates and reports whether there was progress."""
        read_bytes = log.stat().st_size if log.exists() else 0
        earlier = self.folder.newest_run()
        readers = {} if earlier is None else {earlier.path: EventReader(earlier.events, from_end=True)}
        calls = 0

        def watch() -> bool:
            nonlocal calls, read_bytes
            calls += 1
            run = None if calls % _POLLS_PER_RUN_SEARCH else self.folder.newest_run()
            if run is not None and run.path not in readers:
                readers[run.path] = EventReader(run.events)
                run_path = run.path.relative_to(self.folder.path).as_posix()
                self._update_task(runs={**self.task.runs, name: {**self.task.runs[name], "run": run_path}})
            events = [event for reader in readers.values() for event in reader.poll()]
            for event in events:
                self.on_update(event)
            if self.runner.echo_output:
                with suppress(OSError), log.open("rb") as file:
                    file.seek(read_bytes)
                    if new_output := file.read():
                        read_bytes += len(new_output)
                        self.on_update(new_output.decode(errors="replace"))
            return bool(events)

        return watch

    def _stop_state(self) -> TaskState:
        return "pruned" if self.get_signals().is_pruned else "queued"

    def _update_task(self, **changes: Any) -> None:
        self.task = replace(self.task, **changes)
        self.task.save(self.folder)

    def _environment(self) -> dict[str, str]:
        return {
            "PYTHONIOENCODING": "utf-8",  # or Python writes a log in the code page of Windows
            "PYTHONUNBUFFERED": "1",
            **os.environ,
            **self.slot.environment,
            "MMFW_STOP_TIMEOUT": str(self.runner.stop_timeout),
            "MMF_SAVE_DIR": str(self.folder.path.absolute()),
            "MMFW_STOP_FILE": str(self.folder.stop_file.absolute()),
        }


def _child_command(argv: Sequence[str], shell: bool) -> Sequence[str]:
    if not shell:
        return module_command("mmf_win", *argv[1:]) if argv[0] == "mmfw" else argv
    if sys.platform == "win32":
        return f'{os.environ.get("COMSPEC", "cmd.exe")} /d /s /c "{argv[0]}"'
    return [shutil.which("bash") or "/bin/sh", "-c", argv[0]]


def _find_error_line(log: Path) -> str | None:
    """Return the last error in a log, or else its last line; ``None`` if that is not printable."""
    lines: list[str] = []
    with suppress(OSError):  # the command may have removed it
        lines = [line.strip() for line in read_tail(log, _LOG_TAIL_BYTES).decode(errors="replace").splitlines()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    error_line = (errors or list(filter(None, lines)) or [""])[-1]
    return error_line if error_line.isprintable() else None
