"""Runs the commands of one task in order, in a slot of this machine or of another one."""

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
from mmf_win.supervise import ChildExit, run_child
from mmf_win.sweeps.folder import SweepFolder, Task, TaskFolder, TaskState, load_task, write_yaml
from mmf_win.sweeps.specification import (
    CPU,
    OTHER_GPUS_HINT,
    RESERVED_PLACEHOLDERS,
    render_argv,
    render_shell_line,
)

_SIGTERM_DELAY_SECONDS = 5.0  # seconds for a program that knows the stop file, before it gets SIGTERM
_POLLS_PER_RUN_SEARCH = 5  # a look for a new run costs more than one for new events
_LOG_TAIL_BYTES = 4096  # bytes of a log in which the error is looked for

#: Lets ``mmfw train`` use all GPUs of its slot.
ALL_GPUS_ENVIRONMENT = {"MMFW_NPROC": "auto"}

#: Turns the words of ``mmfw train …`` into those that resume the run that they began.
ResumeCallback = Callable[[Sequence[str], Run], list[str]]
#: What is told of a task that runs: itself as it begins, an event of its training, or what it prints.
TaskUpdate: TypeAlias = Task | Event | str
OnUpdate: TypeAlias = Callable[[TaskUpdate], None]


@dataclass(frozen=True)
class Slot:
    """Room for one task at a time.

    Attributes:
        resource: the GPUs that it has, as CUDA_VISIBLE_DEVICES names them, or ``cpu``.
        gpus: how many of a cluster, which chooses them itself.
    """

    number: int
    resource: str
    environment: Mapping[str, str]
    gpu_count: int = 0


def local_slots(resources: Sequence[str] | None, count: int | None) -> list[Slot]:
    """The slots of this machine: one a resource, or a ``count`` of them, which share the resources in turn.

    Without ``resources``, these are its GPUs, else the CPU. Raises UsageError where it lacks one.
    """
    found = [str(number) for number in range(len(machine.installed_gpus()))]
    if resources is None:
        named = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(found)).split(",")
        resources = [name for name in named if name not in ("", "-1")] or [CPU]
    for resource in resources:
        for gpu in () if resource == CPU else map(str.strip, resource.split(",")):
            if gpu not in found and not gpu.startswith(("GPU-", "MIG-")):
                there = f"it has {', '.join(found)}" if found else "it has none that NVIDIA's driver knows"
                raise UsageError(f"this machine has no GPU {gpu}; {there}", hint=OTHER_GPUS_HINT)
    chosen = list(islice(cycle(resources), count or len(resources)))
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, machine.available_cpus() // len(chosen))))
    visible = [{"CUDA_VISIBLE_DEVICES": "-1" if name == CPU else name} for name in chosen]
    shared = [
        {"OMP_NUM_THREADS": threads, **(ALL_GPUS_ENVIRONMENT if "," in name else {})} for name in chosen
    ]
    return [Slot(n, name, visible[n] | shared[n]) for n, name in enumerate(chosen)]


class TaskSignals(NamedTuple):
    """What is asked of a task that runs.

    Attributes:
        stops: how often an end was asked for: once lets the command save and leave, twice kills it.
        pruned: whether that is because it has fallen behind.
    """

    stop_count: int = 0
    is_pruned: bool = False


@dataclass(frozen=True)
class TaskRunner:
    """How a driver's tasks are run; it can be sent to another machine.

    Attributes:
        template: the commands that may be run, in order.
        time: when the sweep was started, for the names of logs.
        patience: seconds without progress after which a command that was asked to leave is killed.
        aloud: whether what the commands print is told, too.
    """

    sweep: SweepFolder
    template: Mapping[str, str]
    shell: bool
    resume: ResumeCallback
    timestamp: str
    stop_timeout: float = CommandOptions.stop_timeout
    echo_output: bool = False

    def build_command(self, task: Task, name: str) -> list[str]:
        """The words of a task's command; one for a shell is a single line."""
        values = {**task.values, **self.reserved_values(task)}
        template = self.template[name]
        return [render_shell_line(template, values)] if self.shell else render_argv(template, values)

    def reserved_values(self, task: Task) -> dict[str, str]:
        """The placeholders that are no parameters."""
        return {
            "_output": str(self.sweep.task_folder(task.name).path),
            "_name": task.name,
            "_time": self.timestamp,
        }

    def run(
        self,
        task: Task,
        slot: Slot,
        on_update: OnUpdate,
        get_signals: Callable[[], TaskSignals] = TaskSignals,
    ) -> Task:
        """Claim a task, given as it was when the driver began, and run its commands until one fails.

        Returns it as it is now: ``running`` where somebody else has it, ``queued`` where it was stopped.
        Raises OSError where its folder cannot be written.
        """
        folder = self.sweep.task_folder(task.name)
        folder.path.mkdir(parents=True, exist_ok=True)
        try:
            with file_lock(folder.lock, in_use_error=InUseError(f"{folder.path} is running")) as held:
                known = load_task(folder) or task
                if task.matches(known):
                    if known.starts > task.starts and known.state in ("failed", "pruned"):
                        return known  # another driver was faster
                    return _TaskExecution(
                        self, known.with_planned_commands(task), slot, folder, held, on_update, get_signals
                    ).run()
        except InUseError:
            return replace(task, state="running")
        # Another driver was asked for other values that are written alike.
        return self.run(task.with_unique_name(), slot, on_update, get_signals)


