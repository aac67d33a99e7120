"""Sweeps of real processes: killed drivers, concurrent drivers, stops, and repeated runs."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from mmf_win.errors import InUseError
from mmf_win.locking import file_lock
from mmf_win.machine import available_cpus
from mmf_win.signals import FORCE_STOP_AFTER_SECONDS
from mmf_win.sweeps.folder import SweepFolder, remove_sweep
from mmf_win.sweeps.task_runner import create_local_slots
from tests.worlds.fake_nvml import FakeNvml
from tests.worlds.small_sweeps import (
    gated_command,
    load_tasks_by_name,
    python_command,
    read_journal,
    start_sweep_command,
)

KILLS, TASKS = (20, 40) if sys.platform != "win32" else (2, 6)  # each start takes seconds under Wine
_TIMEOUT_SECONDS = 60

requires_signals = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals for a process")


class Sweep:
    """Sweep of programs, and the processes that drive it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.output, self.file = folder, folder / "output", folder / "params.yaml"
        self.drivers: list[subprocess.Popen[str]] = []

    def write(self, choice: int | dict[str, list[Any]], *templates: str) -> None:
        """Write a specification with this choice, or with this number of tasks."""
        values = choice if isinstance(choice, dict) else {"n": list(range(choice))}
        head = {"template": {f"c{n}": text for n, text in enumerate(templates)}, "resource": ["cpu", "cpu"]}
        self.file.write_text(yaml.safe_dump_all([head, values], allow_unicode=True), encoding="utf-8")

    def write_search(self, trials: int) -> None:
        """Write the specification of a search that runs gated commands and then scores them."""
        scores = "import pathlib, sys; pathlib.Path(sys.argv[1], 'score.json').write_text('[1]')"
        template = {"c": gated_command(self.folder), "score": python_command(self.folder, scores, "{_output}")}
        search = {"trials": trials, "sampler": "random", "metric": "score.json:0"}
        search["parameters"] = {"n": {"low": 1, "high": 10**6}}
        head = {"template": template, "resource": ["cpu", "cpu"], "search": search}
        self.file.write_text(yaml.safe_dump(head), encoding="utf-8")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a driver."""
        driver = start_sweep_command("run", self.file, "-o", self.output, *arguments)
        self.drivers.append(driver)
        return driver

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run a driver to its end; return its exit code and its output."""
        driver = self.start(*arguments)
        output, _ = driver.communicate(timeout=_TIMEOUT_SECONDS)
        return driver.returncode, output

    @property
    def counts(self) -> Counter[str]:
        """Number of starts and ends, per task and in total."""
        lines = read_journal(self.folder)
        return Counter([*lines, *(line.split()[0] for line in lines)])

    @property
    def states(self) -> dict[str, str]:
        """States of the tasks."""
        return {name: task.state for name, task in load_tasks_by_name(self.output).items()}

    def open(self, name: object = None) -> None:
        """Let the command of a task continue, or all commands."""
        (self.folder / ("open" if name is None else f"open-{name}")).touch()

    def wait_until_started(self, count: int) -> None:
        """Wait until this number of commands have started in total."""
        _wait_until(lambda: self.counts["begin"] >= count)


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def sweep(user_dir: Path) -> Iterator[Sweep]:
    """Return a sweep whose drivers end with the test."""
    sweep = Sweep(user_dir)
    yield sweep
    for driver in sweep.drivers:
        driver.kill()
        driver.communicate(timeout=_TIMEOUT_SECONDS)


