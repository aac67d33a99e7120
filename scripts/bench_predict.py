"""Compare the time of `mmfw predict` and MMF's `mmf_predict`, as complete processes with the same checkpoint.

python scripts/bench_predict.py                         the demo's dataset and model, on the default device
python scripts/bench_predict.py --rows 2000 --runs 5

MMF's `mmf_predict` runs with its defaults, and with only the patches that are required to start. mmfw
also scores its predictions and saves them, but writes no report. The probabilities are compared.
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

SPLIT = "many"  # an additional split


def main() -> None:
    """Run the demo, predict with both in turn, and print a table."""
    parser = make_parser(__doc__, runs=3)
    parser.add_argument("--rows", type=int, default=1000, help="memes to predict")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, demo = Path(name), DemoFolder(Path(name, "demo"))
        measure_command([*MMFW, "demo", "--dir", demo.path])
        run = lookup.find_run(demo.save_dir, None)
        write_repeated_split(DatasetPaths.from_data_dir(demo.data_dir), options.rows)
        folders = ("--data-dir", demo.data_dir, "--save-dir", demo.save_dir)

        def predict_with_mmf() -> Cost:
            reports = Path(tempfile.mkdtemp(prefix="by-mmf-", dir=folder))
            return measure_command([PYTHON, ROOT / "scripts" / "_mmf_predict.py", run.path, SPLIT, reports])

        def predict_with_mmfw() -> Cost:
            return measure_command([*MMFW, "predict", run.path, "--split", SPLIT, "--no-report", *folders])

        print_costs(
            f"{options.rows} memes",
            run_in_turn({"MMF's own": predict_with_mmf, "**mmfw**": predict_with_mmfw}, options.runs),
        )
        mmf_predictions = [read_predictions(file) for file in folder.glob("by-mmf-*/*.csv")]
        mmfw_predictions = [read_predictions(file) for file in run.reports.glob(f"*_{SPLIT}_*.csv")]
    by_id = {row.id: row.proba for row in mmf_predictions[0]}
    difference = max(abs(row.proba - by_id[row.id]) for rows in (*mmf_predictions, *mmfw_predictions) for row in rows)
    print(f"\nThe probabilities differ by {difference:.1e} at most.")


def write_repeated_split(dataset: DatasetPaths, rows: int) -> None:
    """Write a split with ``rows`` memes by repeating those of the test set under new IDs."""
    lines = dataset.annotation_file("test_unseen").read_text(encoding="utf-8").splitlines()
    memes = [json.loads(line) for line in lines]
    repeated = [{**memes[number % len(memes)], "id": 100_000 + number} for number in range(rows)]
    dataset.annotation_file(SPLIT).write_text("".join(json.dumps(row) + "\n" for row in repeated), encoding="utf-8")


if __name__ == "__main__":
    main()
