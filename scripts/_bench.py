"""Shared code of the benchmarks: measure processes in turn, and print medians with minimum and maximum."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple, TypeVar

ROOT = Path(__file__).resolve().parents[1]
PYTHON = sys.executable
MMFW = (PYTHON, "-m", "mmf_win")
TMPFS, DISK = Path("/dev/shm"), Path("/var/tmp")
MB = 1_000_000
_T = TypeVar("_T")


class Cost(NamedTuple):
    """Cost of a process with its children: wall-clock seconds, CPU seconds and peak memory in MiB."""

    wall: float
    cpu: float
    memory: float


def make_parser(description: str, runs: int | None = None) -> argparse.ArgumentParser:
    """Return a parser with the option ``--runs``, whose default is ``runs``; no such option if it is None."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    if runs is not None:
        parser.add_argument("--runs", type=int, default=runs, help="of each contestant, in turn")
    return parser


def measure_command(command: Sequence[str | Path], *, cwd: Path | None = None, **environment: str) -> Cost:
    """Run a command, which must succeed, and measure it; its Python may keep compiled modules."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", **environment}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    argv = [str(word) for word in command]
    with tempfile.TemporaryFile() as output:
        start = time.perf_counter()
        child = subprocess.Popen(argv, cwd=cwd, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            output.seek(0)
            sys.exit(f"{output.read().decode(errors='replace')[-5000:]}\n{' '.join(argv)} failed")
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def run_in_turn(contestants: Mapping[str, Callable[[], _T]], runs: int) -> dict[str, list[_T]]:
    """Run the contestants in turn, so that other load on the machine affects all; return their results."""
    results: dict[str, list[_T]] = {name: [] for name in contestants}
    for _ in range(runs):
        for name, contestant in contestants.items():
            results[name].append(contestant())
    return results


def format_spread(values: Sequence[float], format_spec: str = ".2f") -> str:
    """Return the median, and the minimum and maximum in brackets."""
    median, least, most = (
        format(value, format_spec) for value in (statistics.median(values), min(values), max(values))
    )
    return f"{median} ({least}–{most})"


def format_ratio(base: Iterable[float], values: Iterable[float]) -> str:
    """Return the ratio of the medians of ``base`` and ``values``."""
    return f"{statistics.median(base) / statistics.median(values):.2f}"


def print_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print the load of the machine and a Markdown table, whose first column has the names of the rows."""
    print(f"\nLoad: {os.getloadavg()[0]:.1f}\n\n| {' | '.join((title, *header))} |\n|---|{'--:|' * len(header)}")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def measure_after_warmup(contestants: Mapping[str, Callable[[], Cost]], runs: int) -> dict[str, list[Cost]]:
    """Measure processes in turn, after a first run that compiles modules and fills the disk cache."""
    for contestant in contestants.values():
        contestant()
    return run_in_turn(contestants, runs)


def print_costs(title: str, costs_by_name: Mapping[str, Sequence[Cost]]) -> None:
    """Print the costs of processes; the last columns compare them with the first process."""
    columns = {name: list(zip(*costs, strict=True)) for name, costs in costs_by_name.items()}
    base = next(iter(columns.values()))
    header = ("wall s", "CPU s", "peak MiB", "× by wall", "× by CPU")
    rows = [
        (
            name,
            format_spread(wall),
            format_spread(cpu),
            format_spread(peak, ".0f"),
            format_ratio(base[0], wall),
            format_ratio(base[1], cpu),
        )
        for name, (wall, cpu, peak) in columns.items()
    ]
    print_table(title, header, rows)


def make_files(folder: Path, sizes: Iterable[int]) -> Path:
    """Create a folder of files with these sizes whose content, like that of PNGs, cannot be compressed."""
    random = Random(1)
    folder.mkdir(parents=True)
    for number, size in enumerate(sizes):
        (folder / f"{number:05}.png").write_bytes(random.randbytes(size))
    return folder