@pytest.mark.wide
def test_each_task_finishes_once_when_drivers_are_killed(sweep: Sweep) -> None:
    sweep.write(TASKS, gated_command(sweep.folder))
    for kill in range(KILLS):
        start_count = sweep.counts["begin"]
        driver = sweep.start()
        sweep.wait_until_started(start_count + 2)
        running_task = next(name for name, state in sweep.states.items() if state == "running")
        sweep.open(running_task.removeprefix("N_"))
        _wait_until(lambda name=running_task: sweep.states[name] == "success")  # type: ignore[misc]
        sweep.wait_until_started(start_count + 3)
        driver.kill()  # two tasks are running
        driver.wait()
        # A command that is about to be killed holds the lock of its task until then.
        _wait_until(lambda: "running" not in sweep.states.values())
        assert Counter(sweep.states.values())["success"] == kill + 1
    sweep.open()
    assert sweep.run()[0] == 0
    assert [sweep.counts[f"end {n}"] for n in range(TASKS)] == [1] * TASKS
    assert set(sweep.states.values()) == {"success"}
    assert sweep.counts["begin"] > TASKS


def test_two_drivers_never_run_a_task_twice(sweep: Sweep) -> None:
    sweep.write(TASKS, gated_command(sweep.folder))
    sweep.start()
    sweep.start()
    sweep.wait_until_started(4)  # two commands of each driver
    sweep.open()
    for driver in sweep.drivers:
        driver.communicate(timeout=_TIMEOUT_SECONDS)
    assert [sweep.counts[f"begin {n}"] for n in range(TASKS)] == [1] * TASKS
    assert sweep.counts["end"] == TASKS


def test_each_driver_of_a_search_reports_all_trials(sweep: Sweep) -> None:
    pytest.importorskip("optuna")
    sweep.write_search(4)
    drivers = [sweep.start(), sweep.start()]
    sweep.wait_until_started(4)
    sweep.open()
    for driver in drivers:
        output, _ = driver.communicate(timeout=_TIMEOUT_SECONDS)
        assert "4 tasks in" in output
    assert sweep.counts["end"] == 4


@pytest.mark.parametrize("search", [False, True], ids=["of a choice", "of a search"])
def test_tasks_of_a_killed_driver_are_finished_by_another(sweep: Sweep, search: bool) -> None:
    sweep.write(4, gated_command(sweep.folder))
    if search:
        pytest.importorskip("optuna")
        sweep.write_search(4)
    killed = sweep.start()
    sweep.wait_until_started(2)
    other = sweep.start()
    sweep.wait_until_started(4)
    for line in read_journal(sweep.folder)[2:4]:
        sweep.open(line.split()[1])
    _wait_until(lambda: Counter(sweep.states.values()) == {"running": 2, "success": 2})
    assert other.stdout is not None
    assert any("waiting for 2 tasks" in line for line in iter(other.stdout.readline, ""))
    killed.kill()
    killed.wait()
    sweep.wait_until_started(6)  # once all processes of the killed driver have ended
    sweep.open()
    output, _ = other.communicate(timeout=_TIMEOUT_SECONDS)
    assert other.returncode == 0 and "4 success" in output
    assert (sweep.counts["begin"], sweep.counts["end"]) == (6, 4)


def test_failed_task_restarts_at_its_failed_command(sweep: Sweep) -> None:
    program = "import pathlib, sys; sys.exit(0 if pathlib.Path(sys.argv[1], 'luck').exists() else 'no luck')"
    sweep.open()
    failing_command = python_command(sweep.folder, program, shlex.quote(sweep.folder.as_posix()))
    sweep.write(2, gated_command(sweep.folder), failing_command)
    code, output = sweep.run()
    assert code == 7 and "c1: no luck" in output and "--failed" in output
    assert set(sweep.states.values()) == {"failed"}
    sweep.write(3, gated_command(sweep.folder), failing_command)
    (sweep.folder / "luck").touch()
    assert sweep.run("--failed")[0] == 0
    assert sweep.counts["begin"] == 2, "neither a successful command nor a task that has not failed may run"
    assert sweep.run("--force")[0] == 0
    assert sweep.counts["begin"] == 5


@pytest.mark.skipif(sys.platform == "win32", reason="Windows removes no file that is open")
def test_command_that_removes_its_log_fails_with_its_exit_code(sweep: Sweep) -> None:
    program = "import pathlib, sys; [log.unlink() for log in pathlib.Path(sys.argv[1]).glob('log.*')]; sys.exit(3)"
    sweep.write(1, python_command(sweep.folder, program, "{_output}"))
    code, output = sweep.run()
    assert code == 7 and "c0: exit code 3" in output


