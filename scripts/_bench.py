"""What the benchmarks share: processes that take turns, and tables of medians with the least and the most."""

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
    """Of a process with its children: seconds on the clock and of the processor, peak of memory in MiB."""

    wall: float
    cpu: float
    memory: float


def make_parser(description: str, runs: int | None = None) -> argparse.ArgumentParser:
    """What reads the options; without ``runs``, which is their default, there is no option for them."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    if runs is not None:
        made.add_argument("--runs", type=int, default=runs, help="of each contestant, in turn")
    return made


def measure_command(command: Sequence[str | Path], *, cwd: Path | None = None, **environment: str) -> Cost:
    """Run a command, which must succeed, and measure it. Its Python may keep compiled modules."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", **environment}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    words = [str(word) for word in command]
    with tempfile.TemporaryFile() as output:
        began = time.perf_counter()
        child = subprocess.Popen(
            words, cwd=cwd, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        _, status, used = os.wait4(child.pid, 0)
        wall = time.perf_counter() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            output.seek(0)
            sys.exit(f"{output.read().decode(errors='replace')[-5000:]}\n{' '.join(words)} failed")
    return Cost(wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def run_in_turn(contestants: Mapping[str, Callable[[], _T]], runs: int) -> dict[str, list[_T]]:
    """What each of them measures, which take turns, so that a busy moment of the machine hits all alike."""
    found: dict[str, list[_T]] = {name: [] for name in contestants}
    for _ in range(runs):
        for name, contestant in contestants.items():
            found[name].append(contestant())
    return found


def format_spread(values: Sequence[float], format_spec: str = ".2f") -> str:
    """The median, and in brackets the least and the most."""
    median, least, most = (
        format(value, format_spec) for value in (statistics.median(values), min(values), max(values))
    )
    return f"{median} ({least}–{most})"


def format_ratio(base: Iterable[float], values: Iterable[float]) -> str:
    """How many times as long the base takes, by medians."""
    return f"{statistics.median(base) / statistics.median(values):.2f}"


def print_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print the load of the machine and a table in Markdown, whose first column has names below its title."""
    print(
        f"\nLoad: {os.getloadavg()[0]:.1f}\n\n| {' | '.join((title, *header))} |\n|---|{'--:|' * len(header)}"
    )
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def measure_after_warmup(contestants: Mapping[str, Callable[[], Cost]], runs: int) -> dict[str, list[Cost]]:
    """What processes cost that take turns, after a first one that compiles modules and reads programs."""
    for contestant in contestants.values():
        contestant()
    return run_in_turn(contestants, runs)


def print_costs(title: str, costs_by_name: Mapping[str, Sequence[Cost]]) -> None:
    """Print what processes cost; the last columns compare with the first of them."""
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
    """A folder of files of these sizes that cannot be compressed, as PNGs cannot."""
    random = Random(1)
    folder.mkdir(parents=True)
    for number, size in enumerate(sizes):
        (folder / f"{number:05}.png").write_bytes(random.randbytes(size))
    return folder
