"""Measure what supervision costs a training; needs Linux, MMF and what training needs.

python scripts/bench_supervision.py                           a table on standard output
python scripts/bench_supervision.py --runs 9 --updates 1000   more and longer runs

The demo's tiny model trains, whose updates are as short as updates get, so that whatever is done for each of
them weighs most. Three contestants take turns:

supervised    `mmfw train`: the parent watches, and a keeper stands between it and the worker
bare worker   the same request in a worker that nobody watches
MMF alone     the same configuration in MMF's own `run`, with our patches but without our hooks

Each counts its updates by a hook on the optimizer and is measured between the first and the last, so that
imports do not count. What supervision adds is also measured by itself – the processor time of the parent and
the keeper, and that of our hooks in the worker – which says more where the machine is shared and one run
differs from the next by more than that.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path

from _demo_set import make

from mmf_win.files import read_json
from mmf_win.paths import Places
from mmf_win.protocol import AttemptRequest
from mmf_win.runs import search
from mmf_win.runs.folder import Run
from mmf_win.upstream import settings

# MMF imports it in the process that trains; it notes the clocks after the first and after the last update.
_COUNTER = '''\
import json, os, time
from pathlib import Path
from torch.optim.optimizer import register_optimizer_step_post_hook

def cpu_of(pid):
    """Seconds, by the scheduler's own count; /proc/<pid>/stat counts whole ticks."""
    return sum(int(f.read_text().split()[0]) for f in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9

def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

in_hooks = 0.0

def timed(hook):
    def call(*args, **kwargs):
        global in_hooks
        since = time.thread_time()
        try:
            return hook(*args, **kwargs)
        finally:
            in_hooks += time.thread_time() - since
    return call

if "BENCH_HOOKS" in os.environ:
    from mmf_win.worker.hooks.observer import Observer
    for name in ("trained", "updated"):
        setattr(Observer, name, timed(getattr(Observer, name)))

def clocks():
    keeper = os.getppid()
    around = cpu_of(keeper) + cpu_of(parent_of(keeper)) if "BENCH_AROUND" in os.environ else 0.0
    cpu = time.process_time() + around
    return {"wall": time.perf_counter(), "cpu": cpu, "around": around, "hooks": in_hooks}

count, last, marks = 0, int(os.environ["BENCH_UPDATES"]), []

def updated(*_):
    global count
    count += 1
    if count in (1, last):
        marks.append(clocks())
        Path(os.environ["BENCH_MARKS"]).write_text(json.dumps(marks))

register_optimizer_step_post_hook(updated)
'''
_MMF_ALONE = """\
import sys
from pathlib import Path
from mmf_win.worker import compat, entry as worker
from mmf_win.upstream.settings import as_pairs
from mmf_win.upstream.versions import read_version
from mmf_win.protocol import AttemptRequest
request = AttemptRequest.load(Path(sys.argv[1]))
compat.install(Path(request.mmf), read_version(Path(request.mmf)))
from mmf_cli.run import run
run([*worker.mmf_options(request), *as_pairs(request.overrides)])
"""


@dataclass(frozen=True)
class Cost:
    """Of one update, in milliseconds.

    Attributes:
        wall: on the clock.
        cpu: of all processes.
        around: of these, what the parent and the keeper took.
        hooks: of these, what our hooks took.
    """

    wall: float
    cpu: float
    around: float
    hooks: float


class Bench:
    """The demo's dataset, and the contestants.

    Args:
        root: an empty folder for everything.
        updates: of each run.
    """

    def __init__(self, root: Path, updates: int) -> None:
        self._root = root
        self._folder = make(root / "demo")
        self._updates = updates
        self._marks = root / "marks.json"
        counter = root / "counter"
        counter.mkdir()
        (counter / "__init__.py").write_text(_COUNTER, encoding="utf-8")
        self._words = (
            *("--updates", str(updates), "--seed", "1", f"env.user_dir={counter}"),
            *("training.evaluation_interval=1000000", "training.checkpoint_interval=1000000"),
        )
        self._places = Places.resolve(self._folder.data_dir, self._folder.save_dir)

    def warm_up(self) -> None:
        """Make a run whose request the others take over."""
        self.supervised()

    def supervised(self) -> Cost:
        """``mmfw train``."""
        folders = ("--data-dir", str(self._folder.data_dir), "--save-dir", str(self._folder.save_dir))
        self._mmfw("train", "demo", *self._words, *folders, BENCH_AROUND="yes", BENCH_HOOKS="yes")
        return self._cost()

    def bare_worker(self) -> Cost:
        """Our worker, on its own."""
        run, request = self._again()
        self._python("-m", "mmf_win.worker.entry", str(request.attempt.request), of=run, BENCH_HOOKS="yes")
        return self._cost()

    def mmf_alone(self) -> Cost:
        """MMF with nothing of ours in it but the patches."""
        run, request = self._again()
        training = {**request.settings["training"]}
        training.pop("trainer", None)
        training.pop("callbacks", None)
        replace(request, settings={**request.settings, "training": training}).save()
        self._python("-c", _MMF_ALONE, str(request.attempt.request), of=run)
        return self._cost()

    def _again(self) -> tuple[Run, AttemptRequest]:
        """A new run that is asked for what the newest one was asked for."""
        newest = search.find(self._folder.save_dir, "demo")
        first = AttemptRequest.load(newest.path / "attempts" / "1" / "request.json")
        run = Run.create(self._root / "others", "demo")
        run.checkpoints.mkdir()
        request = replace(first, attempt_dir=str(run.new_attempt().path))
        request.save()
        return run, request

    def _cost(self) -> Cost:
        """Of the run that has just ended."""
        first, last = read_json(self._marks)
        self._marks.unlink()
        each = {name: 1000 * (last[name] - first[name]) / (self._updates - 1) for name in first}
        return Cost(**each)

    def _mmfw(self, *words: str, **environment: str) -> None:
        self._call(["-m", "mmf_win", *words], {**os.environ, **environment})

    def _python(self, *words: str, of: Run, **environment: str) -> None:
        theirs = settings.environment(self._places, of.checkpoints, of.logs, of.path / "raw", offline=True)
        self._call([*words], {**theirs, **environment})

    def _call(self, words: list[str], environment: dict[str, str]) -> None:
        counting = {"BENCH_UPDATES": str(self._updates), "BENCH_MARKS": str(self._marks)}
        threads = {"OMP_NUM_THREADS": "1"}  # more of them make times that vary more than what is measured
        done = subprocess.run(
            [sys.executable, *words],
            env={**environment, **counting, **threads},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            sys.exit(f"{done.stdout[-4000:]}\n{words} failed")


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--runs", type=int, default=5, help="of each contestant; medians are told")
    parser.add_argument("--updates", type=int, default=300, help="of each run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-supervision-") as root:
        bench = Bench(Path(root), options.updates)
        bench.warm_up()
        contestants: dict[str, Callable[[], Cost]] = {
            "bare worker": bench.bare_worker,
            "**supervised**": bench.supervised,
            "MMF alone": bench.mmf_alone,
        }
        costs: dict[str, list[Cost]] = {name: [] for name in contestants}
        for _ in range(options.runs):
            for name, compete in contestants.items():
                costs[name].append(compete())
    _tell({name: _median(of_one) for name, of_one in costs.items()})


def _median(costs: list[Cost]) -> Cost:
    return Cost(*(statistics.median(getattr(cost, f.name) for cost in costs) for f in fields(Cost)))


def _tell(costs: dict[str, Cost]) -> None:
    print("| | updates/s | ms on the clock | ms of CPU | of that, parent and keeper | our hooks |")
    print("|---|--:|--:|--:|--:|--:|")
    for name, cost in costs.items():
        added = (f"{part:.3f} ({100 * part / cost.cpu:.2f} %)" for part in (cost.around, cost.hooks))
        print(f"| {name} | {1000 / cost.wall:.1f} | {cost.wall:.2f} | {cost.cpu:.2f} | {' | '.join(added)} |")


if __name__ == "__main__":
    main()
