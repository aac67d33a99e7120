"""Train a small student with and without a teacher, and compare the AUROCs on the test set.

python scripts/bench_distillation.py --dir /tmp/distillation        existing runs are not trained again

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
    """Train all models, predict the test set with each, and print a table."""
    parser = make_parser(__doc__, runs=5)
    parser.add_argument("--dir", type=Path, required=True, help="the folder of all files")
    options = parser.parse_args()
    demo = DemoFolder(options.dir)
    folders = ("--data-dir", demo.data_dir, "--save-dir", demo.save_dir)

    def get_predictions(run: Run, split: str) -> Path:
        """Return the predictions of a split, which are created if they do not exist."""
        if not (files := [*run.reports.glob(f"*_{split}_*.csv")]):
            measure_command([*MMFW, "predict", run.path, "--split", split, "--no-report", *folders])
            files = [*run.reports.glob(f"*_{split}_*.csv")]
        return files[0]

    if not any(lookup.iter_matching_runs(demo.save_dir, "demo")):
        measure_command([*MMFW, "demo", "--dir", demo.path])
    teacher = lookup.find_run(demo.save_dir, "demo")
    teacher_file = get_predictions(teacher, "train")
    results: dict[str, list[float]] = {"alone": [], "teacher": []}
    for seed in range(1, options.runs + 1):
        for kind, aurocs in results.items():
            name = f"{kind}-{seed}"
            if not any(lookup.iter_matching_runs(demo.save_dir, name)):
                teacher_arguments = ["--teacher", teacher_file] if kind == "teacher" else []
                measure_command(
                    [
                        *MMFW,
                        "train",
                        "demo",
                        *STUDENT,
                        "--seed",
                        str(seed),
                        "--name",
                        name,
                        *teacher_arguments,
                        *folders,
                    ]
                )
            csv = get_predictions(lookup.find_run(demo.save_dir, name), "test_unseen")
            aurocs.append(metrics_file.read_metrics(csv)["auroc"])
            print(name, aurocs[-1], flush=True)
    teacher_auroc = metrics_file.read_metrics(get_predictions(teacher, "test_unseen"))["auroc"]
    rows = [("teacher itself", f"{teacher_auroc:.4f}", "")]
    for kind, aurocs in results.items():
        rows.append((f"student, {kind}", f"{mean(aurocs):.4f}", f"{stdev(aurocs):.4f}"))
    gains = [distilled - plain for plain, distilled in zip(*results.values(), strict=True)]
    half = float(t.ppf(0.975, len(gains) - 1)) * stdev(gains) / math.sqrt(len(gains))
    print_table("test AUROC", ("mean", "sd"), rows)
    low, high = (mean(gains) + sign * half for sign in (-1, 1))
    print(f"\nGain by the seed: {mean(gains):+.4f}, 95 %: {low:+.4f} to {high:+.4f}")


if __name__ == "__main__":
    main()
