"""Time trainings and predictions of mmfw, of MMF alone on the same Python, and of MMF as it was released.

python scripts/bench_training.py                           mmfw and MMF alone, in turn
python scripts/bench_training.py --stock python3.8         ... and MMF 1.0.0rc10 with its own pins, from PyPI
python scripts/bench_training.py --mmfw --precision=bf16   ... and mmfw with these words, too

The model is MMBT with a BERT of 4 layers of 256 and a ResNet of 4 blocks, so that a CPU can train it; the
pictures are PNGs of 350 kB, as those of the dataset are. All train with the same seed from the same BERT,
without DataLoader workers, and note each update and each checkpoint themselves. A second is one on the clock.

start        from the command to the end of the first update
update       median, after the first pass over the rows
checkpoint   median, each time as MMF saves
peak         memory of the largest process
predict      the whole command; uncached: without images that were decoded before
loss         the largest difference from MMF alone, over all updates
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from mmf_win.paths import Places
from mmf_win.upstream.install import usable_mmf
from mmf_win.worker import compat

ROOT = Path(__file__).resolve().parents[1]
WORDS = [f"word{number}" for number in range(900)]
BATCH = 8
MMBT = "projects/mmbt/configs/hateful_memes/defaults.yaml"


@dataclass
class Contestant:
    """Someone who trains and predicts.

    Attributes:
        name: in the table.
        words: more words for mmfw; None for MMF's own commands.
        run: the program and words that MMF's ``mmf_run`` begins with.
        predict: the same of ``mmf_predict``.
        measured: by column, a number a run.
        losses: of the last run.
    """

    name: str
    words: Sequence[str] | None = None
    run: Sequence[str] = ()
    predict: Sequence[str] = ()
    measured: dict[str, list[float]] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)

    def add(self, column: str, value: float) -> None:
        """Keep a number."""
        self.measured.setdefault(column, []).append(value)


class Bench:
    """The dataset, the BERT and the configuration, all in one folder."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options = folder, options
        self.bert = folder / "bert-small"
        self.places = Places.resolve(folder / "data", folder / "save")
        self.code = ROOT / "scripts" / "_bench_mmf"
        self.runs = 0

    def make(self) -> None:
        """Make everything that the contestants read."""
        make_bert(self.bert)
        archive = self.folder / "memes.zip"
        make_dataset(archive, self.options.memes)
        call(
            [sys.executable, "-m", "mmf_win", "convert", "--zip", archive, "--data-dir", self.places.data_dir]
        )
        archive.unlink()
        (self.folder / "nothing.yaml").write_text("{}\n", encoding="utf-8")
        encoder = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
        self.settings = {
            "model_config": {
                "mmbt": {
                    "bert_model_name": str(self.bert),
                    "text_hidden_size": 256,
                    "text_encoder": {"params": encoder},
                    "modal_encoder": {"params": {"pretrained": False}},
                }
            },
            "dataset_config": {
                "hateful_memes": {
                    "processors": {
                        "text_processor": {"params": {"tokenizer_config": {"type": str(self.bert)}}}
                    },
                }
            },
            "env": {"user_dir": str(self.code)},
            "training": {
                "batch_size": BATCH,
                "seed": 1,
                "max_updates": self.options.updates,
                "log_interval": 1,
                "num_workers": 0,
                "checkpoint_interval": max(1, self.options.updates // 2),
                "evaluation_interval": 10**6,
            },
        }
        preset = {
            "title": "bench",
            "model": "mmbt",
            "config": MMBT,
            "settings": self.settings,
            "offline": True,
        }
        (self.folder / "bench.yaml").write_text(json.dumps(preset), encoding="utf-8")
        files = {slot: [f"hateful_memes/defaults/annotations/{stem}.jsonl"] for slot, stem in SPLITS.items()}
        settings = {"includes": [MMBT], **self.settings}
        settings["dataset_config"]["hateful_memes"]["annotations"] = files
        (self.folder / "mmf.yaml").write_text(json.dumps(settings), encoding="utf-8")

    def race(self, each: Contestant) -> None:
        """Let one train and predict."""
        self.runs += 1
        notes, save = self.folder / f"notes-{self.runs}", self.folder / f"save-{self.runs}"
        environment = {
            **os.environ,
            "BENCH_NOTES": str(notes),
            "MMF_CACHE_DIR": str(self.folder / "cache"),
            "MMF_DATA_DIR": str(self.places.data_dir),
            "MMF_DATASET_ZOO": str(self.folder / "nothing.yaml"),
            "HF_HUB_OFFLINE": "1",
            "PYTHONUTF8": "1",
        }
        begun = time.time()
        if each.words is None:
            words = [f"config={self.folder / 'mmf.yaml'}", "model=mmbt", "dataset=hateful_memes"]
            own = [*words, f"env.save_dir={save}"]
            memory = call([*each.run, *own, "run_type=train_val"], environment)
        else:
            words = [
                "train",
                str(self.folder / "bench.yaml"),
                "--name",
                "bench",
                "--save-dir",
                str(save),
                "--trust",
            ]
            memory = call([sys.executable, "-m", "mmf_win", *words, *each.words], environment)
        each.add("whole", time.time() - begun)
        each.add("peak", memory / 2**20)
        self.read(each, notes, begun)
        folder = save if each.words is None else next((save / "bench").iterdir()) / "checkpoints"
        files = {path.stat().st_ino: path.stat().st_size for path in folder.rglob("*.ckpt")}
        each.add("disk", sum(files.values()) / 2**20)
        if self.options.predict:
            environment["MMF_REPORT_DIR"] = str(self.folder / f"reports-{self.runs}")
            if each.words is None:
                words = ["run_type=test", "checkpoint.resume=True", "checkpoint.resume_best=True"]
                command = [*each.predict, *own, *words, "evaluation.predict_file_format=csv"]
            else:
                words = ["predict", "--save-dir", str(save), "--split", "test_seen", "--no-report"]
                command = [sys.executable, "-m", "mmf_win", *words]
                each.add("uncached", timed(command, {**environment, "MMFW_IMAGE_CACHE": "off"}))
                if not each.measured.get("predict"):
                    call(command, environment)  # which fills the cache
            each.add("predict", timed(command, environment))
        shutil.rmtree(save)

    def pair(self) -> float:
        """Seconds that two trainings of mmfw take side by side."""
        names = [f"pair-{self.runs}-{number}" for number in (1, 2)]

        def train(name: str) -> None:
            environment = {**os.environ, "BENCH_NOTES": str(self.folder / name)}
            environment["MMF_CACHE_DIR"] = str(self.folder / "cache")
            save = self.folder / f"save-{name}"
            words = ["train", self.folder / "bench.yaml", "--trust", "--data-dir", self.places.data_dir]
            call([sys.executable, "-m", "mmf_win", *words, "--save-dir", save], environment)
            shutil.rmtree(save)

        begun = time.time()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(train, names))
        return time.time() - begun

    def read(self, each: Contestant, notes: Path, begun: float) -> None:
        """Take in what a training has noted."""
        lines = [line.split() for line in notes.read_text(encoding="utf-8").splitlines()]
        updates = [(float(at), float(loss)) for kind, at, loss in lines if kind == "update"]
        each.losses = [loss for _, loss in updates][: self.options.updates]  # rc10 alone may make one more
        times = [at for at, _ in updates]
        saved = [float(end) - float(begin) for kind, begin, end in lines if kind == "checkpoint"]
        each.add("start", times[0] - begun)
        first_pass = self.options.memes // BATCH
        gaps = [
            after - before for before, after in zip(times[first_pass:], times[first_pass + 1 :], strict=False)
        ]
        each.add("update", statistics.median(gaps))
        each.add("checkpoint", statistics.median(saved))


