"""Measure what `--track` costs a training; needs Linux, MMF, what training needs and MLflow with its server.

python scripts/bench_tracking.py                           a table on standard output
python scripts/bench_tracking.py --runs 9 --updates 1000   more and longer runs

The demo's tiny model trains, whose updates are as short as updates get, with one thread: alone, sent to an
MLflow server on this machine, and beside a server that never answers. They take turns.
"""

from __future__ import annotations

import socket
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

from _bench import MMFW, format_ratio, format_spread, make_parser, measure_command, print_table, run_in_turn
from _demo_set import make_demo_dataset
from _mlflow_server import run_mlflow_server

from mmf_win.protocol import read_events
from mmf_win.runs import lookup


class TrainingCost(NamedTuple):
    """Of a training: milliseconds from one update to the next, and seconds of the whole command."""

    update: float
    whole: float


def measure_training(root: Path, updates: int, **environment: str) -> TrainingCost:
    """Train once."""
    places = ("--data-dir", root / "demo" / "data", "--save-dir", root / "demo" / "save")
    words = ("demo", "--updates", str(updates), "--seed", "1", "training.log_interval=10")
    began = time.perf_counter()
    measure_command([*MMFW, "train", *words, *places], OMP_NUM_THREADS="1", **environment)
    whole = time.perf_counter() - began
    events = read_events(lookup.find_run(root / "demo" / "save", "demo").events)
    first, *_, last = (event for event in events if event["kind"] == "train")
    return TrainingCost(1000 * (last["t"] - first["t"]) / (last["update"] - first["update"]), whole)


def main() -> None:
    """Print a table in Markdown."""
    options = make_parser(__doc__, runs=5)
    options.add_argument("--updates", type=int, default=600, help="of each run")
    asked = options.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="bench-tracking-") as root,
        socket.create_server(("127.0.0.1", 0)) as silent,
        run_mlflow_server(Path(root)),
    ):
        make_demo_dataset(Path(root, "demo"))
        once = partial(measure_training, Path(root), asked.updates)
        once(MMFW_TRACK="")
        found = run_in_turn(
            {
                "without": partial(once, MMFW_TRACK=""),
                "**sent to MLflow**": once,
                "a server that never answers": partial(
                    once, MLFLOW_TRACKING_URI=f"http://127.0.0.1:{silent.getsockname()[1]}"
                ),
            },
            asked.runs,
        )
    base = [cost.update for cost in found["without"]]
    rows = []
    for name, costs in found.items():
        update, whole = ([*values] for values in zip(*costs, strict=True))
        rows.append([name, format_spread(update), format_ratio(update, base), format_spread(whole, ".1f")])
    print_table("of a training", ["ms an update", "× without", "s in all"], rows)


if __name__ == "__main__":
    main()
