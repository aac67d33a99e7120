"""Runs tests on a Windows Python under Wine, several parts at once.

A Windows process asks Wine's server about each file that it opens, and waits a fifth as long where both run
on the same core. So each part has a core of its own, and a server, which means a Wine prefix.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import windows_python
from _venv import ROOT


@dataclass(frozen=True)
class _Seat:
    """A processor core, and the folder of the Wine that runs there."""

    core: int
    prefix: Path

    def run(self, name: str, command: Sequence[str], environ: Mapping[str, str], *, alone: bool) -> bool:
        started = time.monotonic()
        done = subprocess.run(
            ["taskset", "--cpu-list", str(self.core), *command],
            cwd=ROOT,
            env={**os.environ, **environ, "MMFW_WINE_PREFIX": self.prefix.name},
            stdin=subprocess.DEVNULL,
            stdout=None if alone else subprocess.PIPE,
            stderr=None if alone else subprocess.STDOUT,
        )
        end = f"{'failed' if done.returncode else 'passed'}: {name} ({time.monotonic() - started:.1f} s)\n"
        sys.stdout.write((done.stdout or b"").decode("utf-8", "replace") + end)
        sys.stdout.flush()
        return done.returncode == 0

    def end(self) -> None:
        environ = {**os.environ, "WINEPREFIX": str(self.prefix)}
        subprocess.run(["wineserver", "--kill"], env=environ, check=False)


def run(parts: Mapping[str, Sequence[str]], windows: Path) -> bool:
    """Run each part as soon as there is a core for it; what several write is shown when they end.

    Args:
        parts: the commands by their names, the longest first.
        windows: the folder of the Windows Python, whose program the commands find in MMFW_WINDOWS_PYTHON.

    Returns:
        Whether all succeeded.
    """
    prefixes = windows_python.prefixes(windows)
    seats = [_Seat(*pair) for pair in zip(sorted(os.sched_getaffinity(0)), prefixes, strict=False)]
    free: SimpleQueue[_Seat] = SimpleQueue()
    for seat in seats:
        free.put(seat)
    environ = {"MMFW_WINDOWS_PYTHON": str(windows / "python")}

    def run_part(name: str, command: Sequence[str]) -> bool:
        seat = free.get()
        try:
            return seat.run(name, command, environ, alone=len(parts) == 1)
        finally:
            free.put(seat)

    print(f"On Windows CPython under Wine, {len(seats)} at once: {'; '.join(parts)}.", flush=True)
    with ThreadPoolExecutor(len(seats)) as pool:
        try:
            return all(list(pool.map(run_part, parts.keys(), parts.values())))
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for seat in seats:
                seat.end()
            raise
