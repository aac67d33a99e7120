"""Runs tests on a Windows Python under Wine, several parts at once.

A Windows process asks Wine's server about each file that it opens, and waits a fifth as long where both run
on the same core. So each part has a core of its own, and a server, which means a Wine prefix.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import windows_python
from _venv import ROOT

_MAX_SECONDS = 1200  # seconds for one of several parts, which takes a few minutes


@dataclass(frozen=True)
class _WineCore:
    """A processor core, and the folder of the Wine that runs there."""

    core: int
    prefix: Path

    def start(self, command: Sequence[str], windows: Path, output: int | None) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["taskset", "--cpu-list", str(self.core), *command],
            cwd=ROOT,
            env={
                **os.environ,
                "MMFW_WINDOWS_PYTHON": str(windows / "python"),
                "MMFW_WINE_PREFIX": self.prefix.name,
                "OMP_NUM_THREADS": "1",
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            start_new_session=True,
        )

    def control_server(self, option: str) -> None:
        """Tell Wine's server to do something; where there is none, nothing happens."""
        environ = {**os.environ, "WINEPREFIX": str(self.prefix)}
        subprocess.run(["wineserver", option], env=environ, stderr=subprocess.DEVNULL, check=False)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def run_parts(parts: Mapping[str, Sequence[str]], windows: Path) -> list[str]:
    """Run each part as soon as there is a core for it; what one of several prints is shown when it ends.

    Args:
        parts: the commands by their names, started in this order.
        windows: the folder of the Windows Python. The commands find its program in MMFW_WINDOWS_PYTHON.

    Returns:
        The names of those that failed.
    """
    cores = sorted(os.sched_getaffinity(0))
    seats = [_WineCore(*pair) for pair in zip(cores, windows_python.wine_prefixes(windows), strict=False)]
    free: SimpleQueue[_WineCore] = SimpleQueue()
    for seat in seats:
        seat.control_server("--kill")  # what an earlier run left behind would run on any core
        free.put(seat)
    started: list[subprocess.Popen[bytes]] = []

    def run_part(name: str, command: Sequence[str]) -> bool:
        alone = len(parts) == 1
        seat, since = free.get(), time.monotonic()
        try:
            process = seat.start(command, windows, None if alone else subprocess.PIPE)
            started.append(process)
            try:
                output, _ = process.communicate(timeout=None if alone else _MAX_SECONDS)
            except subprocess.TimeoutExpired:  # a crashed Python may hang under Wine
                print(f"{name}: ended after {_MAX_SECONDS} s", flush=True)
                _kill(process)
                seat.control_server("--kill")
                output, _ = process.communicate()
        finally:
            free.put(seat)
        end = f"{'failed' if process.returncode else 'passed'}: {name} ({time.monotonic() - since:.1f} s)\n"
        sys.stdout.write((output or b"").decode("utf-8", "replace") + end)
        sys.stdout.flush()
        return process.returncode == 0

    print(f"On Windows CPython under Wine, {len(seats)} at a time: {'; '.join(parts)}.", flush=True)
    with ThreadPoolExecutor(len(seats)) as pool:
        try:
            passed = list(pool.map(run_part, parts.keys(), parts.values()))
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in started:
                _kill(process)
            for seat in seats:
                seat.control_server("--kill")
            raise
    return [name for name, good in zip(parts, passed, strict=True) if not good]
