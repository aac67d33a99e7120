"""Runs the commands of one task in order, here or on another machine."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mmf_win.console import shell_line
from mmf_win.errors import DataError
from mmf_win.locking import locked
from mmf_win.paths import module_command
from mmf_win.protocol import Event, EventReader
from mmf_win.runs import checkpoints, history
from mmf_win.runs.folder import Run
from mmf_win.supervise import run_child
from mmf_win.sweeps import templates
from mmf_win.sweeps.folder import SweepFolder, TaskFolder, read_yaml, write_yaml

_POLITE = 5.0  # seconds for a program that knows the stop file, before it gets SIGTERM
_LOOKS = 5  # a look for a new run costs more than one for new events
_TAIL = 4096  # bytes of a log in which the error is looked for
_AFTER_A_KILL = 60.0  # seconds that another process may still hold the task

Resume = Callable[[Sequence[str], Run], list[str]]
"""Turns the words of ``mmfw train …`` into those that resume the run that they began."""


@dataclass(frozen=True)
class Job:
    """All that it takes to run a task, in values that can be sent to another machine.

    Attributes:
        output: the sweep's folder, as it was named.
        name, full_name: of the task; see :class:`mmf_win.sweeps.tasks.Task`.
        templates: the commands to run, in order.
        values: what fills them.
        shell: give them to a shell.
        began: command → its words when it was begun (``script``), and its run (``run``), which is resumed
            where the words are the same.
        time: when the sweep was started, for the names of logs.
        environment: variables for the commands.
        patience: seconds without progress after which a command that was asked to leave is killed.
    """

    output: str
    name: str
    full_name: str
    templates: dict[str, str]
    values: dict[str, Any]
    shell: bool
    began: dict[str, dict[str, str]]
    time: str
    environment: dict[str, str] = field(default_factory=dict)
    patience: float = 60.0

    @property
    def folder(self) -> TaskFolder:
        """The task's folder."""
        return SweepFolder(Path(self.output)).task(self.name)

    @property
    def meta(self) -> dict[str, str]:
        """The placeholders that are no parameters."""
        return {"_output": str(self.folder.path), "_name": self.name, "_time": self.time}


@dataclass(frozen=True)
class Ending:
    """How a task ended.

    Attributes:
        state: ``stopped`` where it is to go on later.
        message: at which command it failed, and why.
    """

    state: Literal["success", "failed", "stopped"]
    message: str | None = None


@dataclass
class Watcher:
    """Is told how a task proceeds; does nothing by itself."""

    def begins(self, command: str, script: str | None) -> None:
        """A command is started: ``script`` are its words, or None where it resumes its training."""

    def trains(self, command: str, run: str) -> None:
        """A command trains a run of mmfw's, in this folder of the task's."""

    def finished(self, command: str) -> None:
        """A command ended well."""

    def event(self, event: Event) -> None:
        """A training of mmfw's wrote an event."""

    def output(self, text: str) -> None:
        """A command printed something."""


def run(job: Job, resume: Resume, watcher: Watcher, stops: Callable[[], int] = lambda: 0) -> Ending:
    """Run a task's commands until one fails.

    Args:
        job: the task.
        resume: how a training goes on.
        watcher: is told what happens.
        stops: how often an end was asked for: once lets the command save and leave, twice kills it.

    Raises:
        OSError: the folder cannot be written.
    """
    folder = job.folder
    folder.path.mkdir(parents=True, exist_ok=True)
    with locked(folder.lock, _AFTER_A_KILL) as held:
        filled = {name: _fill(template, job) for name, template in job.templates.items()}
        scripts = read_yaml(folder.param).get("_scripts", {}) | {
            name: words[0] if job.shell else shell_line(*words) for name, words in filled.items()
        }
        meta = {**job.meta, "_name": job.full_name, "_scripts": scripts}
        write_yaml(folder.param, {**job.values, **meta})
        for name, words in filled.items():
            if stops():
                return Ending("stopped")
            script = _script(job, name)
            trains = list(words[:2]) == ["mmfw", "train"]
            begun = _begun(folder, job.began.get(name, {}), script) if trains else None
            if begun is None or history.state(begun) != "done":  # the driver may have died just after its end
                if begun is not None and checkpoints.can_resume(begun):
                    watcher.begins(name, None)
                    words = resume(words, begun)
                else:
                    watcher.begins(name, script)
                ending = _run_command(job, name, words, held, watcher, stops)
                if ending.state != "success":
                    return ending
            watcher.finished(name)
    return Ending("success")