def test_only_selected_commands_run_and_the_others_run_later(sweep: Sweep) -> None:
    sweep.open()
    sweep.write(2, gated_command(sweep.folder), python_command(sweep.folder, "print(3)"))
    code, output = sweep.run("-c", "c1")
    assert code == 0 and "2 success" in output and sweep.counts["begin"] == 0
    assert sweep.run()[0] == 0
    assert sweep.counts["begin"] == 2
    assert len([*(sweep.output / "N_0").glob("log.c1.*")]) == 1


def test_driver_with_one_command_leaves_the_other_commands(sweep: Sweep) -> None:
    sweep.write(4, gated_command(sweep.folder), python_command(sweep.folder, "print(3)"))
    full = sweep.start()
    sweep.wait_until_started(2)
    partial = sweep.start("-c", "c0")
    sweep.wait_until_started(4)
    sweep.open()
    for driver in (full, partial):
        driver.communicate(timeout=_TIMEOUT_SECONDS)
    assert sweep.counts["begin"] == 4
    assert sweep.run()[0] == 0  # commands that the second driver left after the first had ended
    assert len([*sweep.output.glob("*/log.c1.*")]) == 4 and sweep.counts["begin"] == 4


def test_task_that_cannot_run_fails_alone(sweep: Sweep) -> None:
    sweep.open()
    sweep.write(2, gated_command(sweep.folder))
    sweep.output.mkdir()
    (sweep.output / "N_0").write_text("in the way", encoding="utf-8")
    code, output = sweep.run()
    assert code == 7 and "Traceback" not in output
    assert "1 success" in output and "1 failed" in output
    assert sweep.states == {"N_0": "queued", "N_1": "success"}


_EXITS_BY_STOP_FILE = """
import os, pathlib, threading, time
def leave():
    while not pathlib.Path(os.environ["MMFW_STOP_FILE"]).exists():
        time.sleep(0.01)
    print("saved", flush=True)
    os._exit(0)
threading.Thread(target=leave, daemon=True).start()
"""
_EXITS_BY_SIGNAL = """
import signal, sys
def leave(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
"""


@requires_signals
@pytest.mark.parametrize(
    ("name", "program"),
    [("SIGINT", _EXITS_BY_STOP_FILE), ("SIGTERM", _EXITS_BY_STOP_FILE), ("SIGINT", _EXITS_BY_SIGNAL)],
    ids=["Ctrl+C", "SIGTERM", "signal for a command without a stop file"],
)
def test_first_stop_lets_commands_exit_and_keeps_the_queue(sweep: Sweep, name: str, program: str) -> None:
    sweep.write(4, gated_command(sweep.folder, program))
    driver = sweep.start()
    sweep.wait_until_started(2)
    driver.send_signal(getattr(signal, name))
    output, _ = driver.communicate(timeout=_TIMEOUT_SECONDS)
    assert driver.returncode == 130
    assert "run `mmfw sweep run" in output
    assert list(sweep.states.values()) == ["queued"] * 4  # stopped commands did not finish
    assert [log.read_text(encoding="utf-8") for log in sweep.output.glob("*/log.*")] == ["saved\n"] * 2


@requires_signals
def test_second_ctrl_c_kills_commands_that_do_not_exit(sweep: Sweep) -> None:
    sweep.write(2, gated_command(sweep.folder, "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"))
    driver = sweep.start()
    sweep.wait_until_started(2)
    driver.send_signal(signal.SIGINT)
    assert driver.stdout is not None
    while "stay queued" not in driver.stdout.readline():
        pass
    time.sleep(FORCE_STOP_AFTER_SECONDS)  # the first Ctrl+C was counted before its message was printed
    driver.send_signal(signal.SIGINT)
    driver.communicate(timeout=_TIMEOUT_SECONDS)
    assert driver.returncode == 130
    sweep.open()
    assert sweep.run()[0] == 0
    assert (sweep.counts["begin"], sweep.counts["end"]) == (4, 2)  # the first two were killed


