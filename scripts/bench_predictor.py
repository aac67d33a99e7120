"""Compare the time of `mmf_win.Predictor` with that of its worker, and with `mmfw predict` for one meme.

python scripts/bench_predictor.py                an MMBT with a small BERT and ResNet
python scripts/bench_predictor.py --full-size    an MMBT with a BERT and ResNet-152 of full size

The model is that of bench_training.py, trained for two updates, and predicts on the CPU. The worker's time
consists of reading the image, tokenizing the text, and the model.
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
    """Times of a predictor: seconds until it is ready, and medians of milliseconds per meme."""

    ready: float
    path: float
    worker: float
    overhead: float
    content: float
    many: float


def measure_ms(predict: Callable[[], object], memes: int = 1) -> float:
    """Return the milliseconds per meme of a call."""
    start = time.perf_counter()
    predict()
    return 1000 * (time.perf_counter() - start) / memes


def measure_predictor(save: Path, pairs: list[tuple[Path, str]]) -> PredictorTimes:
    """Create a predictor and predict all memes: one by one from paths, from bytes, and in batches."""
    start = time.perf_counter()
    with Predictor("bench", save_dir=save, cpu=True, trust=True) as predictor:
        ready, worker_ms, predict_rows = (time.perf_counter() - start, list[float](), predictor._model.predict_rows)

        def predict_and_record(rows: list[dict[str, Any]]) -> dict[str, Any]:
            reply = predict_rows(rows)
            worker_ms.append(reply["ms"])
            return reply

        predictor.predict(*pairs[0])
        vars(predictor._model)["predict_rows"] = predict_and_record
        by_path = [measure_ms(partial(predictor.predict, *pair)) for pair in pairs]
        worker = statistics.median(worker_ms)
        overhead = statistics.median(all_ - in_worker for all_, in_worker in zip(by_path, worker_ms, strict=True))
        contents = [(path.read_bytes(), text) for path, text in pairs]
        by_content = [measure_ms(partial(predictor.predict, *pair)) for pair in contents]
        many = measure_ms(lambda: list(predictor.predict_many(pairs)), len(pairs))
    return PredictorTimes(ready, statistics.median(by_path), worker, overhead, statistics.median(by_content), many)


def main() -> None:
    """Train briefly, measure, and print tables."""
    options = parse_small_options(__doc__, rows=64)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dataset, save = make_small_preset(folder, options), folder / "save"
        folders = ("--data-dir", folder / "data", "--save-dir", save)
        measure_command([*MMFW, "train", folder / "bench.yaml", "--trust", "--name", "bench", *folders])
        pairs = [(dataset.images / row.img, row.text) for row in read_annotations(dataset.annotation_file(SPLIT))]
        image, text = pairs[0]
        command = [*MMFW, "predict", "--image", image, "--text", text, "--trust", *folders]
        measure_predictor(save, pairs[:1])  # warm-up: compiles modules and fills the disk cache
        times = run_in_turn({"": lambda: measure_predictor(save, pairs)}, options.runs)[""]
        command_seconds = run_in_turn({"": lambda: measure_command(command).wall}, options.runs)[""]
    ready, path, worker, overhead, content, many = zip(*times, strict=True)

    columns = {"`mmfw predict --image`": [1000 * value for value in command_seconds], "**Predictor**, a path": path}
    columns |= {"of that, the worker": worker, "of that, all else": overhead}
    columns |= {"Predictor, bytes": content, "Predictor, a meme of 8 at once": many}
    print_table(
        f"{len(pairs)} memes", ("ms",), [(name, format_spread(values, ".1f")) for name, values in columns.items()]
    )
    print(f"\nSeconds until a predictor is ready: {format_spread(ready, '.1f')}")


if __name__ == "__main__":
    main()
