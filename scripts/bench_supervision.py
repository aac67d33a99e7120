"""Measure the cost of supervision for a training; needs Linux, MMF and the extra `train`.

python scripts/bench_supervision.py                           a table on standard output
python scripts/bench_supervision.py --runs 9 --updates 1000   more and longer runs

The demo's tiny model has very short updates, so that the cost per update is most visible. `mmfw train`
alternates with MMF's `run` with the same configuration, with the patches but without the hooks of mmfw.

Each process counts its updates by a hook on the optimizer and is measured between the first and the last one,
so that imports do not count. The cost of supervision is also measured directly – the CPU time of the parent
and the keeper, and that of the hooks in the worker – which is more precise if the machine is shared and runs
differ by more than that.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

from _bench import MMFW, PYTHON, format_spread, make_parser, measure_command, print_table, run_in_turn
from _demo_dataset import make_demo_dataset

from mmf_win.files import read_json
from mmf_win.paths import presets_dir
from mmf_win.runs import lookup
from mmf_win.upstream.install import require_mmf
from mmf_win.upstream.versions import has_key

# MMF imports it in the training process; it records the clocks after the first and after the last update.
_COUNTER_MODULE = '''\
import json, os, time
from pathlib import Path
from torch.optim.optimizer import register_optimizer_step_post_hook

def cpu_of(pid):
    """Return CPU seconds as counted by the scheduler; /proc/<pid>/stat only counts ticks."""
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

if "BENCH_OURS" in os.environ:
    from mmf_win.worker.hooks.session import TrainingSession
    for name in ("on_log", "on_update_end"):
        setattr(TrainingSession, name, timed(getattr(TrainingSession, name)))

def clocks():
    keeper = os.getppid()
    around = cpu_of(keeper) + cpu_of(parent_of(keeper)) if "BENCH_OURS" in os.environ else 0.0
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
_PATCHED_MMF_CODE = """\
from mmf_win.upstream.install import require_mmf
from mmf_win import compat
mmf = require_mmf()
compat.install(mmf.root)
from mmf_cli.run import run
run()
"""


class UpdateCost(NamedTuple):
    """Milliseconds per update: wall clock, CPU, CPU of parent and keeper, and CPU of the hooks."""

    wall: float
    cpu: float
    around: float
    hooks: float


class SupervisionBench:
    """The demo's dataset and the contestants.

    Args:
        root: An empty folder for all files.
        updates: Number of updates of each run.
    """

    def __init__(self, root: Path, updates: int) -> None:
        self._root, self._updates, self._demo = root, updates, make_demo_dataset(root / "demo")
        counter = root / "counter"
        counter.mkdir()
        (counter / "__init__.py").write_text(_COUNTER_MODULE, encoding="utf-8")
        self._overrides = (
            f"env.user_dir={counter}",
            "training.evaluation_interval=1000000",
            "training.checkpoint_interval=1000000",
        )

    def train_supervised(self) -> UpdateCost:
        """Measure ``mmfw train``."""
        options = ("--data-dir", self._demo.data_dir, "--save-dir", self._demo.save_dir, "--trust")
        command = [*MMFW, "train", "demo", "--updates", str(self._updates), "--seed", "1", *options]
        return self._measure([*command, *self._overrides], BENCH_OURS="yes")

    def train_with_mmf_alone(self) -> UpdateCost:
        """Measure MMF with only the patches of mmfw, and with the configuration of the last run."""
        config = lookup.find_run(self._demo.save_dir, "demo").path / "attempts" / "1" / "mmf.yaml"
        has_callbacks = has_key(require_mmf().version, "training.callbacks")
        hookless = "training.callbacks=[]" if has_callbacks else "training.trainer=base_trainer"
        save = tempfile.mkdtemp(dir=self._root)
        overrides = (f"config={config}", "model=vilbert", "dataset=hateful_memes", f"env.save_dir={save}")
        return self._measure(
            [PYTHON, "-c", _PATCHED_MMF_CODE, *overrides, hookless, *self._overrides],
            MMF_DATA_DIR=str(self._demo.data_dir),
            MMF_DATASET_ZOO=str(presets_dir() / "zoo" / "nothing.yaml"),
            HF_HUB_OFFLINE="1",
        )

    def _measure(self, command: list[str | Path], **environment: str) -> UpdateCost:
        marks = self._root / "marks.json"
        counting = {"BENCH_UPDATES": str(self._updates), "BENCH_MARKS": str(marks)}
        # With more threads, times would vary by more than the cost of supervision.
        measure_command(command, OMP_NUM_THREADS="1", **counting, **environment)
        first, last = read_json(marks)
        marks.unlink()
        return UpdateCost(**{name: 1000 * (last[name] - first[name]) / (self._updates - 1) for name in first})


def main() -> None:
    """Print a table in Markdown."""
    parser = make_parser(__doc__, runs=5)
    parser.add_argument("--updates", type=int, default=300, help="of each run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-supervision-") as root:
        bench = SupervisionBench(Path(root), options.updates)
        bench.train_supervised()
        contestants = {"**supervised**": bench.train_supervised, "MMF alone": bench.train_with_mmf_alone}
        results = run_in_turn(contestants, options.runs)
    rows = []
    for name, costs in results.items():
        wall, cpu, around, hooks = zip(*costs, strict=True)
        shares = ([100 * part / total for part, total in zip(parts, cpu, strict=True)] for parts in (around, hooks))
        rows.append([name, format_spread(wall), format_spread(cpu), *(f"{format_spread(share)} %" for share in shares)])
    print_table("of an update", ["ms on the clock", "ms of CPU", "of that, parent and keeper", "our hooks"], rows)


if __name__ == "__main__":
    main()
