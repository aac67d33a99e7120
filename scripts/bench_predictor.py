"""Time `mmf_win.Predictor` beside what its worker takes by itself, and beside `mmfw predict` for one meme.

python scripts/bench_predictor.py                an MMBT with a small BERT and ResNet
python scripts/bench_predictor.py --full-size    ... with a BERT and ResNet-152 of full size

The model is that of bench_training.py, which was trained for two updates, and predicts on the CPU. The
worker's own time is that of reading the image, making tokens of the text, and the model.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from _bench import MMFW, format_spread, measure_command, print_table, run_in_turn
from bench_training import make_small_preset, parse_small_options

from mmf_win import Predictor
from mmf_win.dataset.annotations import read_annotations

SPLIT = "test_seen"


class PredictorTimes(NamedTuple):
    """Of one predictor: seconds until it is ready, and medians of milliseconds for each meme."""

    ready: float
    path: float
    worker: float
    rest: float
    content: float
    many: float


def measure_ms(predict: Callable[[], object], memes: int = 1) -> float:
    """Milliseconds for each of the memes that a call predicts."""
    began = time.perf_counter()
    predict()
    return 1000 * (time.perf_counter() - began) / memes


def measure_predictor(save: Path, pairs: list[tuple[Path, str]]) -> PredictorTimes:
    """Make a predictor, and let it predict all memes one by one, of paths and of bytes, and in batches."""
    began = time.perf_counter()
    with Predictor("bench", save_dir=save, cpu=True, trust=True) as predictor:
        ready, told, ask = time.perf_counter() - began, list[float](), predictor._model.predict_rows

        def predict_and_record(rows: list[dict[str, Any]]) -> dict[str, Any]:
            answer = ask(rows)
            told.append(answer["ms"])
            return answer

        predictor.predict(*pairs[0])
        vars(predictor._model)["ask"] = predict_and_record
        by_path = [measure_ms(partial(predictor.predict, *pair)) for pair in pairs]
        worker = statistics.median(told)
        rest = statistics.median(all_ - own for all_, own in zip(by_path, told, strict=True))
        contents = [(path.read_bytes(), text) for path, text in pairs]
        by_content = [measure_ms(partial(predictor.predict, *pair)) for pair in contents]
        many = measure_ms(lambda: list(predictor.predict_many(pairs)), len(pairs))
    return PredictorTimes(
        ready, statistics.median(by_path), worker, rest, statistics.median(by_content), many
    )


def main() -> None:
    """Train for a moment, measure, and print tables."""
    asked = parse_small_options(__doc__, rows=64)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dataset, save = make_small_preset(folder, asked), folder / "save"
        places = ("--data-dir", folder / "data", "--save-dir", save)
        measure_command([*MMFW, "train", folder / "bench.yaml", "--trust", "--name", "bench", *places])
        pairs = [
            (dataset.images / row.img, row.text) for row in read_annotations(dataset.annotation_file(SPLIT))
        ]
        image, text = pairs[0]
        one = [*MMFW, "predict", "--image", image, "--text", text, "--trust", *places]
        measure_predictor(save, pairs[:1])  # compiles modules and reads programs
        times = run_in_turn({"": lambda: measure_predictor(save, pairs)}, asked.runs)[""]
        whole = run_in_turn({"": lambda: measure_command(one).wall}, asked.runs)[""]
    ready, path, worker, rest, content, many = zip(*times, strict=True)

    columns = {"`mmfw predict --image`": [1000 * value for value in whole], "**Predictor**, a path": path}
    columns |= {"of that, the worker": worker, "of that, all else": rest}
    columns |= {"Predictor, bytes": content, "Predictor, a meme of 8 at once": many}
    print_table(
        f"{len(pairs)} memes", ("ms",), [(name, format_spread(of, ".1f")) for name, of in columns.items()]
    )
    print(f"\nSeconds until a predictor is ready: {format_spread(ready, '.1f')}")


if __name__ == "__main__":
    main()
