"""Recorder of the files of tests/worlds/stored_files.py, which real commands write for a tiny world.

::

    python -m tests.worlds.record_stored_files FOLDER

works in FOLDER, which must be new, for a few minutes, and replaces ``tests/worlds/stored``. It needs PyTorch, MMF and
the extras mlflow, search and export. Recorded files must stay readable, because users have such files; therefore
record again only to add files.
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
    """Recorder that runs commands in a folder and stores the files that they write."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data, self.save = root / "data", root / "save"
        self.mmf_root = root

    def configure_environment(self) -> None:
        """Configure this process to use only folders of this world, except for MMF."""
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
        os.chdir(self.root)  # MLflow writes models to the current folder
        tempfile.tempdir = str(self.root / "temporary")
        Path(tempfile.tempdir).mkdir(parents=True, exist_ok=True)

    def build_dataset(self) -> None:
        """Convert the dataset with ``mmfw convert``, and copy features, word vectors and models to the data folder."""
        world = tiny_mmf.build(self.root / "world")
        archive = self.root / "memes.zip"
        with zipfile.ZipFile(archive, "w") as file:
            for path in sorted(world.dataset.glob("annotations/*.jsonl")):
                file.write(path, path.name)
            for path in sorted(world.dataset.glob("images/img/*.png")):
                file.writestr(f"img/{path.name}", memes.image(int(path.stem)))
        self.run_command("setup", "--mmf", self.mmf_root)
        self.run_command("convert", archive, "--data-dir", self.data)
        ignored = shutil.ignore_patterns("img", "*.jsonl")
        shutil.copytree(world.data, self.data, dirs_exist_ok=True, ignore=ignored)

    def run_command(self, *arguments: object, code: int = 0, faults: list[dict[str, Any]] | None = None) -> None:
        """Run a command that must exit with ``code``."""
        from mmf_win.cli import main

        os.environ["MMFW_TEST_FAULTS"] = json.dumps(faults or [])
        print("$ mmfw", *arguments, flush=True)
        exit_code = main(list(map(str, arguments)))
        assert exit_code == code, exit_code

    def run_with_folders(self, *arguments: object, **options: Any) -> None:
        """Run a command with the folders of this world."""
        save_options = ["--save-dir", self.save]
        folder_options = save_options if arguments[0] in ("runs", "track") else ["--data-dir", self.data, *save_options]
        self.run_command(*arguments, *folder_options, **options)

    def write_preset(self, name: str, **changes: Any) -> Path:
        """Write a tiny recipe as a preset."""
        recipe = tiny_mmf.recipes()[name]
        settings = {**recipe.settings, "training": TRAINING}
        preset = {"model": recipe.model, "config": recipe.config, "settings": settings, "offline": True}
        path = self.root / f"{name}.yaml"
        path.write_text(json.dumps(preset | changes), encoding="utf-8")
        return path

    def run_common_commands(self) -> None:
        """Run all commands that write files, with common options."""
        mmbt, text, bert = self.write_preset("mmbt"), self.write_preset("text"), self.write_preset("bert")
        options = ("--updates", 3, "--seed", 1, "--name", "mmbt", "--keep-checkpoints", 2)
        self.run_with_folders("train", mmbt, *options, "training.evaluation_interval=1")
        self.run_with_folders("train", "--resume", "mmbt", "--updates", 4)
        self.run_with_folders("predict", "mmbt", "--split", "test_seen", "--no-report")
        self.run_with_folders("predict", "mmbt", "--split", "test_unseen", "--checkpoint", "last", "--no-report")
        csv = next((self.save / "mmbt").glob("*/reports/*test_seen*.csv"))
        self.run_with_folders("export", "mmbt", "-o", self.root / "exported")
        self.run_with_folders("train", text, "--updates", 2, "--seed", 2, "--name", "text", "optimizer.params.lr=0.002")
        self.run_with_folders("predict", "mmbt", "text", "--split", "test_seen", "--no-report")
        self.run_with_folders(
            "train", bert, "--updates", 2, "--name", "taught", "--teacher", self._make_teacher_file(csv)
        )
        oom = [{"at": "forward", "do": "cuda_oom", "above": 2}]
        stop = [*oom, {"at": "stepped", "do": "stop", "update": 3}]
        self.run_with_folders("train", text, "--updates", 4, "--seed", 3, "--name", "shrunk", faults=oom)
        self.run_with_folders("train", text, "--updates", 5, "--seed", 3, "--name", "stopped", code=130, faults=stop)
        nan = [{"at": "forward", "do": "nan", "update": 2}]
        self.run_with_folders("train", text, "--updates", 4, "--seed", 3, "--name", "nan", code=7, faults=nan)
        meter = [{"at": "meter", "above": 3}]
        self.run_with_folders("train", text, "--updates", 2, "--name", "searched", "--batch-size", "auto", faults=meter)
        no_half = [{"at": "hardware", "do": "no_half"}]
        self.run_with_folders(
            "train", text, "--updates", 1, "--name", "noted", "--precision", "bf16", "--fast", faults=no_half
        )
        weights = next((self.save / "text").glob("*/checkpoints/best.ckpt"))
        self.run_with_folders("train", text, "--updates", 1, "--seed", 4, "--name", "begun", "--init", weights)
        with self._keep_temporary_run("checked"):
            self.run_with_folders("check", text, "-o", self.root / "check.json")
        with self._keep_temporary_run("profiled"):
            self.run_with_folders("profile", text, "--updates", 6, "-o", self.root / "profile")
        self._record_sweeps(text)
        self.run_with_folders("verify")

    def run_rare_commands(self) -> None:
        """Run commands with rare options and outcomes, which fill the other fields of the records."""
        published = {"val": {"accuracy": 58.2, "auroc": 68.57}, "test": {"accuracy": [60.06, 0.97]}}
        text, image = self.write_preset("text"), self.write_preset("image", published=published)
        weights = next((self.save / "text").glob("*/checkpoints/current.ckpt"))
        options = ("--updates", 1, "--name", "allowed", "--allow-missing", "--trust")
        self.run_with_folders("train", image, *options, "training.num_workers=1")
        self.run_with_folders("train", text, "--resume", weights, "--updates", 3, "--name", "continued")
        oom = [{"at": "validation", "do": "cuda_oom", "above": 2}]
        self.run_with_folders("predict", "text", "--split", "dev_seen", "--no-report", faults=oom)
        self.run_with_folders("export", "mmbt", "-o", self.root / "small", "--int8", "--max-loss", 1)
        memory_error = [{"at": "step", "do": "memory_error"}]
        self.run_with_folders("train", text, "--updates", 3, "--seed", 3, "--name", "host", code=5, faults=memory_error)
        nan = [{"at": "forward", "do": "nan", "update": 2}]
        options = ("--seeds", "7", "--updates", 3, "--slots", 1, "-o", self.save / "sweeps" / "failed")
        self.run_with_folders("sweep", "run", text, *options, code=7, faults=nan)
        self.run_with_folders("track", "push", "continued", "--to", "mlflow", "--track-models", "last")
        with self._keep_temporary_run("unlearned"):
            self.run_with_folders("check", text, "optimizer.params.lr=0")
        self.run_with_folders("train", text, "--epochs", 1, "--name", "epochs")
        self._convert_user_datasets()
        self._record_predictor()

    def store_files(self) -> None:
        """Store the files that the commands have written in ``tests/worlds/stored``."""
        texts: dict[str, list[Path]] = {"runs": [], "sweeps": [], "data": [], "rest": []}
        for path in self.root.rglob("*"):
            relative_path = path.relative_to(self.root)
            is_text = path.suffix in _TEXT_SUFFIXES or path.name in _TEXT_FILE_NAMES
            if path.is_file() and is_text and not _EXCLUDED_FOLDERS & set(relative_path.parts):
                kind = {"save": "runs"}.get(relative_path.parts[0], relative_path.parts[0][:4])
                kind = kind if kind in texts else "rest"
                if "sweeps" in relative_path.parts:
                    kind = "sweeps"
                    if {"attempts", "checkpoints"} & set(relative_path.parts):  # same formats as in other runs
                        continue
                texts[kind].append(path)
        texts["rest"] += [self.root / "exported" / "model.json", self.root / "world/cache/mmfw-checked.json"]
        stored_files.store_files(self.root, texts, sorted(self.root.glob("data*/**/img/*.png")), self.mmf_root)
        stored_files.store_checkpoints(self.root, [*self.save.rglob("*.ckpt")])

    def _make_teacher_file(self, csv: Path) -> Path:
        """Predict the training rows and return the CSV file with their probabilities."""
        self.run_with_folders("predict", "mmbt", "--split", "train", "--no-report")
        return next(csv.parent.glob("*_train_*.csv"))

    def _convert_user_datasets(self) -> None:
        """Convert user-provided memes, and a dataset with a missing image."""
        user_dir, incomplete_dir = self.root / "temporary" / "own", self.root / "temporary" / "lacking"
        tables = {split: [*range(first, first + 4)] for split, first in (("train", 1), ("dev", 5), ("test", 9))}
        for split, ids in tables.items():
            rows = [f"мем-{id_},{id_:05}.png,{id_ % 2},a cat {id_}" for id_ in ids]
            memes.write_tree({f"{split}.csv": "\n".join(["id,img,label,text", *rows, ""]).encode()}, user_dir)
            memes.write_tree({f"{id_:05}.png": memes.image(id_) for id_ in ids}, user_dir)
        self.run_command("convert", user_dir, "--data-dir", self.root / "data-own")
        memes.write_tree(memes.without_images(memes.dataset_files(), [3]), incomplete_dir)
        self.run_command("convert", incomplete_dir, "--allow-missing", "--data-dir", self.root / "data-lacking")

    def _record_predictor(self) -> None:
        """Predict with a model process and copy its files, which are removed when it ends."""
        from mmf_win import Predictor

        image = next(self.data.rglob("*.png"))
        with Predictor(next((self.save / "text").iterdir()), data_dir=self.data) as predictor:
            predictor.predict(image, "a cat")
            for events in Path(tempfile.gettempdir()).rglob("events.jsonl"):
                shutil.copytree(events.parent, self.save / "served" / "2026" / "attempts" / "1")

    def _record_sweeps(self, preset: Path) -> None:
        options = ("--seeds", "1-2", "optimizer.params.lr=0.001,0.002", "--updates", 2, "--slots", 1)
        self.run_with_folders(
            "sweep", "run", preset, *options, "-o", self.save / "sweeps" / "grid", "--track", "mlflow"
        )
        file = self.root / "search.yaml"
        train = f"mmfw train {preset} --updates 2 --seed 5 optimizer.params.lr={{lr}}"
        file.write_text(_SEARCH_SPECIFICATION.format(train=train), encoding="utf-8")
        self.run_with_folders("sweep", "run", file, "--slots", 1, "-o", self.save / "sweeps" / "search")
        self.run_with_folders("track", "push", "mmbt", "--to", "mlflow")

    @contextmanager
    def _keep_temporary_run(self, name: str) -> Iterator[None]:
        """Copy the run in a command's temporary folder before the command removes it."""
        original: Callable[..., None] = tempfile.TemporaryDirectory.__exit__

        def copy_and_remove(temporary_folder: Any, *exit_arguments: Any) -> None:
            if any(Path(temporary_folder.name).glob("*/*/request.json")):
                shutil.copytree(temporary_folder.name, self.save / name)
            original(temporary_folder, *exit_arguments)

        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(tempfile.TemporaryDirectory, "__exit__", copy_and_remove)
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
    recorder.run_common_commands()
    recorder.run_rare_commands()
    recorder.store_files()
