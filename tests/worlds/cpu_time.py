"""Pytest hooks that measure the CPU seconds of each test and print them by folder.

tests/conftest.py imports the hooks. The time of a test includes its process, the child processes that it has waited
for, and the workers that tests/worlds/fork_server.py has forked for it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "MMFW_TEST_CPU_TIMES"
"""Environment variable with the file to which the fork server appends the CPU seconds of each worker, one per line."""

_PROPERTY = "CPU seconds"
_START_KEY = pytest.StashKey[float]()
_seconds_by_folder: Counter[str] = Counter()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Record the CPU time before a test and its fixtures start."""
    item.stash[_START_KEY] = _cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Add the time of a test to the report of its last phase, which xdist sends to the main process."""
    report = yield
    if call.when == "teardown":
        cpu_seconds = _cpu_seconds() - item.stash[_START_KEY] + _worker_cpu_seconds()
        report.user_properties.append((_PROPERTY, cpu_seconds))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add the time of a test to that of its folder."""
    times = [value for name, value in report.user_properties if name == _PROPERTY]
    if report.when == "teardown" and times:
        parts = report.location[0].replace("\\", "/").split("/")
        _seconds_by_folder["/".join(parts[:2]) if len(parts) > 2 else parts[0]] += times[-1]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the CPU seconds by folder."""
    if sum(_seconds_by_folder.values()) < 10:
        return
    times_by_folder = (f"{folder} {seconds:.0f}" for folder, seconds in _seconds_by_folder.most_common())
    terminalreporter.write_line(f"CPU seconds: {sum(_seconds_by_folder.values()):.0f}; {', '.join(times_by_folder)}")


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of the children that it has waited for."""
    return sum(os.times()[:4])


def _worker_cpu_seconds() -> float:
    """Return the CPU time that forked workers have recorded since the last call."""
    file = Path(os.environ.get(VARIABLE, ""))
    if not file.is_file():
        return 0
    renamed_file = file.replace(file.with_name("taken"))  # workers may append to a new file at the same time
    lines = renamed_file.read_text(encoding="ascii").split()
    return sum(map(float, lines))