SPLITS = {"train": "train", "val": "dev_unseen", "test": "test_seen"}


def make_bert(folder: Path) -> None:
    """A BERT with random weights, in files that every version of transformers and torch reads."""
    mmf = usable_mmf()
    compat.install(mmf.root, mmf.version)  # torchvision may have been built for another torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(1)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        architectures=["BertModel"],
    )
    folder.mkdir()
    config.save_pretrained(folder)
    weights = BertModel(config).state_dict()
    torch.save(weights, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")


def make_dataset(archive: Path, memes: int) -> None:
    """An archive in the form of the release; its pictures are smooth ones with a grain."""
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
                zipped.writestr(f"hateful_memes/{name}", picture(random))
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            zipped.writestr(f"hateful_memes/{split}.jsonl", lines)


def picture(random: np.random.Generator) -> bytes:
    """A PNG of 550 × 400 pixels and about 350 kB."""
    y, x = np.mgrid[0:400, 0:550]
    bend = random.uniform(30, 80)
    smooth = np.stack([128 + 100 * np.sin(x / (bend + 10 * colour) + y / 60) for colour in range(3)], -1)
    grain = random.normal(0, 3, (400, 550, 1)) + random.normal(0, 1, (400, 550, 3))
    file = BytesIO()
    Image.fromarray(np.clip(smooth + grain, 0, 255).astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


def make_stock(python: str, folder: Path) -> Path:
    """An environment with MMF 1.0.0rc10 as it was released; one that is there is used again."""
    program = folder / "bin" / "mmf_run"
    if not program.is_file():
        call([python, "-m", "venv", folder])
        call([folder / "bin" / "pip", "install", "mmf==1.0.0rc10"])
    return folder


def call(command: Sequence[str | Path], environment: dict[str, str] | None = None) -> int:
    """Run a command, which must succeed, and return the peak of its memory in bytes."""
    environment = {**(environment or os.environ), "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            [str(word) for word in command], stdout=output, stderr=output, env=environment
        )
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            output.seek(0)
            sys.exit(
                output.read().decode(errors="replace")[-5000:] + f"\n{' '.join(map(str, command))} failed"
            )
    return used.ru_maxrss << 10


def timed(command: Sequence[str | Path], environment: dict[str, str]) -> float:
    """Seconds that a command takes."""
    begun = time.time()
    call(command, environment)
    return time.time() - begun


def show(contestants: Sequence[Contestant], base: Contestant) -> None:
    """Print the table: median, and in brackets the least and the most."""
    columns = [column for column in COLUMNS if any(column in each.measured for each in contestants)]
    print("\n| | " + " | ".join(f"{c}, {COLUMNS[c]}" for c in columns) + " | × | loss |")
    print("|---|" + "--:|" * (len(columns) + 2))
    bare = next(each for each in contestants if each.name == "MMF alone")
    for each in contestants:
        cells = []
        for column in columns:
            found = each.measured.get(column)
            cells.append(
                f"{statistics.median(found):.3g} ({min(found):.3g}–{max(found):.3g})" if found else ""
            )
        times = statistics.median(base.measured["update"]) / statistics.median(each.measured["update"])
        apart = max(abs(ours - theirs) for ours, theirs in zip(each.losses, bare.losses, strict=True))
        print(f"| {each.name} | {' | '.join(cells)} | {times:.2f} | {apart:.1e} |")


COLUMNS = {
    "start": "s",
    "update": "s",
    "checkpoint": "s",
    "disk": "MiB",
    "peak": "MiB",
    "predict": "s",
    "uncached": "s",
    "whole": "s",
}


def main() -> None:
    """Let all take turns, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3, help="of each, in turn")
    parser.add_argument("--updates", type=int, default=50)
    parser.add_argument("--memes", type=int, default=160, help="to train on, and as many to predict")
    parser.add_argument("--stock", metavar="PYTHON", help="a Python 3.8, to make an environment with")
    parser.add_argument("--stock-in", type=Path, default=ROOT / ".venv-stock", help="where to make it")
    parser.add_argument("--mmfw", action="append", default=[], metavar="WORDS", help="also with these words")
    parser.add_argument("--no-predict", dest="predict", action="store_false")
    parser.add_argument("--pairs", action="store_true", help="also train two at once")
    options = parser.parse_args()
    alone = (sys.executable, str(ROOT / "scripts" / "_mmf_alone.py"))
    contestants = [Contestant("MMF alone", None, (*alone, "run"), (*alone, "predict"))]
    if options.stock:
        stock = make_stock(options.stock, options.stock_in) / "bin"
        contestants.insert(
            0, Contestant("stock", None, [str(stock / "mmf_run")], [str(stock / "mmf_predict")])
        )
    contestants.append(Contestant("mmfw", []))
    contestants += [Contestant(f"mmfw {words}", words.split()) for words in options.mmfw]
    print(f"load before: {os.getloadavg()[0]:.1f}", flush=True)
    pairs: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), options)
        bench.make()
        for number in range(options.runs):
            for each in contestants:
                bench.race(each)
                figures = {column: round(found[-1], 3) for column, found in each.measured.items()}
                print(f"{number + 1}: {each.name}: {figures}", flush=True)
            if options.pairs:
                pairs.append(bench.pair())
                print(f"{number + 1}: two at once: {pairs[-1]:.1f} s", flush=True)
    show(contestants, contestants[0])
    if pairs:
        one = next(each for each in contestants if each.words == []).measured["whole"]
        times = statistics.median(pairs) / (2 * statistics.median(one))
        print(f"\nTwo of mmfw side by side take {times:.2f} times as long as one after the other.")
    print(f"\nload after: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
