"""The whole tool around the real MMF, on a tiny dataset in a folder named in three scripts."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from mmf_win.cli import main
from mmf_win.dataset.prediction_file import read_predictions
from mmf_win.locking import file_lock
from mmf_win.protocol import AttemptOutcome, Event, read_events
from mmf_win.runs import attempts, micro_batch_store, user_code
from mmf_win.runs.folder import Run
from tests.worlds import fork_server, tiny_mmf
from tests.worlds.message_log import record_messages
from tests.worlds.tools import NEWEST_MMF, requires_newest_mmf

SetFaults = Callable[..., None]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what asks for ``mmf_version`` on the newest release, and on a checkout where one is named."""
    if "mmf_version" in metafunc.fixturenames:
        versions = ["rc10", pytest.param("rc12", marks=requires_newest_mmf)]
        wanted = versions[1:] if "only_rc12" in metafunc.fixturenames else versions
        metafunc.parametrize("mmf_version", wanted, scope="session")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Everything here needs torch and MMF."""
    item.add_marker("torch")


@pytest.fixture
def only_rc12() -> None:
    """For what 1.0.0rc10 has not: it does not run there."""


@pytest.fixture(scope="session")
def world(shared_folder: Path) -> tiny_mmf.TinyWorld:
    """A tiny dataset with features, word vectors and a BERT."""
    folder = shared_folder / "tiny"
    with file_lock(shared_folder / "tiny.lock", timeout=math.inf):
        if not folder.exists():
            unfinished = shared_folder / "tiny.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
            tiny_mmf.build(unfinished / "мой dataset 中文")
            unfinished.rename(folder)
    return tiny_mmf.TinyWorld(folder / "мой dataset 中文")


@pytest.fixture(scope="session")
def trained_runs_dir(mmf_version: str, shared_folder: Path) -> Path:
    """Return the folder of trained runs that tests with the same MMF share."""
    folder = shared_folder / f"trained with {mmf_version}"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def mmf(mmf_version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The MMF to test with: what ``mmfw setup`` installed, or the checkout of MMFW_TEST_MMF."""
    if mmf_version == "rc12":
        monkeypatch.setenv("MMFW_HOME", str(tmp_path / "home"))
        assert main(["setup", "--mmf", str(NEWEST_MMF)]) == 0
    yield mmf_version


@pytest.fixture
def set_faults(monkeypatch: pytest.MonkeyPatch) -> SetFaults:
    """Lets the workers of this test fail where it says; see tests/worlds/faults."""
    return lambda *faults: monkeypatch.setenv("MMFW_TEST_FAULTS", json.dumps(faults))


@pytest.fixture(scope="session")
def worker(shared_folder: Path) -> Iterator[list[str]]:
    """The command of a worker that starts with its imports done, where the system can fork one."""
    server = str(shared_folder / "warm")
    if os.environ.get("MMFW_TEST_FRESH") or not fork_server.can_fork_workers(server):
        yield attempts.WORKER_COMMAND
        return
    with file_lock(shared_folder / "warm.lock", timeout=math.inf):
        held = fork_server.acquire_lease(server)
    with held:
        yield [sys.executable, "-I", "-S", fork_server.__file__, server, attempts.WORKER_COMMAND[-1]]