@dataclass
class _TaskExecution:
    """A task that this process has claimed, and holds the lock of as ``held``."""

    runner: TaskRunner
    task: Task
    slot: Slot
    folder: TaskFolder
    lock_fd: int
    on_update: OnUpdate
    get_signals: Callable[[], TaskSignals]

    def run(self) -> Task:
        """Run what is left of it; return what it is then."""
        left = [name for name in self.runner.template if name in self.task.remaining_commands]
        if not left:
            return replace(self.task, state="success")
        began = time.monotonic()
        where, starts = self.slot.resource, self.task.starts + 1
        self.task = replace(self.task, state="running", command=None, message=None, slot=where, starts=starts)
        self.on_update(self.task)
        try:
            state, message = self._run_commands(left)
        except Exception as error:  # of one task; the others go on
            state, message = "failed", f"{type(error).__name__}: {error}"
        command = self.task.command if state == "failed" else None
        seconds = self.task.seconds + time.monotonic() - began
        self._update_task(state=state, message=message, command=command, slot=None, seconds=seconds)
        return self.task

    def _run_commands(self, names: Sequence[str]) -> tuple[TaskState, str | None]:
        """Run commands until one fails; return how they ended, and why where one failed."""
        filled = {name: self.runner.build_command(self.task, name) for name in names}
        write_yaml(self.folder.param, {**self.task.values, **self.runner.reserved_values(self.task)})
        for name, words in filled.items():
            if self.get_signals().stop_count:
                return self._stop_state(), None
            # But for what differs between one start of a sweep and the next.
            values = {**self.task.values, **dict.fromkeys(RESERVED_PLACEHOLDERS, "")}
            script = format_command(*render_argv(self.runner.template[name], values))
            begun = self._find_started_run(name, script) if list(words[:2]) == ["mmfw", "train"] else None
            if begun is None or history.run_state(begun) != "done":  # else all had died just after its end
                if begun is not None and checkpoints.can_resume(begun):
                    self._update_task(command=name)
                    words = self.runner.resume(words, begun)
                else:
                    self._update_task(command=name, runs={**self.task.runs, name: {"script": script}})
                state, message = self._run_command(name, words)
                if state != "success":
                    return state, message
            self._update_task(finished=(*self.task.finished, name))
        return "success", None

    def _run_command(self, name: str, argv: Sequence[str]) -> tuple[TaskState, str | None]:
        how, folder = self.runner, self.folder
        log = folder.path / f"log.{name}.{how.timestamp}"
        ours = not how.shell and argv[0] == "mmfw"
        has_ours = ours or (how.shell and "mmfw " in argv[0])
        try:
            ended = run_child(
                _child_command(argv, how.shell),
                log=log,
                environment=self._environment(),
                stop_file=folder.stop_file.absolute(),
                poll_progress=self._make_watcher(name, log),
                stop_timeout=2 * how.stop_timeout,  # the command's own comes first
                terminate_after=None if has_ours else _SIGTERM_DELAY_SECONDS,
                inherited_fds=[self.lock_fd],
                stop_count=lambda: self.get_signals().stop_count,
            )
        except FileNotFoundError as error:  # on Linux a process that mmfw starts first finds that out
            log.write_text(f"{argv[0]}: {error.strerror}\n", encoding="utf-8")
            ended = ChildExit(127, stop_requested=False, killed=False)
        # A program that was asked to leave may end with 0, too; of mmfw it is known that it had done all.
        if ended.exit_code == 0 and not ended.killed and (ours or not ended.stop_requested):
            return "success", None
        if ended.stop_requested:
            return self._stop_state(), None
        return "failed", f"{name}: {_find_error_line(log) or f'exit code {ended.exit_code}'}"

    def _find_started_run(self, name: str, script: str) -> Run | None:
        """The run that an earlier start of the same words has begun; None where there is none."""
        known = self.task.runs.get(name, {})
        if "run" not in known or known.get("script") != script:
            return None
        run = Run(self.folder.path / known["run"])
        with suppress(DataError):
            if run in list_runs(self.folder.path) and history.run_state(
                run
            ):  # no folder outside, nor a lost one
                return run
        return None

    def _make_watcher(self, name: str, log: Path) -> Callable[[], bool]:
        """What hands on what a command does; called several times a second, it says if there was progress."""
        read = log.stat().st_size if log.exists() else 0
        before = self.folder.newest_run()
        readers = {} if before is None else {before.path: EventReader(before.events, from_end=True)}
        calls = 0

        def watch() -> bool:
            nonlocal calls, read
            calls += 1
            run = None if calls % _POLLS_PER_RUN_SEARCH else self.folder.newest_run()
            if run is not None and run.path not in readers:
                readers[run.path] = EventReader(run.events)
                where = run.path.relative_to(self.folder.path).as_posix()
                self._update_task(runs={**self.task.runs, name: {**self.task.runs[name], "run": where}})
            events = [event for reader in readers.values() for event in reader.poll()]
            for event in events:
                self.on_update(event)
            if self.runner.echo_output:
                with suppress(OSError), log.open("rb") as file:
                    file.seek(read)
                    if new := file.read():
                        read += len(new)
                        self.on_update(new.decode(errors="replace"))
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
    """The error in a log: its last line that says so, else its last line; None where it is not printable."""
    lines: list[str] = []
    with suppress(OSError):  # the command may have removed it
        lines = [
            line.strip() for line in read_tail(log, _LOG_TAIL_BYTES).decode(errors="replace").splitlines()
        ]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    words = (errors or list(filter(None, lines)) or [""])[-1]
    return words if words.isprintable() else None
