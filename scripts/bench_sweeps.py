"""Measure what a sweep costs beside its tasks; needs Linux, Bash, mlrunner and Optuna.

python scripts/bench_sweeps.py              tables on standard output
python scripts/bench_sweeps.py --runs 5     more runs

Short tasks     the same 100 commands that do nothing, two at a time: by xargs, by mmfw and by mlrunner
Long tasks      two tasks that sleep for 30 seconds: the processor time of all that is there beside them
Many tasks      how long it takes to plan 10,000 tasks, and to list 10,000 that have run; Optuna queues 1,000
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from _bench import MMFW, PYTHON, Cost, call, in_turn, parser, show

from mmf_win.sweeps.folder import SweepFolder, write_yaml
from mmf_win.sweeps.planning import list_tasks

_SHORT, _SLEEP, _MANY, _QUEUED = 100, 30, 10_000, 1_000
_SWEEP = (*MMFW, "sweep", "run", "params.yaml", "-o", "output")
_MLRUNNER = (PYTHON, "-c", "from mlrunner.run import main; main()")
_ENQUEUE = f"""
import optuna
optuna.logging.set_verbosity(optuna.logging.WARNING)
study = optuna.create_study(storage="sqlite:///queue.db")
for n in range({_QUEUED}):
    study.enqueue_trial({{"n": n}})
"""


def main() -> None:
    """Print the tables."""
    runs = parser(__doc__, runs=3).parse_args().runs
    short = _specification("/bin/true {n}", _SHORT)
    contestants = {
        "xargs -P 2": _contestant(["bash", "-c", f"seq {_SHORT} | xargs -P 2 -n 1 /bin/true"]),
        "**mmfw**": _contestant(_SWEEP, short),
        "mlrunner": _contestant(_MLRUNNER, short),
    }
    show(f"{_SHORT} short tasks, two at a time", in_turn(contestants, runs))
    sleeping = _specification(f"sleep {_SLEEP}", 2)
    contestants = {
        "mlrunner": _contestant(_MLRUNNER, sleeping),
        "**mmfw**": _contestant(_SWEEP, sleeping),
    }
    show(f"two tasks of {_SLEEP} seconds", in_turn(contestants, runs))
    contestants = {
        f"Optuna's enqueue_trial, {_QUEUED:,}": _contestant([PYTHON, "-c", _ENQUEUE]),
        f"**mmfw**, a dry run of {_MANY:,}": _contestant(
            [*_SWEEP, "--dry-run"], _specification("/bin/true {n}", _MANY)
        ),
    }
    with tempfile.TemporaryDirectory() as folder:
        _have_run(SweepFolder(Path(folder)))
        listing = (*MMFW, "sweep", "status", folder, "--json")
        contestants[f"**mmfw**, the states of {_MANY:,}"] = lambda: call(listing, cwd=Path(folder))
        show("many tasks", in_turn(contestants, runs))


def _specification(template: str, count: int) -> str:
    return f"template:\n  t: {template}\nresource: [cpu, cpu]\n---\nn: {list(range(count))}\n"


def _have_run(sweep: SweepFolder) -> None:
    """Leave what a sweep of many tasks leaves, in its folder."""
    sweep.specification.write_text(_specification("/bin/true {n}", _MANY), encoding="utf-8")
    for task in list_tasks(sweep):
        folder = sweep.task_folder(task.name)
        folder.path.mkdir()
        meta = {"_output": str(folder.path), "_name": task.name}
        write_yaml(folder.param, {**task.values, **meta})
        replace(task, state="success", finished=("t",), starts=1, seconds=1.5).save(folder)


def _contestant(command: Sequence[str], specification: str = "") -> Callable[[], Cost]:
    """A command, in an empty folder but for the specification of a sweep."""

    def run() -> Cost:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "params.yaml").write_text(specification, encoding="utf-8")
            return call(command, cwd=Path(folder))

    return run


if __name__ == "__main__":
    main()
