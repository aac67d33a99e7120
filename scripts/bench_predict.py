"""Time mmfw's predict and MMF's own, whole processes, on the same checkpoint and machine.

python scripts/bench_predict.py                   the demo's dataset and model, on this machine's device
python scripts/bench_predict.py --rows 2000 --runs 5

MMF's own mmf_predict runs with its own defaults, and with nothing of mmfw but the patches that let it start.
mmfw also scores its predictions and writes their record, but makes no page. Both files are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from mmf_win.dataset.predictions import read_predictions
from mmf_win.paths import Places
from mmf_win.runs.folder import Run

ROOT = Path(__file__).parents[1]
SPLIT = "many"  # a split of its own


def mmfw(*words: str | Path) -> str:
    """What a command of mmfw prints as JSON."""
    return call([sys.executable, "-m", "mmf_win", *map(str, words), "--json"])


def call(command: Sequence[str | Path]) -> str:
    """The output of a command, which must succeed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8")
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return done.stdout


def main() -> None:
    """Train the demo's model for a moment, predict with both in turn, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3, help="of which the median is told")
    parser.add_argument("--rows", type=int, default=1000, help="memes to predict")
    options = parser.parse_args()
    print(f"load before: {os.getloadavg()[0]:.1f}; medians of {options.runs}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        compare(Path(folder), options.rows, options.runs)
    print(f"\nload after: {os.getloadavg()[0]:.1f}")


def compare(folder: Path, rows: int, runs: int) -> None:
    """Predict with both in turn, so that a busy moment of the machine hits both alike."""
    demo = json.loads(mmfw("demo", "--dir", folder / "demo"))
    run = Run(Path(demo["save_dir"], demo["run"]))
    lengthen(Path(demo["data_dir"]), rows)
    where = ("--data-dir", demo["data_dir"], "--save-dir", demo["save_dir"])
    walls: dict[str, list[float]] = {"MMF's own": [], "**mmfw**": []}
    apart = 0.0
    for number in range(runs):
        reports = folder / f"by-mmf-{number}"
        reports.mkdir()
        start = time.monotonic()
        call([sys.executable, ROOT / "scripts" / "_mmf_predict.py", run.path, SPLIT, reports])
        walls["MMF's own"].append(time.monotonic() - start)
        start = time.monotonic()
        ours = json.loads(mmfw("predict", run.path, "--split", SPLIT, "--no-report", *where))
        walls["**mmfw**"].append(time.monotonic() - start)
        [own] = reports.glob("*.csv")
        by_id = {row.id: row.proba for row in read_predictions(own)}
        mine = read_predictions(Path(ours["csv"]))
        apart = max(apart, *(abs(row.proba - by_id[row.id]) for row in mine))
    base = statistics.median(walls["MMF's own"])
    print(f"\n### {rows} memes; the probabilities differ by {apart:.1e} at most\n")
    print("| | wall s | memes/s | × |\n|---|--:|--:|--:|")
    for name, spent in walls.items():
        wall = statistics.median(spent)
        print(f"| {name} | {wall:.2f} | {rows / wall:.1f} | {base / wall:.2f} |", flush=True)


def lengthen(data_dir: Path, rows: int) -> None:
    """Make a split of the memes of the test set, repeated under new ids until there are so many."""
    dataset = Places.resolve(data_dir).dataset
    known = [
        json.loads(line) for line in dataset.split("test_unseen").read_text(encoding="utf-8").splitlines()
    ]
    longer = [{**known[number % len(known)], "id": 100_000 + number} for number in range(rows)]
    dataset.split(SPLIT).write_text("".join(json.dumps(row) + "\n" for row in longer), encoding="utf-8")


if __name__ == "__main__":
    main()
