"""Time mmfw's predict and MMF's own, whole processes, on the same checkpoint and machine.

python scripts/bench_predict.py                   the demo's dataset and model, on this machine's device
python scripts/bench_predict.py --rows 2000 --runs 5

MMF's own mmf_predict runs with its own defaults, and with nothing of mmfw but the patches that let it start.
mmfw also scores its predictions and writes their record, but makes no page. Both files are compared.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from _bench import MMFW, PYTHON, ROOT, Cost, make_parser, measure_command, print_costs, run_in_turn

from mmf_win.dataset.prediction_file import read_predictions
from mmf_win.demo.folder import DemoFolder
from mmf_win.paths import DatasetPaths
from mmf_win.runs import lookup

SPLIT = "many"  # a split of its own


def main() -> None:
    """Train the demo's model for a moment, predict with both in turn, and print a table."""
    options = make_parser(__doc__, runs=3)
    options.add_argument("--rows", type=int, default=1000, help="memes to predict")
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, demo = Path(name), DemoFolder(Path(name, "demo"))
        measure_command([*MMFW, "demo", "--dir", demo.path])
        run = lookup.find_run(demo.save_dir, None)
        write_repeated_split(DatasetPaths.from_data_dir(demo.data_dir), asked.rows)
        places = ("--data-dir", demo.data_dir, "--save-dir", demo.save_dir)

        def by_mmf() -> Cost:
            reports = Path(tempfile.mkdtemp(prefix="by-mmf-", dir=folder))
            return measure_command([PYTHON, ROOT / "scripts" / "_mmf_predict.py", run.path, SPLIT, reports])

        def by_mmfw() -> Cost:
            return measure_command([*MMFW, "predict", run.path, "--split", SPLIT, "--no-report", *places])

        print_costs(
            f"{asked.rows} memes", run_in_turn({"MMF's own": by_mmf, "**mmfw**": by_mmfw}, asked.runs)
        )
        theirs = [read_predictions(file) for file in folder.glob("by-mmf-*/*.csv")]
        ours = [read_predictions(file) for file in run.reports.glob(f"*_{SPLIT}_*.csv")]
    by_id = {row.id: row.proba for row in theirs[0]}
    apart = max(abs(row.proba - by_id[row.id]) for rows in (*theirs, *ours) for row in rows)
    print(f"\nThe probabilities differ by {apart:.1e} at most.")


def write_repeated_split(dataset: DatasetPaths, rows: int) -> None:
    """Make a split of the memes of the test set, repeated under new ids until there are so many."""
    lines = dataset.annotation_file("test_unseen").read_text(encoding="utf-8").splitlines()
    known = [json.loads(line) for line in lines]
    longer = [{**known[number % len(known)], "id": 100_000 + number} for number in range(rows)]
    dataset.annotation_file(SPLIT).write_text(
        "".join(json.dumps(row) + "\n" for row in longer), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