def _run_command(
    job: Job, name: str, words: Sequence[str], held: int, watcher: Watcher, stops: Callable[[], int]
) -> Ending:
    folder, log = job.folder, job.folder.log(name, job.time)
    _note(folder, name, "running")
    ours = not job.shell and words[0] == "mmfw"
    has_ours = ours or (job.shell and "mmfw " in words[0])
    try:
        ended = run_child(
            _program(words, job.shell),
            log=log,
            environment=_environment(job),
            stop_file=folder.stop.absolute(),
            exit_file=None,
            watch=_Watch(folder, name, log, watcher),
            on_stop=lambda: None,
            patience=job.patience,
            orphaned=None if has_ours else 0.0,
            terminate=None if has_ours else _POLITE,
            held=[held],
            stops=stops,
        )
    except FileNotFoundError as error:  # on Linux a process that mmfw starts first finds that out
        log.write_text(f"{words[0]}: {error.strerror}\n", encoding="utf-8")
        ended = None
    # A program that was asked to leave may end with 0, too; of mmfw it is known that it had done all.
    asked = ended is not None and ended.stop_requested
    if ended is not None and ended.code == 0 and not ended.killed and (ours or not asked):
        _note(folder, name, "finished")
        return Ending("success")
    if asked:
        _note(folder, name, "stopped")
        return Ending("stopped")
    _note(folder, name, "failed")
    why = _last_words(log)
    return Ending(
        "failed", f"{name}: {why if why.isprintable() and why else f'exit code {ended and ended.code}'}"
    )


class _Watch:
    """Hands on what a command does; called several times a second, it says whether there was progress."""

    def __init__(self, folder: TaskFolder, command: str, log: Path, watcher: Watcher) -> None:
        self._folder, self._command, self._log, self._watcher = folder, command, log, watcher
        self._read = log.stat().st_size if log.exists() else 0
        self._calls = 0
        before = folder.newest_run()
        self._readers = {} if before is None else {before.path: EventReader(before.events, from_end=True)}

    def __call__(self) -> bool:
        self._calls += 1
        if self._calls % _LOOKS == 0:
            with suppress(DataError):
                run = self._folder.newest_run()
                if run is not None and run.path not in self._readers:
                    self._readers[run.path] = EventReader(run.events)
                    self._watcher.trains(self._command, run.path.relative_to(self._folder.path).as_posix())
        events = [event for reader in self._readers.values() for event in reader.poll()]
        for event in events:
            self._watcher.event(event)
        with suppress(OSError), self._log.open("rb") as file:
            file.seek(self._read)
            new = file.read()
            self._read += len(new)
            if new:
                self._watcher.output(new.decode(errors="replace"))
        return bool(events)


def _fill(template: str, job: Job) -> list[str]:
    values = {**job.values, **job.meta}
    return [templates.line(template, values)] if job.shell else templates.words(template, values)


def _script(job: Job, name: str) -> str:
    """The words of a command, but for what differs between one start of a sweep and the next."""
    values = {**job.values, **dict.fromkeys(templates.RESERVED, "")}
    return shell_line(*templates.words(job.templates[name], values))


def _begun(folder: TaskFolder, began: Mapping[str, str], script: str) -> Run | None:
    """The run that an earlier start of the same words has begun; None where there is none."""
    run = Run(folder.path / began.get("run", ""))
    if "run" not in began or began.get("script") != script:
        return None
    with suppress(DataError):
        return run if run.request_file.is_file() and history.state(run) else None
    return None


def _program(words: Sequence[str], shell: bool) -> Sequence[str]:
    if shell and sys.platform == "win32":
        return f'{os.environ.get("COMSPEC", "cmd.exe")} /d /s /c "{words[0]}"'
    if shell:
        return [shutil.which("bash") or "/bin/sh", "-c", words[0]]
    return module_command("mmf_win", *words[1:]) if words[0] == "mmfw" else words


def _environment(job: Job) -> dict[str, str]:
    folder = job.folder
    return {
        "PYTHONIOENCODING": "utf-8",  # or Python writes a log in the code page of Windows
        "PYTHONUNBUFFERED": "1",
        **os.environ,
        **job.environment,
        "MMF_SAVE_DIR": str(folder.path.absolute()),
        "MMFW_STOP_FILE": str(folder.stop.absolute()),
    }


def _note(folder: TaskFolder, command: str, state: str) -> None:
    write_yaml(folder.stat, read_yaml(folder.stat) | {command: state})


def _last_words(log: Path) -> str:
    """The error in a log: its last line that says so, else its last line."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    except OSError:
        return ""
    lines = [line for line in lines if line]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or [""])[-1]
