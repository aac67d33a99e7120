"""Compare training and predictions of mmfw, of MMF alone on the same Python, and of MMF as released.

python scripts/bench_training.py                           mmfw and MMF alone, in turn
python scripts/bench_training.py --mmfw=--precision=bf16   also mmfw with these arguments
python scripts/bench_training.py --stock FOLDER            also MMF 1.0.0rc10 with its pinned dependencies

FOLDER is an environment of Python 3.8 into which `pip install mmf==1.0.0rc10` has installed them.

The model is MMBT with a BERT of 4 layers of 256 and a ResNet of 4 blocks, so that a CPU can train it; the
images are PNGs of 350 kB, as those of the dataset are. All train with the same seed from the same BERT,
without DataLoader workers, and record each update and each checkpoint themselves. Times are wall-clock
seconds.

start        from the command to the end of the first update
update       median, after the first pass over the rows
checkpoint   median, each time as MMF saves
disk         all checkpoints
peak         memory of the largest process
predict      the complete command; mmfw caches decoded images in its first one
loss         the largest difference from MMF alone, over all updates
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from _bench import (
    MMFW,
    PYTHON,
    ROOT,
    format_ratio,
    format_spread,
    make_parser,
    measure_command,
    print_table,
    run_in_turn,
)
from PIL import Image

from mmf_win import compat
from mmf_win.paths import DatasetPaths, presets_dir
from mmf_win.upstream.default_settings import ANNOTATIONS_TEMPLATE
from mmf_win.upstream.install import require_mmf

WORDS = [f"word{number}" for number in range(900)]
BATCH = 8
MMBT = "projects/mmbt/configs/hateful_memes/defaults.yaml"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SMALL = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
SMALL["vocab_size"] = len(SPECIAL) + len(WORDS)
MMBT_SIZES = {"hidden_size", "num_hidden_layers", "num_attention_heads"}
SPLITS = {"train": "train", "val": "dev_unseen", "test": "test_seen"}
_MMF_ALONE_COMMAND = (PYTHON, str(ROOT / "scripts" / "_mmf_alone.py"))


class TrainingFigures(NamedTuple):
    """Measurements of one training and prediction: seconds, MiB, and the loss of each update."""

    start: float
    update: float
    checkpoint: float
    disk: float
    peak: float
    predict: float
    losses: list[float]


class TrainingBench:
    """The dataset, the BERT and the configuration, in one folder.

    Args:
        folder: An empty folder.
        updates: Number of updates of each training.
        memes: Number of memes to train on, and to predict.
        sizes: Sizes in the configuration of the BERT; if empty, those of ``bert-base``.
    """

    def __init__(self, folder: Path, updates: int, memes: int, sizes: Mapping[str, int] = SMALL) -> None:
        self._folder, self._updates, self._memes, self._sizes = folder, updates, memes, sizes
        self._save, self._notes = folder / "save", folder / "notes"
        make_bert(folder / "bert", sizes)
        make_dataset(folder / "memes.zip", memes)
        measure_command([*MMFW, "convert", "--zip", folder / "memes.zip", "--data-dir", folder / "data"])
        settings = self._settings(str(folder / "bert"))
        preset = {"title": "bench", "model": "mmbt", "config": MMBT, "settings": settings, "offline": True}
        (folder / "bench.yaml").write_text(json.dumps(preset), encoding="utf-8")
        files = {slot: [ANNOTATIONS_TEMPLATE.format(stem)] for slot, stem in SPLITS.items()}
        settings["dataset_config"]["hateful_memes"]["annotations"] = files
        (folder / "mmf.yaml").write_text(json.dumps({"includes": [MMBT], **settings}), encoding="utf-8")

    def _settings(self, bert: str) -> dict[str, Any]:
        encoder = {key: size for key, size in self._sizes.items() if key in MMBT_SIZES}
        model = {
            "bert_model_name": bert,
            "text_hidden_size": encoder.get("hidden_size", 768),
            "text_encoder": {"params": encoder},
            "modal_encoder": {"params": {"pretrained": False}},
        }
        processors = {"text_processor": {"params": {"tokenizer_config": {"type": bert}}}}
        training = {
            "batch_size": BATCH,
            "seed": 1,
            "max_updates": self._updates,
            "log_interval": 1,
            "num_workers": 0,
            "checkpoint_interval": max(1, self._updates // 2),
            "evaluation_interval": 10**6,
        }
        return {
            "model_config": {"mmbt": model},
            "dataset_config": {"hateful_memes": {"processors": processors}},
            "env": {"user_dir": str(ROOT / "scripts" / "_bench_mmf")},
            "training": training,
        }

    def mmf_contestant(self, run: Sequence[str], predict: Sequence[str]) -> Callable[[], TrainingFigures]:
        """Return a contestant: MMF's `mmf_run` and `mmf_predict`, by these commands."""
        overrides = [f"config={self._folder / 'mmf.yaml'}", "model=mmbt", "dataset=hateful_memes"]
        overrides.append(f"env.save_dir={self._save}")
        best = ("checkpoint.resume=True", "checkpoint.resume_best=True")
        test = ("run_type=test", *best, "evaluation.predict_file_format=csv")
        return lambda: self._measure([*run, *overrides, "run_type=train_val"], [*predict, *overrides, *test])

    def mmfw_contestant(self, arguments: Sequence[str]) -> Callable[[], TrainingFigures]:
        """Return a contestant: mmfw, with additional arguments of `mmfw train`."""
        save = ("--save-dir", str(self._save))
        train = [*MMFW, "train", str(self._folder / "bench.yaml"), "--trust", *save, *arguments]
        return lambda: self._measure(train, [*MMFW, "predict", "--split", "test_seen", "--no-report", *save])

    def _measure(self, train: Sequence[str], predict: Sequence[str]) -> TrainingFigures:
        """Train, predict and return the measurements."""
        environment = {
            "BENCH_NOTES": str(self._notes),
            "MMF_CACHE_DIR": str(self._folder / "cache"),
            "MMF_DATA_DIR": str(self._folder / "data"),
            "MMF_DATASET_ZOO": str(presets_dir() / "zoo" / "nothing.yaml"),
            "MMF_REPORT_DIR": str(self._folder / "reports"),
            "HF_HUB_OFFLINE": "1",
        }
        start = time.time()
        peak = measure_command(train, **environment).memory
        lines = [line.split() for line in self._notes.read_text(encoding="utf-8").splitlines()]
        times = [float(at) for kind, at, _ in lines if kind == "update"]
        losses = [float(loss) for kind, _, loss in lines if kind == "update"]
        files = {path.stat().st_ino: path.stat().st_size for path in self._save.rglob("*.ckpt")}
        figures = TrainingFigures(
            start=times[0] - start,
            update=statistics.median(after - at for at, after in pairwise(times[self._memes // BATCH :])),
            checkpoint=statistics.median(float(end) - float(at) for k, at, end in lines if k == "checkpoint"),
            disk=sum(files.values()) / 2**20,
            peak=peak,
            predict=measure_command(predict, **environment).wall,
            losses=losses[: self._updates],  # rc10 alone may make one more
        )
        self._notes.unlink()
        shutil.rmtree(self._save)
        return figures


def make_bert(folder: Path, sizes: Mapping[str, int]) -> None:
    """Write a BERT with random weights that every version of transformers and torch can read."""
    mmf = require_mmf()
    compat.install(mmf.root)  # torchvision may have been built for another torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(1)
    config = BertConfig(**sizes, architectures=["BertModel"])
    folder.mkdir()
    config.save_pretrained(folder)
    weights = BertModel(config).state_dict()
    torch.save(weights, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *WORDS]) + "\n", encoding="utf-8")


def make_dataset(archive: Path, memes: int) -> None:
    """Write an archive like that of the release, with smooth images and noise."""
    random = np.random.default_rng(1)
    sizes = {"train": memes, "dev_seen": 8, "dev_unseen": 16, "test_seen": memes, "test_unseen": 16}
    number = 0
    with zipfile.ZipFile(archive, "w") as zipped:
        for split, count in sizes.items():
            rows = []
            for _ in range(count):
                number += 1
                text = " ".join(random.choice(WORDS, random.integers(6, 20)))
                name = f"img/{number:05}.png"
                rows.append({"id": f"{number:05}", "img": name, "label": number % 2, "text": text})
                zipped.writestr(f"hateful_memes/{name}", make_png(random))
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            zipped.writestr(f"hateful_memes/{split}.jsonl", lines)


def make_png(random: np.random.Generator) -> bytes:
    """Return a PNG of 550 × 400 pixels and about 350 kB."""
    y, x = np.mgrid[0:400, 0:550]
    bend = random.uniform(30, 80)
    smooth = np.stack([128 + 100 * np.sin(x / (bend + 10 * colour) + y / 60) for colour in range(3)], -1)
    grain = random.normal(0, 3, (400, 550, 1)) + random.normal(0, 1, (400, 550, 3))
    file = BytesIO()
    Image.fromarray(np.clip(smooth + grain, 0, 255).astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


def parse_small_options(description: str, rows: int) -> argparse.Namespace:
    """Parse the command line of a benchmark with a small MMBT."""
    parser = make_parser(description, runs=5)
    parser.add_argument("--rows", type=int, default=rows, help="memes to predict")
    parser.add_argument("--full-size", action="store_true", help="measure with bert-base and ResNet-152")
    options = parser.parse_args()
    if options.full_size:
        os.environ["BENCH_FULL_SIZE"] = "1"
    return options


def make_small_preset(folder: Path, options: argparse.Namespace) -> DatasetPaths:
    """Write the preset ``bench.yaml`` and its data to a folder; set the variables that its commands need."""
    TrainingBench(folder, updates=2, memes=options.rows, sizes={} if options.full_size else SMALL)
    os.environ |= {"BENCH_NOTES": str(folder / "notes"), "HF_HUB_OFFLINE": "1"}
    return DatasetPaths.from_data_dir(folder / "data")


def main() -> None:
    """Run all contestants in turn and print a table."""
    parser = make_parser(__doc__, runs=3)
    parser.add_argument("--updates", type=int, default=50)
    parser.add_argument("--memes", type=int, default=160, help="to train on, and as many to predict")
    parser.add_argument("--stock", type=Path, metavar="FOLDER", help="an environment with the versions that MMF pins")
    parser.add_argument("--mmfw", action="append", default=[], metavar="ARGUMENTS", help="also with these")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = TrainingBench(Path(folder), options.updates, options.memes)
        contestants = {
            "MMF alone": bench.mmf_contestant([*_MMF_ALONE_COMMAND, "run"], [*_MMF_ALONE_COMMAND, "predict"])
        }
        if options.stock:
            stock = [str(options.stock / "bin" / name) for name in ("mmf_run", "mmf_predict")]
            contestants = {"stock": bench.mmf_contestant(stock[:1], stock[1:]), **contestants}
        contestants |= {f"mmfw {flags}".strip(): bench.mmfw_contestant(flags.split()) for flags in ("", *options.mmfw)}
        results = run_in_turn(contestants, options.runs)
    base, base_losses = next(iter(results.values())), results["MMF alone"][-1].losses
    rows = []
    for name, all_figures in results.items():
        *columns, losses = zip(*all_figures, strict=True)
        difference = max(abs(loss - base_loss) for loss, base_loss in zip(losses[-1], base_losses, strict=True))
        times = format_ratio([figures.update for figures in base], columns[1])
        cells = [format_spread(column, ".0f" if column[0] > 100 else ".3g") for column in columns]
        rows.append([name, *cells, times, f"{difference:.1e}"])
    header = ("start, s", "update, s", "checkpoint, s", "disk, MiB", "peak, MiB", "predict, s", "×", "loss")
    print_table("", header, rows)


if __name__ == "__main__":
    main()