@dataclass
class Tool:
    """``mmfw`` as a user types it, in a folder of the user's own."""

    world: tiny_mmf.TinyWorld
    folder: Path  # where presets and runs go
    kept: Path  # where runs are kept for other tests with the same MMF
    read: Callable[[], tuple[str, str]]
    errors: str = ""
    output: str = ""

    def with_world_copy(self, name: str) -> Tool:
        """Return a tool with a copy of the world that a test may change."""
        return replace(self, world=self.world.copy(self.folder / name))

    @property
    def save_dir(self) -> Path:
        """The folder of the runs."""
        return self.folder / "сохранено 保存"

    def preset(self, name: str, **changes: Any) -> str:
        """The path of a preset for one of the tiny recipes."""
        recipe = self._recipe(name)
        values = {
            "model": recipe.model,
            "config": recipe.config,
            "settings": self.settings(name),
            "offline": True,  # MMF's default is to download
            **changes,
        }
        path = self.folder / f"{name}.yaml"
        path.write_text(json.dumps(values), encoding="utf-8")
        return str(path)

    def settings(self, name: str) -> dict[str, Any]:
        """The settings of one of the tiny recipes."""
        return {**self._recipe(name).settings, "training": {"batch_size": 4, "num_workers": 0}}

    def settings_without_dropout(self, name: str) -> dict[str, Any]:
        """Return the settings of a ViLBERT or Visual BERT without dropout."""
        parts = ("", "v_") if name == "vilbert" else ("",)
        names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
        settings = self.settings(name)
        settings["model_config"][name] |= {f"{part}{each}": 0.0 for part in parts for each in names}
        return settings

    def run_for_exit_code(self, *words: str) -> int:
        """The exit code of a command; what it said is kept in ``output`` and ``errors``."""
        code = main([*words, *self._places(words[0])])
        self.output, self.errors = self.read()
        record_messages(self.errors)
        return code

    def __call__(self, *words: str) -> Any:
        """The JSON that a successful command prints."""
        code = main([*words, *self._places(words[0]), "--json"])
        output, self.errors = self.read()
        record_messages(self.errors)
        assert code == 0, self.errors + self._log()
        return json.loads(output)

    def train(self, *words: str) -> Run:
        """A run that is trained, or resumed, by ``mmfw train``."""
        return self.run_of(self("train", *words))

    def get_trained_run(self, name: str, *, seed: int = 1, run: str | None = None) -> Run:
        """A run of one update with one of the tiny recipes, called ``run``; trained once for all tests."""
        kept = self.kept / f"{name}-{seed}"
        with file_lock(kept.with_suffix(".lock"), timeout=math.inf):
            if not kept.exists():
                words = ("--updates", "1", "--seed", str(seed), "--name", kept.name)
                first = self.train(self.preset(name), *words)
                unfinished = kept.with_suffix(".unfinished")
                shutil.rmtree(unfinished, ignore_errors=True)
                shutil.copytree(first.path, unfinished)
                unfinished.rename(kept)
                shutil.rmtree(first.path.parent)
        copy = Run.create(self.save_dir, run or name)
        shutil.copytree(kept, copy.path, dirs_exist_ok=True)
        return copy

    def run_of(self, result: Mapping[str, Any]) -> Run:
        """The run that a command's result names."""
        return Run(Path(result["path"]))

    def _recipe(self, name: str) -> tiny_mmf.Recipe:
        return (tiny_mmf.recipes() | tiny_mmf.rc12_recipes(self.world))[name]

    def _places(self, command: str) -> list[str]:
        save = ["--save-dir", str(self.save_dir)]
        return save if command in ("runs", "track") else ["--data-dir", str(self.world.data), *save]

    def _log(self) -> str:
        found = (*self.save_dir.glob("*/*/log.txt"), *self.save_dir.glob("*/*/attempts/*/log.txt"))
        logs = sorted(found, key=lambda log: log.stat().st_mtime)
        return logs[-1].read_text(encoding="utf-8")[-4000:] if logs else ""


@pytest.fixture
def phase_1_tool(tool: Tool) -> Tool:
    """The tool beside the memes of phase 2 under the names of phase 1."""
    other = tool.with_world_copy("phase 1")
    for split in ("dev", "test"):
        annotations = other.world.dataset / "annotations"
        (annotations / f"{split}_seen.jsonl").rename(annotations / f"{split}.jsonl")
        (annotations / f"{split}_unseen.jsonl").unlink()
    return other


def attempt_outcomes(run: Run) -> list[str]:
    """Return how the attempts of a run ended, the first one first; ``""`` for one that does not say so."""
    numbers = sorted(int(folder.name) for folder in run.path.glob("attempts/*"))
    ends = [AttemptOutcome.load(run.attempt(number).outcome_file) for number in numbers]
    return [end.kind if end else "" for end in ends]


def read_events_of_kind(run: Run, kind: str) -> list[Event]:
    """Return the events of one kind in all attempts of a run."""
    return [event for event in read_events(run.events) if event["kind"] == kind]


def start_updates(run: Run) -> list[int]:
    """The updates at which the attempts to train began."""
    return [event["update"] for event in read_events_of_kind(run, "train_started")]


def logged_losses(run: Run) -> list[float]:
    """The losses that a run has told of."""
    return [event["loss"] for event in read_events_of_kind(run, "train")]


def load_checkpoint(run: Run, name: str = "current.ckpt") -> dict[str, Any]:
    """Return the contents of a checkpoint."""
    import torch

    return dict(torch.load(run.checkpoints / name, weights_only=True))


def assert_same_weights(run: Run, other: Run, rtol: float = 0, atol: float = 0) -> None:
    """Compare those of the last checkpoints, within tolerances."""
    import torch

    torch.testing.assert_close(load_checkpoint(run)["model"], load_checkpoint(other)["model"], rtol=rtol, atol=atol)


def predicted_ids(result: Mapping[str, Any]) -> list[str]:
    """Return the ids of the rows that ``mmfw predict`` has written, in their order."""
    return [row.id for row in read_predictions(Path(result["csv"]))]


def probabilities(result: Mapping[str, Any]) -> list[float]:
    """Return the probabilities that ``mmfw predict`` has written, in the order of the rows."""
    return [row.proba for row in read_predictions(Path(result["csv"]))]


@pytest.fixture
def tool(
    mmf: str,
    world: tiny_mmf.TinyWorld,
    trained_runs_dir: Path,
    worker: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Tool:
    """``mmfw`` with the tiny dataset, and one thread a process."""
    monkeypatch.setattr(attempts, "WORKER_COMMAND", worker)
    monkeypatch.setattr(micro_batch_store, "store_path", lambda: tmp_path / "fits.json")
    monkeypatch.setattr(user_code, "trusted_folders_path", lambda: tmp_path / "trusted.json")
    monkeypatch.setenv("MMF_USER_DIR", str(Path(tiny_mmf.__file__).with_name("faults")))
    for name in ("MMF_CACHE_DIR", "HF_HOME", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, world.environment[name])
    return Tool(world, tmp_path, trained_runs_dir, lambda: tuple(capfd.readouterr()))  # type: ignore[arg-type, return-value]
