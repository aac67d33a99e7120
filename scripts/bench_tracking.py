"""Measure the cost of `--track` for a training; needs Linux, MMF, `train` and MLflow with its server.

python scripts/bench_tracking.py                           a table on standard output
python scripts/bench_tracking.py --runs 9 --updates 1000   more and longer runs

The demo's tiny model, which has very short updates, trains with one thread: without tracking, with an MLflow
server on this machine, and with a server that never answers. They take turns.
"""

from __future__ import annotations

import socket
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

from _bench import MMFW, format_ratio, format_spread, make_parser, measure_command, print_table, run_in_turn
from _demo_dataset import make_demo_dataset
from _mlflow_server import run_mlflow_server

from mmf_win.protocol import read_events
from mmf_win.runs import lookup


class TrainingCost(NamedTuple):
    """Cost of a training: milliseconds per update, and seconds of the complete command."""

    update: float
    command_seconds: float


def measure_training(root: Path, updates: int, **environment: str) -> TrainingCost:
    """Train once and return the cost."""
    folders = ("--data-dir", root / "demo" / "data", "--save-dir", root / "demo" / "save")
    arguments = ("demo", "--updates", str(updates), "--seed", "1", "training.log_interval=10")
    start = time.perf_counter()
    measure_command([*MMFW, "train", *arguments, *folders], OMP_NUM_THREADS="1", **environment)
    command_seconds = time.perf_counter() - start
    events = read_events(lookup.find_run(root / "demo" / "save", "demo").events)
    first, *_, last = (event for event in events if event["kind"] == "train")
    return TrainingCost(1000 * (last["t"] - first["t"]) / (last["update"] - first["update"]), command_seconds)


def main() -> None:
    """Print a table in Markdown."""
    parser = make_parser(__doc__, runs=5)
    parser.add_argument("--updates", type=int, default=600, help="of each run")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="bench-tracking-") as root,
        socket.create_server(("127.0.0.1", 0)) as silent,
        run_mlflow_server(Path(root)),
    ):
        make_demo_dataset(Path(root, "demo"))
        train = partial(measure_training, Path(root), options.updates)
        train(MMFW_TRACK="")
        results = run_in_turn(
            {
                "without": partial(train, MMFW_TRACK=""),
                "**sent to MLflow**": train,
                "a server that never answers": partial(
                    train, MLFLOW_TRACKING_URI=f"http://127.0.0.1:{silent.getsockname()[1]}"
                ),
            },
            options.runs,
        )
    base = [cost.update for cost in results["without"]]
    rows = []
    for name, costs in results.items():
        update, command_seconds = ([*values] for values in zip(*costs, strict=True))
        rows.append([name, format_spread(update), format_ratio(update, base), format_spread(command_seconds, ".1f")])
    print_table("of a training", ["ms an update", "× without", "s in all"], rows)


if __name__ == "__main__":
    main()
