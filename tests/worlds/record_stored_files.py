"""Records the files of tests/worlds/stored_files.py anew: real commands train, sweep and send a tiny world.

::

    python -m tests.worlds.record_stored_files FOLDER

works in FOLDER, which must be new, for a few minutes, and replaces ``tests/worlds/stored``. It needs PyTorch,
MMF and the extras mlflow, search and export. What was recorded must stay readable, since users have such
files: record anew only to add to it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.worlds import memes, stored_files, tiny_mmf

TRAINING = {"batch_size": 4, "num_workers": 0, "log_interval": 1}
_TEXT_SUFFIXES = {".json", ".jsonl", ".csv", ".yaml"}
_TEXT_FILE_NAMES = {"param", "stat", "SHA256SUMS", "tracking.key"}
_EXCLUDED_FOLDERS = {
    "world",
    "temporary",
    "raw",
    "profile",
    "exported",
    "bytecode",
    "imports",
    "features",
    "extras",
    "artifacts",
}


class Recorder:
    """Runs commands in a folder, and keeps the text files that they leave."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data, self.save = root / "data", root / "save"
        self.mmf_root = root

    def configure_environment(self) -> None:
        """Have this process use the folders of this world alone, but for MMF."""
        from mmf_win.upstream.install import find_mmf

        self.mmf_root = find_mmf().root
        world = tiny_mmf.TinyWorld(self.root / "world")
        for name in ("MMF_CACHE_DIR", "HF_HOME", "OMP_NUM_THREADS"):
            os.environ[name] = world.environment[name]
        os.environ["MMFW_HOME"] = str(self.root / "home")
        os.environ["MMF_USER_DIR"] = str(Path(tiny_mmf.__file__).with_name("faults"))
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{self.root / 'mlflow.db'}"
        os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
        self.root.mkdir(exist_ok=True)
        os.chdir(self.root)  # where MLflow puts models
        tempfile.tempdir = str(self.root / "temporary")
        Path(tempfile.tempdir).mkdir(parents=True, exist_ok=True)

    def build_dataset(self) -> None:
        """Make the dataset with ``mmfw convert``, and put features, words and models beside it."""
        world = tiny_mmf.build(self.root / "world")
        archive = self.root / "memes.zip"
        with zipfile.ZipFile(archive, "w") as file:
            for path in sorted(world.dataset.glob("annotations/*.jsonl")):
                file.write(path, path.name)
            for path in sorted(world.dataset.glob("images/img/*.png")):
                file.writestr(f"img/{path.name}", memes.image(int(path.stem)))
        self.run_command("setup", "--mmf", self.mmf_root)
        self.run_command("convert", archive, "--data-dir", self.data)
        left_out = shutil.ignore_patterns("img", "*.jsonl")
        shutil.copytree(world.data, self.data, dirs_exist_ok=True, ignore=left_out)

    def run_command(self, *arguments: object, code: int = 0, faults: list[dict[str, Any]] | None = None) -> None:
        """Run one command, which has to end with an exit code."""
        from mmf_win.cli import main

        os.environ["MMFW_TEST_FAULTS"] = json.dumps(faults or [])
        print("$ mmfw", *arguments, flush=True)
        ended = main(list(map(str, arguments)))
        assert ended == code, ended

    def run_in_folders(self, *arguments: object, **options: Any) -> None:
        """Run one with the folders of this world."""
        save = ["--save-dir", self.save]
        places = save if arguments[0] in ("runs", "track") else ["--data-dir", self.data, *save]
        self.run_command(*arguments, *places, **options)

    def write_preset(self, name: str, **changes: Any) -> Path:
        """Write the preset of a tiny recipe."""
        recipe = tiny_mmf.recipes()[name]
        settings = {**recipe.settings, "training": TRAINING}
        values = {"model": recipe.model, "config": recipe.config, "settings": settings, "offline": True}
        path = self.root / f"{name}.yaml"
        path.write_text(json.dumps(values | changes), encoding="utf-8")
        return path

    def record_common(self) -> None:
        """Do everything of which something stays on a disk."""
        mmbt, text, bert = self.write_preset("mmbt"), self.write_preset("text"), self.write_preset("bert")
        words = ("--updates", 3, "--seed", 1, "--name", "mmbt", "--keep-checkpoints", 2)
        self.run_in_folders("train", mmbt, *words, "training.evaluation_interval=1")
        self.run_in_folders("train", "--resume", "mmbt", "--updates", 4)
        self.run_in_folders("predict", "mmbt", "--split", "test_seen", "--no-report")
        self.run_in_folders("predict", "mmbt", "--split", "test_unseen", "--checkpoint", "last", "--no-report")
        csv = next((self.save / "mmbt").glob("*/reports/*test_seen*.csv"))
        self.run_in_folders("export", "mmbt", "-o", self.root / "exported")
        self.run_in_folders("train", text, "--updates", 2, "--seed", 2, "--name", "text", "optimizer.params.lr=0.002")
        self.run_in_folders("predict", "mmbt", "text", "--split", "test_seen", "--no-report")
        self.run_in_folders(
            "train", bert, "--updates", 2, "--name", "taught", "--teacher", self._make_teacher_file(csv)
        )
        oom = [{"at": "forward", "do": "cuda_oom", "above": 2}]
        stop = [*oom, {"at": "stepped", "do": "stop", "update": 3}]
        self.run_in_folders("train", text, "--updates", 4, "--seed", 3, "--name", "shrunk", faults=oom)
        self.run_in_folders("train", text, "--updates", 5, "--seed", 3, "--name", "stopped", code=130, faults=stop)
        nan = [{"at": "forward", "do": "nan", "update": 2}]
        self.run_in_folders("train", text, "--updates", 4, "--seed", 3, "--name", "nan", code=7, faults=nan)
        meter = [{"at": "meter", "above": 3}]
        self.run_in_folders("train", text, "--updates", 2, "--name", "searched", "--batch-size", "auto", faults=meter)
        slow = [{"at": "hardware", "do": "no_half"}]
        self.run_in_folders(
            "train", text, "--updates", 1, "--name", "noted", "--precision", "bf16", "--fast", faults=slow
        )
        weights = next((self.save / "text").glob("*/checkpoints/best.ckpt"))
        self.run_in_folders("train", text, "--updates", 1, "--seed", 4, "--name", "begun", "--init", weights)
        with self._keep_temporary_run("checked"):
            self.run_in_folders("check", text, "-o", self.root / "check.json")
        with self._keep_temporary_run("profiled"):
            self.run_in_folders("profile", text, "--updates", 6, "-o", self.root / "profile")
        self._record_sweeps(text)
        self.run_in_folders("verify")

    def record_rare(self) -> None:
        """Do what fills the other fields of the records."""
        published = {"val": {"accuracy": 58.2, "auroc": 68.57}, "test": {"accuracy": [60.06, 0.97]}}
        text, known = self.write_preset("text"), self.write_preset("image", published=published)
        weights = next((self.save / "text").glob("*/checkpoints/current.ckpt"))
        words = ("--updates", 1, "--name", "allowed", "--allow-missing", "--trust")
        self.run_in_folders("train", known, *words, "training.num_workers=1")
        self.run_in_folders("train", text, "--resume", weights, "--updates", 3, "--name", "continued")
        oom = [{"at": "validation", "do": "cuda_oom", "above": 2}]
        self.run_in_folders("predict", "text", "--split", "dev_seen", "--no-report", faults=oom)
        self.run_in_folders("export", "mmbt", "-o", self.root / "small", "--int8", "--max-loss", 1)
        bus = [{"at": "step", "do": "memory_error"}]
        self.run_in_folders("train", text, "--updates", 3, "--seed", 3, "--name", "host", code=5, faults=bus)
        nan = [{"at": "forward", "do": "nan", "update": 2}]
        words = ("--seeds", "7", "--updates", 3, "--slots", 1, "-o", self.save / "sweeps" / "failed")
        self.run_in_folders("sweep", "run", text, *words, code=7, faults=nan)
        self.run_in_folders("track", "push", "continued", "--to", "mlflow", "--track-models", "last")
        with self._keep_temporary_run("unlearned"):
            self.run_in_folders("check", text, "optimizer.params.lr=0")
        self.run_in_folders("train", text, "--epochs", 1, "--name", "epochs")
        self._convert_user_datasets()
        self._record_predictor()

    def store_files(self) -> None:
        """Store the files."""
        texts: dict[str, list[Path]] = {"runs": [], "sweeps": [], "data": [], "rest": []}
        for path in self.root.rglob("*"):
            inner = path.relative_to(self.root)
            is_text = path.suffix in _TEXT_SUFFIXES or path.name in _TEXT_FILE_NAMES
            if path.is_file() and is_text and not _EXCLUDED_FOLDERS & set(inner.parts):
                kind = {"save": "runs"}.get(inner.parts[0], inner.parts[0][:4])
                kind = kind if kind in texts else "rest"
                if "sweeps" in inner.parts:
                    kind = "sweeps"
                    if {"attempts", "checkpoints"} & set(inner.parts):  # as in other runs
                        continue
                texts[kind].append(path)
        texts["rest"] += [self.root / "exported" / "model.json", self.root / "world/cache/mmfw-checked.json"]
        stored_files.store_files(self.root, texts, sorted(self.root.glob("data*/**/img/*.png")), self.mmf_root)
        stored_files.store_checkpoints(self.root, [*self.save.rglob("*.ckpt")])

    def _make_teacher_file(self, csv: Path) -> Path:
        """Make a table with the probabilities of the training rows, as ``mmfw predict`` writes it."""
        self.run_in_folders("predict", "mmbt", "--split", "train", "--no-report")
        return next(csv.parent.glob("*_train_*.csv"))

    def _convert_user_datasets(self) -> None:
        """Convert memes of the user's own, and a set that lacks an image and whose others lack a label."""
        own, lacking = self.root / "temporary" / "own", self.root / "temporary" / "lacking"
        tables = {split: [*range(first, first + 4)] for split, first in (("train", 1), ("dev", 5), ("test", 9))}
        for split, ids in tables.items():
            rows = [f"мем-{id_},{id_:05}.png,{id_ % 2},a cat {id_}" for id_ in ids]
            memes.write_tree({f"{split}.csv": "\n".join(["id,img,label,text", *rows, ""]).encode()}, own)
            memes.write_tree({f"{id_:05}.png": memes.image(id_) for id_ in ids}, own)
        self.run_command("convert", own, "--data-dir", self.root / "data-own")
        memes.write_tree(memes.without_images(memes.dataset_files(), [3]), lacking)
        self.run_command("convert", lacking, "--allow-missing", "--data-dir", self.root / "data-lacking")

    def _record_predictor(self) -> None:
        """Predict with a worker that stays, and keep its files, which its end removes."""
        from mmf_win import Predictor

        image = next(self.data.rglob("*.png"))
        with Predictor(next((self.save / "text").iterdir()), data_dir=self.data) as predictor:
            predictor.predict(image, "a cat")
            for events in Path(tempfile.gettempdir()).rglob("events.jsonl"):
                shutil.copytree(events.parent, self.save / "served" / "2026" / "attempts" / "1")

    def _record_sweeps(self, preset: Path) -> None:
        words = ("--seeds", "1-2", "optimizer.params.lr=0.001,0.002", "--updates", 2, "--slots", 1)
        self.run_in_folders("sweep", "run", preset, *words, "-o", self.save / "sweeps" / "grid", "--track", "mlflow")
        file = self.root / "search.yaml"
        train = f"mmfw train {preset} --updates 2 --seed 5 optimizer.params.lr={{lr}}"
        file.write_text(_SEARCH_SPECIFICATION.format(train=train), encoding="utf-8")
        self.run_in_folders("sweep", "run", file, "--slots", 1, "-o", self.save / "sweeps" / "search")
        self.run_in_folders("track", "push", "mmbt", "--to", "mlflow")

    @contextmanager
    def _keep_temporary_run(self, name: str) -> Iterator[None]:
        """Keep the run that a command removes with its temporary folder."""
        original: Callable[..., None] = tempfile.TemporaryDirectory.__exit__

        def keep_and_remove(scratch: Any, *how: Any) -> None:
            if any(Path(scratch.name).glob("*/*/request.json")):
                shutil.copytree(scratch.name, self.save / name)
            original(scratch, *how)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tempfile.TemporaryDirectory, "__exit__", keep_and_remove)
            yield


_SEARCH_SPECIFICATION = """\
template:
  train: {train}
search:
  trials: 3
  metric: auroc
  direction: maximize
  sampler: random
  seed: 1
  parameters:
    lr: {{low: 0.0001, high: 0.01, log: true}}
"""


if __name__ == "__main__":
    recorder = Recorder(Path(sys.argv[1]).resolve())
    recorder.configure_environment()
    recorder.build_dataset()
    recorder.record_common()
    recorder.record_rare()
    recorder.store_files()
