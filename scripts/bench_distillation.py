"""Train a small student with and without a teacher, and compare its AUROCs on the test set.

python scripts/bench_distillation.py --dir /tmp/distillation        what is there already is not trained again

The teacher is the model of `mmfw demo`; the student has half its width for images.
"""

from __future__ import annotations

import math
from pathlib import Path
from statistics import mean, stdev

from _bench import MMFW, make_parser, measure_command, print_table
from scipy.stats import t

from mmf_win.demo.folder import DemoFolder
from mmf_win.results import metrics_file
from mmf_win.runs import lookup
from mmf_win.runs.folder import Run

WIDTHS = {"v_hidden_size": 32, "v_intermediate_size": 64, "bi_hidden_size": 32}
STUDENT = [f"model_config.vilbert.{key}={value}" for key, value in WIDTHS.items()]


def main() -> None:
    """Train all, predict the test set with each, and print two tables."""
    options = make_parser(__doc__, runs=5)
    options.add_argument("--dir", type=Path, required=True, help="where everything is kept")
    asked = options.parse_args()
    demo = DemoFolder(asked.dir)
    places = ("--data-dir", demo.data_dir, "--save-dir", demo.save_dir)

    def get_predictions(run: Run, split: str) -> Path:
        """The predictions of a split, which are made if there are none."""
        if not (made := [*run.reports.glob(f"*_{split}_*.csv")]):
            measure_command([*MMFW, "predict", run.path, "--split", split, "--no-report", *places])
            made = [*run.reports.glob(f"*_{split}_*.csv")]
        return made[0]

    if not any(lookup.iter_matching_runs(demo.save_dir, "demo")):
        measure_command([*MMFW, "demo", "--dir", demo.path])
    teacher = lookup.find_run(demo.save_dir, "demo")
    lessons = get_predictions(teacher, "train")
    found: dict[str, list[float]] = {"alone": [], "teacher": []}
    for seed in range(1, asked.runs + 1):
        for way, aurocs in found.items():
            name = f"{way}-{seed}"
            if not any(lookup.iter_matching_runs(demo.save_dir, name)):
                words = ["--teacher", lessons] if way == "teacher" else []
                measure_command(
                    [*MMFW, "train", "demo", *STUDENT, "--seed", str(seed), "--name", name, *words, *places]
                )
            csv = get_predictions(lookup.find_run(demo.save_dir, name), "test_unseen")
            aurocs.append(metrics_file.read_metrics(csv)["auroc"])
            print(name, aurocs[-1], flush=True)
    by_teacher = metrics_file.read_metrics(get_predictions(teacher, "test_unseen"))["auroc"]
    rows = [("teacher itself", f"{by_teacher:.4f}", "")]
    for way, aurocs in found.items():
        rows.append((f"student, {way}", f"{mean(aurocs):.4f}", f"{stdev(aurocs):.4f}"))
    gains = [by - alone for alone, by in zip(*found.values(), strict=True)]
    half = float(t.ppf(0.975, len(gains) - 1)) * stdev(gains) / math.sqrt(len(gains))
    print_table("test AUROC", ("mean", "sd"), rows)
    low, high = (mean(gains) + sign * half for sign in (-1, 1))
    print(f"\nGain by the seed: {mean(gains):+.4f}, 95 %: {low:+.4f} to {high:+.4f}")


if __name__ == "__main__":
    main()