@requires_signals
def test_forced_tasks_not_started_before_a_stop_run_later(sweep: Sweep) -> None:
    sweep.open()
    sweep.write(3, gated_command(sweep.folder))
    assert sweep.run()[0] == 0
    (sweep.folder / "open").unlink()
    driver = sweep.start("--force")
    sweep.wait_until_started(5)
    driver.send_signal(signal.SIGINT)
    driver.communicate(timeout=_TIMEOUT_SECONDS)
    assert list(sweep.states.values()) == ["queued"] * 3
    sweep.open()
    assert sweep.run()[0] == 0
    assert [sweep.counts[f"end {n}"] for n in range(3)] == [2] * 3


def test_missing_program_fails_its_task(sweep: Sweep) -> None:
    sweep.write(1, "there-is-no-such-program {n}")
    code, output = sweep.run()
    assert code == 7
    assert "c0: " in output and "there-is-no-such-program" in output


def test_values_are_passed_unchanged_to_commands(sweep: Sweep) -> None:
    values = ["two words", "quote's", 'double "d"', "$HOME `x`", "back\\slash", "Привет", "[n]", "{n}", "%PATH%"]
    program = "import sys, json; print(json.dumps(sys.argv[1:]))"
    sweep.write({"v": values}, *(python_command(sweep.folder, program, placeholder) for placeholder in ("{v}", "[v]")))
    assert sweep.run()[0] == 0
    printed = [json.loads(log.read_text(encoding="utf-8")) for log in sweep.output.glob("*/log.*")]
    assert sorted(printed) == sorted([*([value] for value in values), *(["--v", value] for value in values)])


def test_slots_share_the_threads_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    slots = create_local_slots(["cpu"], 2)
    assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in slots] == ["-1", "-1"]
    assert {slot.environment["OMP_NUM_THREADS"] for slot in slots} == {str(max(1, available_cpus() // 2))}
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert create_local_slots(["cpu"], 2)[0].environment["OMP_NUM_THREADS"] == "3"


def test_training_uses_all_gpus_of_its_slot_with_fake_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    several, one = (slot.environment for slot in create_local_slots(["0,1", "1"], None))
    assert (several["CUDA_VISIBLE_DEVICES"], several["MMFW_NPROC"]) == ("0,1", "auto")
    assert "MMFW_NPROC" not in one


def test_output_that_is_a_file_is_an_error(sweep: Sweep) -> None:
    sweep.write(1, "echo")
    sweep.output.write_text("mine", encoding="utf-8")
    code, output = sweep.run()
    assert code == 2 and "output" in output and "Traceback" not in output
    assert sweep.output.read_text(encoding="utf-8") == "mine"


def test_driver_waits_for_a_task_that_another_driver_is_finishing(sweep: Sweep) -> None:
    sweep.open()
    sweep.write(1, gated_command(sweep.folder))
    assert sweep.run()[0] == 0
    [task], [folder] = (load_tasks_by_name(sweep.output).values(), [SweepFolder(sweep.output).task_folder("N_0")])
    with file_lock(folder.lock):
        replace(task, state="running").save(folder)  # the last command is already recorded as finished
        driver = sweep.start()
        assert driver.stdout is not None
        assert any("waiting for 1 tasks" in line for line in iter(driver.stdout.readline, ""))
        task.save(folder)
    output, _ = driver.communicate(timeout=_TIMEOUT_SECONDS)
    assert driver.returncode == 0 and "1 success" in output and "running" not in output


def test_sweep_is_not_removed_between_two_tasks_of_a_driver(sweep: Sweep) -> None:
    sweep.write(1, gated_command(sweep.folder))
    driver = sweep.start()
    sweep.wait_until_started(1)
    with pytest.raises(InUseError, match="is in use by"):
        remove_sweep(SweepFolder(sweep.output))
    sweep.open()
    driver.communicate(timeout=_TIMEOUT_SECONDS)
    remove_sweep(SweepFolder(sweep.output))
    assert not sweep.output.exists()
