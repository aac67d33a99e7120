"""Time what `mmfw export` makes beside `mmfw predict`, whole processes, and compare their probabilities.

python scripts/bench_export.py                   an MMBT with a small BERT and ResNet
python scripts/bench_export.py --rows 64 --full-size     ... with a BERT and ResNet-152 of full size

The model is that of bench_training.py, which was trained for two updates. All predict the same memes on the
CPU; mmfw also scores its predictions and writes their record, but makes no page.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

from _bench import MMFW, PYTHON, Cost, call, race, show
from bench_training import asked_for_small, make_small

from mmf_win.dataset.annotations import read_annotations
from mmf_win.dataset.prediction_file import read_predictions

SPLIT = "test_seen"


def main() -> None:
    """Train for a moment, export with 32 and 8 bits, let all predict in turn, and print tables."""
    asked = asked_for_small(__doc__, rows=512)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dataset, csv = make_small(folder, asked), folder / "out.csv"
        places = ("--data-dir", folder / "data", "--save-dir", folder / "save")
        call([*MMFW, "train", folder / "bench.yaml", "--trust", *places])
        for made, words in {"model": (), "int8": ("--int8", "--max-loss", "1")}.items():
            call([*MMFW, "export", "-o", folder / made, "--split", SPLIT, "--trust", *words, *places])
        rows = read_annotations(dataset.annotation_file(SPLIT))
        table = dataset.images / "rows.jsonl"  # which its images are relative to
        lines = (json.dumps({"id": row.id, "img": row.img, "text": row.text}) for row in rows)
        table.write_text("\n".join(lines), encoding="utf-8")
        one = ("--image", dataset.images / rows[0].img, "--text", rows[0].text)

        def by_mmfw(*words: str | Path) -> Callable[[], Cost]:
            return lambda: call([*MMFW, "predict", "--trust", *words, *places])

        def by_run(made: str, *words: str | Path) -> Callable[[], Cost]:
            return lambda: call([PYTHON, folder / made / "run.py", *words, "-o", csv])

        many = by_mmfw("--split", SPLIT, "--no-report", "--precision", "fp32", "-o", folder / "predicted")
        contestants = {"`mmfw predict`": many, "run.py, int8": by_run("int8", table)}
        contestants |= {"**run.py**": by_run("model", table)}  # the last one, whose file is compared
        show(f"{len(rows)} memes", race(contestants, asked.runs))
        found = {row.id: row.proba for row in read_predictions(csv)}
        expected = read_predictions(next((folder / "predicted").glob("*.csv")))
        contestants = {"`mmfw predict`": by_mmfw(*one), "**run.py**": by_run("model", *one)}
        show("one meme", race(contestants, asked.runs))
        told = json.loads((folder / "int8" / "model.json").read_text(encoding="utf-8"))["int8"]
    apart = max(abs(row.proba - found[row.id]) for row in expected)
    print(f"\nThe probabilities differ by {apart:.1e} at most.")
    print(f"Of one meme, without the start, and with int8: {json.dumps(told)}")


if __name__ == "__main__":
    main()
