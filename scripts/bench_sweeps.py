"""Measure the cost of a sweep in addition to its tasks; needs Linux, Bash, mlrunner and Optuna.

python scripts/bench_sweeps.py              tables on standard output
python scripts/bench_sweeps.py --runs 5     more runs

Short tasks     the same 100 commands that do nothing, two at a time: by xargs, by mmfw and by mlrunner
Long tasks      two tasks that sleep for 30 seconds: the CPU time of all other processes
Many tasks      the time to plan 10,000 tasks, and to list 10,000 finished ones; Optuna queues 1,000
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from _bench import MMFW, PYTHON, Cost, make_parser, measure_command, print_costs, run_in_turn

from mmf_win.sweeps.folder import SweepFolder, write_yaml
from mmf_win.sweeps.planning import list_tasks

_SHORT_TASKS, _SLEEP_SECONDS, _MANY_TASKS, _QUEUED_TRIALS = 100, 30, 10_000, 1_000
_SWEEP_COMMAND = (*MMFW, "sweep", "run", "params.yaml", "-o", "output")
_MLRUNNER_COMMAND = (PYTHON, "-c", "from mlrunner.run import main; main()")
_ENQUEUE_CODE = f"""
import optuna
optuna.logging.set_verbosity(optuna.logging.WARNING)
study = optuna.create_study(storage="sqlite:///queue.db")
for n in range({_QUEUED_TRIALS}):
    study.enqueue_trial({{"n": n}})
"""


def main() -> None:
    """Print the tables."""
    runs = make_parser(__doc__, runs=3).parse_args().runs
    short = _specification("/bin/true {n}", _SHORT_TASKS)
    contestants = {
        "xargs -P 2": _make_contestant(["bash", "-c", f"seq {_SHORT_TASKS} | xargs -P 2 -n 1 /bin/true"]),
        "**mmfw**": _make_contestant(_SWEEP_COMMAND, short),
        "mlrunner": _make_contestant(_MLRUNNER_COMMAND, short),
    }
    print_costs(f"{_SHORT_TASKS} short tasks, two at a time", run_in_turn(contestants, runs))
    sleeping = _specification(f"sleep {_SLEEP_SECONDS}", 2)
    contestants = {
        "mlrunner": _make_contestant(_MLRUNNER_COMMAND, sleeping),
        "**mmfw**": _make_contestant(_SWEEP_COMMAND, sleeping),
    }
    print_costs(f"two tasks of {_SLEEP_SECONDS} seconds", run_in_turn(contestants, runs))
    contestants = {
        f"Optuna's enqueue_trial, {_QUEUED_TRIALS:,}": _make_contestant([PYTHON, "-c", _ENQUEUE_CODE]),
        f"**mmfw**, a dry run of {_MANY_TASKS:,}": _make_contestant(
            [*_SWEEP_COMMAND, "--dry-run"], _specification("/bin/true {n}", _MANY_TASKS)
        ),
    }
    with tempfile.TemporaryDirectory() as folder:
        _write_finished_sweep(SweepFolder(Path(folder)))
        listing = (*MMFW, "sweep", "status", folder, "--json")
        contestants[f"**mmfw**, the states of {_MANY_TASKS:,}"] = lambda: measure_command(listing, cwd=Path(folder))
        print_costs("many tasks", run_in_turn(contestants, runs))


def _specification(template: str, count: int) -> str:
    return f"template:\n  t: {template}\nresource: [cpu, cpu]\n---\nn: {list(range(count))}\n"


def _write_finished_sweep(sweep: SweepFolder) -> None:
    """Write the files of a finished sweep with many tasks."""
    sweep.specification.write_text(_specification("/bin/true {n}", _MANY_TASKS), encoding="utf-8")
    for task in list_tasks(sweep):
        folder = sweep.task_folder(task.name)
        folder.path.mkdir()
        meta = {"_output": str(folder.path), "_name": task.name}
        write_yaml(folder.param, {**task.values, **meta})
        replace(task, state="success", finished_commands=("t",), start_count=1, seconds=1.5).save(folder)


def _make_contestant(command: Sequence[str], specification: str = "") -> Callable[[], Cost]:
    """Return a contestant that runs a command in a folder with only a sweep specification."""

    def run() -> Cost:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "params.yaml").write_text(specification, encoding="utf-8")
            return measure_command(command, cwd=Path(folder))

    return run


if __name__ == "__main__":
    main()
