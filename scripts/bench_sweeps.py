"""Measure what a sweep costs beside its tasks; needs Linux, Bash, mlrunner and Optuna.

python scripts/bench_sweeps.py              tables on standard output
python scripts/bench_sweeps.py --runs 5     more runs

Short tasks     the same 100 commands that do nothing, two at a time: by mmfw, by mlrunner, and by xargs
Long tasks      two tasks that sleep for 30 seconds: the processor time of all that is there beside them
Many tasks      how long it takes to plan 10,000 tasks, to list them, and to begin; of Optuna's queue, 1,000
"""

from __future__ import annotations

import argparse
import os
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_SHORT, _SLEEP, _MANY, _QUEUED = 100, 30, 10_000, 1_000
_MMFW = [sys.executable, "-m", "mmf_win", "sweep"]
_MLRUNNER = [sys.executable, "-c", "from mlrunner.run import main; main()"]
_ENQUEUE = f"""
import optuna
optuna.logging.set_verbosity(optuna.logging.WARNING)
study = optuna.create_study(storage="sqlite:///queue.db")
for n in range({_QUEUED}):
    study.enqueue_trial({{"n": n}})
"""
_NOTE = """
from pathlib import Path
from mmf_win.sweeps.folder import SweepFolder
from mmf_win.sweeps.specification import parse
from mmf_win.sweeps.store import Store
from mmf_win.sweeps.tasks import plan
store = Store(SweepFolder(Path("output")))
store.create()
store.enter(plan(parse(Path("params.yaml").read_text(), Path("params.yaml"))).tasks)
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--runs", type=int, default=3, help="of each contestant, in turn")
    runs = parser.parse_args(arguments).runs
    short = _specification("/bin/true {n}", _SHORT)
    _print(
        f"{_SHORT} short tasks, two at a time",
        {
            "xargs -P 2": lambda: _timed(["bash", "-c", f"seq {_SHORT} | xargs -P 2 -n 1 /bin/true"]),
            "**mmfw**": lambda: _timed([*_MMFW, "run", "params.yaml", "-o", "output"], short),
            "mlrunner": lambda: _timed([*_MLRUNNER], short),
        },
        runs,
        per=_SHORT,
    )
    sleeping = _specification(f"sleep {_SLEEP} {{n}}", 2).replace(" {n}\n", "\n")
    _print(
        f"two tasks of {_SLEEP} seconds",
        {
            "**mmfw**": lambda: _timed([*_MMFW, "run", "params.yaml", "-o", "output"], sleeping),
            "mlrunner": lambda: _timed([*_MLRUNNER], sleeping),
        },
        runs,
    )
    many = _specification("/bin/true {n}", _MANY)
    dry = [*_MMFW, "run", "params.yaml", "-o", "output", "--dry-run"]
    noted = [sys.executable, "-c", _NOTE]
    begun = ["bash", "-c", f"{shlex.join(noted)} && {shlex.join([*_MMFW, 'status', 'output'])}"]
    _print(
        f"{_MANY:,} tasks, of Optuna {_QUEUED:,}",
        {
            "**mmfw**, a dry run": lambda: _timed(dry, many),
            "**mmfw**, planned, noted and listed": lambda: _timed(begun, many),
            "Optuna's enqueue_trial": lambda: _timed([sys.executable, "-c", _ENQUEUE]),
        },
        runs,
    )
    return 0


def _specification(template: str, count: int) -> str:
    return f"template:\n  t: {template}\nresource: [cpu, cpu]\n---\nn: {list(range(count))}\n"


def _timed(command: Sequence[str], specification: str = "") -> tuple[float, float]:
    """Seconds on the clock and of the processor that a command takes in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "params.yaml").write_text(specification, encoding="utf-8")
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run(command, cwd=folder, env=environ, check=True, **quiet)
        wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _print(
    title: str, contestants: dict[str, Callable[[], tuple[float, float]]], runs: int, *, per: int = 1
) -> None:
    """Let the contestants take turns, and print medians with their spreads."""
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    for _ in range(runs):
        for name, contestant in contestants.items():
            measured[name].append(contestant())
    unit = "" if per == 1 else " a task, ms"
    print(f"| {title} | wall s | spread | CPU s | CPU{unit or ' spread'} |\n|---|--:|--:|--:|--:|")
    for name, pairs in measured.items():
        walls, cpus = zip(*pairs, strict=True)
        last = f"{1000 * statistics.median(cpus) / per:.1f}" if unit else f"{min(cpus):.2f}–{max(cpus):.2f}"
        spread = f"{min(walls):.2f}–{max(walls):.2f}"
        print(
            f"| {name} | {statistics.median(walls):.2f} | {spread} | {statistics.median(cpus):.2f} | {last} |"
        )
    print()


if __name__ == "__main__":
    sys.exit(main())
