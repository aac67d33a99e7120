"""Compare time and probabilities of exported models and of `mmfw predict`, as complete processes.

python scripts/bench_export.py                           an MMBT with a small BERT and ResNet
python scripts/bench_export.py --rows 64 --full-size     an MMBT with a BERT and ResNet-152 of full size

The model is that of bench_training.py, trained for two updates. All predict the same memes on the CPU; mmfw
also scores its predictions and saves them, but writes no report.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

from _bench import MMFW, PYTHON, Cost, measure_after_warmup, measure_command, print_costs
from bench_training import make_small_preset, parse_small_options

from mmf_win.dataset.annotations import read_annotations
from mmf_win.dataset.prediction_file import read_predictions

SPLIT = "test_seen"


def main() -> None:
    """Train briefly, export with 32 and 8 bits, predict with each in turn, and print tables."""
    options = parse_small_options(__doc__, rows=512)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dataset, csv = make_small_preset(folder, options), folder / "out.csv"
        folders = ("--data-dir", folder / "data", "--save-dir", folder / "save")
        measure_command([*MMFW, "train", folder / "bench.yaml", "--trust", *folders])
        for model_name, arguments in {"model": (), "int8": ("--int8", "--max-loss", "1")}.items():
            measure_command(
                [*MMFW, "export", "-o", folder / model_name, "--split", SPLIT, "--trust", *arguments, *folders]
            )
        rows = read_annotations(dataset.annotation_file(SPLIT))
        table = dataset.images / "rows.jsonl"  # the images are relative to its folder
        lines = (json.dumps({"id": row.id, "img": row.img, "text": row.text}) for row in rows)
        table.write_text("\n".join(lines), encoding="utf-8")
        meme = ("--image", dataset.images / rows[0].img, "--text", rows[0].text)

        def mmfw_contestant(*arguments: str | Path) -> Callable[[], Cost]:
            return lambda: measure_command([*MMFW, "predict", "--trust", *arguments, *folders])

        def exported_contestant(exported: str, *arguments: str | Path) -> Callable[[], Cost]:
            return lambda: measure_command([PYTHON, folder / exported / "run.py", *arguments, "-o", csv])

        many = mmfw_contestant("--split", SPLIT, "--no-report", "--precision", "fp32", "-o", folder / "predicted")
        contestants = {"`mmfw predict`": many, "run.py, int8": exported_contestant("int8", table)}
        contestants |= {
            "**run.py**": exported_contestant("model", table)
        }  # last, since its output file is compared below
        print_costs(f"{len(rows)} memes", measure_after_warmup(contestants, options.runs))
        exported_probas = {row.id: row.proba for row in read_predictions(csv)}
        expected = read_predictions(next((folder / "predicted").glob("*.csv")))
        contestants = {"`mmfw predict`": mmfw_contestant(*meme), "**run.py**": exported_contestant("model", *meme)}
        print_costs("one meme", measure_after_warmup(contestants, options.runs))
        timings = json.loads((folder / "int8" / "model.json").read_text(encoding="utf-8"))["int8"]
    difference = max(abs(row.proba - exported_probas[row.id]) for row in expected)
    print(f"\nThe probabilities differ by {difference:.1e} at most.")
    print(f"Of one meme, without the start, and with int8: {json.dumps(timings)}")


if __name__ == "__main__":
    main()
