"""Run tests on a Windows Python under Wine, several parts at once.

A Windows process asks Wine's server about each file that it opens, and waits a fifth of the time if both run
on the same core. Therefore each part has its own core and its own server, which requires its own Wine prefix.
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

_MAX_SECONDS = 1200  # for one of several parts, which usually takes a few minutes


@dataclass(frozen=True)
class _WineCore:
    """CPU core, and the Wine prefix that is used on it."""

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
        """Call ``wineserver`` with an option; without a running server, nothing happens."""
        environ = {**os.environ, "WINEPREFIX": str(self.prefix)}
        subprocess.run(["wineserver", option], env=environ, stderr=subprocess.DEVNULL, check=False)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def run_parts(parts: Mapping[str, Sequence[str]], windows: Path) -> list[str]:
    """Run each part on the next free core; with several parts, show the output of each when it ends.

    Args:
        parts: The commands by their names, started in this order.
        windows: The folder of the Windows Python; the commands find its program in MMFW_WINDOWS_PYTHON.

    Returns:
        The names of the failed parts.

    Raises:
        KeyboardInterrupt: The user pressed Ctrl+C; all parts were killed.
    """
    cores = sorted(os.sched_getaffinity(0))
    wine_cores = [_WineCore(*pair) for pair in zip(cores, windows_python.wine_prefixes(windows), strict=False)]
    free_cores: SimpleQueue[_WineCore] = SimpleQueue()
    for wine_core in wine_cores:
        wine_core.control_server("--kill")  # a server of an earlier run may run on another core
        free_cores.put(wine_core)
    processes: list[subprocess.Popen[bytes]] = []

    def run_part(name: str, command: Sequence[str]) -> bool:
        is_single = len(parts) == 1
        wine_core, start = free_cores.get(), time.monotonic()
        try:
            process = wine_core.start(command, windows, None if is_single else subprocess.PIPE)
            processes.append(process)
            try:
                output, _ = process.communicate(timeout=None if is_single else _MAX_SECONDS)
            except subprocess.TimeoutExpired:  # a crashed Python may hang under Wine
                print(f"{name}: killed after {_MAX_SECONDS} s", flush=True)
                _kill(process)
                wine_core.control_server("--kill")
                output, _ = process.communicate()
        finally:
            free_cores.put(wine_core)
        end = f"{'failed' if process.returncode else 'passed'}: {name} ({time.monotonic() - start:.1f} s)\n"
        sys.stdout.write((output or b"").decode("utf-8", "replace") + end)
        sys.stdout.flush()
        return process.returncode == 0

    print(f"On Windows CPython under Wine, {len(wine_cores)} at a time: {'; '.join(parts)}.", flush=True)
    with ThreadPoolExecutor(len(wine_cores)) as pool:
        try:
            passed = list(pool.map(run_part, parts.keys(), parts.values()))
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                _kill(process)
            for wine_core in wine_cores:
                wine_core.control_server("--kill")
            raise
    return [name for name, has_passed in zip(parts, passed, strict=True) if not has_passed]
