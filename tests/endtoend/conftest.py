"""Fixtures that run mmfw with the real MMF, on a tiny dataset in a folder with a name in three scripts."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
from mmf_win.runs.lookup import list_runs
from tests.worlds import fork_server, tiny_mmf
from tests.worlds.message_log import record_messages
from tests.worlds.tools import NEWEST_MMF, requires_newest_mmf

SetFaults = Callable[..., None]
INTERRUPTED_EXIT_CODE = 130
CTRL_C = signal.CTRL_BREAK_EVENT if sys.platform == "win32" else signal.SIGINT


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize ``mmf_version`` with the pinned release and with 1.0.0rc12, which needs a checkout."""
    if "mmf_version" in metafunc.fixturenames:
        versions = ["rc10", pytest.param("rc12", marks=requires_newest_mmf)]
        selected_versions = versions[1:] if "only_rc12" in metafunc.fixturenames else versions
        metafunc.parametrize("mmf_version", selected_versions, scope="session")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark each test of this folder with ``torch``, since it needs torch and MMF."""
    item.add_marker("torch")


@pytest.fixture
def only_rc12() -> None:
    """Restrict a test to 1.0.0rc12, if 1.0.0rc10 lacks the tested feature."""


@pytest.fixture(scope="session")
def world(shared_folder: Path) -> tiny_mmf.TinyWorld:
    """Return a tiny dataset with features, word vectors and a BERT, which all test processes share."""
    folder = shared_folder / "tiny"
    with file_lock(shared_folder / "tiny.lock", timeout=math.inf):
        if not folder.exists():
            unfinished = shared_folder / "tiny.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)  # left by a killed process
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
    """Select the MMF to test with, installed or a checkout named in MMFW_TEST_MMF, and yield its version."""
    if mmf_version == "rc12":
        monkeypatch.setenv("MMFW_HOME", str(tmp_path / "home"))
        assert main(["setup", "--mmf", str(NEWEST_MMF)]) == 0
    yield mmf_version


@pytest.fixture
def set_faults(monkeypatch: pytest.MonkeyPatch) -> SetFaults:
    """Return a function that makes the workers of a test fail at given points; see tests/worlds/faults."""
    return lambda *faults: monkeypatch.setenv("MMFW_TEST_FAULTS", json.dumps(faults))


@pytest.fixture(scope="session")
def worker_command(shared_folder: Path) -> Iterator[list[str]]:
    """Yield the command of a worker, which is forked with its imports done if the system supports that."""
    server = str(shared_folder / "warm")
    if os.environ.get("MMFW_TEST_FRESH") or not fork_server.can_fork_workers(server):
        yield attempts.WORKER_COMMAND
        return
    with file_lock(shared_folder / "warm.lock", timeout=math.inf):
        lease = fork_server.acquire_lease(server)
    with lease:
        yield [sys.executable, "-I", "-S", fork_server.__file__, server, attempts.WORKER_COMMAND[-1]]


@dataclass
class Tool:
    """``mmfw`` as a user types it, with a tiny dataset and a folder for presets and runs.

    Attributes:
        world: The dataset.
        folder: Folder of presets and runs.
        trained_runs_dir: Folder of trained runs that tests with the same MMF share.
        read_output: Returns what was written to stdout and stderr since the last call.
        errors: What the last command wrote to stderr.
        output: What the last command of `run_for_exit_code` wrote to stdout.
    """

    world: tiny_mmf.TinyWorld
    folder: Path
    trained_runs_dir: Path
    read_output: Callable[[], tuple[str, str]]
    errors: str = ""
    output: str = ""

    def with_world_copy(self, name: str) -> Tool:
        """Return a tool with a copy of the world that a test may change."""
        return replace(self, world=self.world.copy(self.folder / name))

    @property
    def save_dir(self) -> Path:
        """Return the folder of the runs."""
        return self.folder / "сохранено 保存"

    def write_preset(self, name: str, **changes: Any) -> str:
        """Write a preset for one of the tiny recipes and return its path."""
        recipe = self._recipe(name)
        values = {
            "model": recipe.model,
            "config": recipe.config,
            "settings": self.recipe_settings(name),
            "offline": True,  # MMF's default is to download
            **changes,
        }
        path = self.folder / f"{name}.yaml"
        path.write_text(json.dumps(values), encoding="utf-8")
        return str(path)

    def recipe_settings(self, name: str) -> dict[str, Any]:
        """Return the settings of one of the tiny recipes."""
        return {**self._recipe(name).settings, "training": {"batch_size": 4, "num_workers": 0}}

    def settings_without_dropout(self, name: str) -> dict[str, Any]:
        """Return the settings of a ViLBERT or Visual BERT without dropout."""
        parts = ("", "v_") if name == "vilbert" else ("",)
        names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
        settings = self.recipe_settings(name)
        settings["model_config"][name] |= {f"{part}{setting}": 0.0 for part in parts for setting in names}
        return settings

    def run_for_exit_code(self, *arguments: str) -> int:
        """Run a command and return its exit code; ``output`` and ``errors`` hold its streams."""
        code = main([*arguments, *self._path_options(arguments[0])])
        self.output, self.errors = self.read_output()
        record_messages(self.errors)
        return code

    def __call__(self, *arguments: str) -> Any:
        """Run a command that must succeed and return the JSON that it prints."""
        code = main([*arguments, *self._path_options(arguments[0]), "--json"])
        output, self.errors = self.read_output()
        record_messages(self.errors)
        assert code == 0, self.errors + self.read_last_log()
        return json.loads(output)

    def train(self, *arguments: str) -> Run:
        """Train or resume a run with ``mmfw train`` and return it."""
        return self.get_run(self("train", *arguments))

    def get_trained_run(self, name: str, *, seed: int = 1, run: str | None = None) -> Run:
        """Return a run of one update with a tiny recipe, named ``run``; it is trained once for all tests."""
        trained = self.trained_runs_dir / f"{name}-{seed}"
        with file_lock(trained.with_suffix(".lock"), timeout=math.inf):
            if not trained.exists():
                options = ("--updates", "1", "--seed", str(seed), "--name", trained.name)
                new_run = self.train(self.write_preset(name), *options)
                unfinished = trained.with_suffix(".unfinished")
                shutil.rmtree(unfinished, ignore_errors=True)
                shutil.copytree(new_run.path, unfinished)
                unfinished.rename(trained)
                shutil.rmtree(new_run.path.parent)
        copy = Run.create(self.save_dir, run or name)
        shutil.copytree(trained, copy.path, dirs_exist_ok=True)
        return copy

    def get_run(self, result: Mapping[str, Any]) -> Run:
        """Return the run that a command's result names."""
        return Run(Path(result["path"]))

    def _recipe(self, name: str) -> tiny_mmf.Recipe:
        return (tiny_mmf.recipes() | tiny_mmf.rc12_recipes(self.world))[name]

    def _path_options(self, command: str) -> list[str]:
        save_options = ["--save-dir", str(self.save_dir)]
        return save_options if command in ("runs", "track") else ["--data-dir", str(self.world.data), *save_options]

    def read_last_log(self) -> str:
        """Return the end of the newest log of a run or of an attempt."""
        paths = (*self.save_dir.glob("*/*/log.txt"), *self.save_dir.glob("*/*/attempts/*/log.txt"))
        logs = sorted(paths, key=lambda log: log.stat().st_mtime)
        return logs[-1].read_text(encoding="utf-8")[-4000:] if logs else ""


class RunningCommand:
    """Process of an ``mmfw`` command that is running.

    Attributes:
        process: The process.
        output: What was read of its stderr so far.
    """

    def __init__(self, process: subprocess.Popen[str], tool: Tool) -> None:
        self.process = process
        self._tool = tool
        self.output = ""

    def wait_for_event(self, kind: str) -> Run:
        """Wait until a run has recorded an event of this kind, and return the run."""
        runs: list[Run] = self.wait_until(
            lambda: [r for r in list_runs(self._tool.save_dir) if read_events_of_kind(r, kind)]
        )
        return runs[0]

    def wait_until(self, condition: Callable[[], Any]) -> Any:
        """Wait until the condition returns a true value, and return it; fail if the command ends."""
        while not (value := condition()):
            assert self.process.poll() is None, "the command must not end before"
            time.sleep(0.02)
        return value

    def wait_for_exit(self) -> int:
        """Read stderr to its end and return the exit code."""
        assert self.process.stderr is not None
        self.output += self.process.stderr.read()
        return self.process.wait()

    def wait_for_output(self, text: str) -> None:
        """Read stderr until it contains a text."""
        assert self.process.stderr is not None
        while text not in self.output:
            line = self.process.stderr.readline()
            assert line, f"{text!r} is not in {self.output!r}"
            self.output += line


@contextmanager
def start_command(tool: Tool, *arguments: str) -> Iterator[RunningCommand]:
    """Start ``mmfw`` with these arguments; kill it at the end."""
    folders = ("--data-dir", str(tool.world.data), "--save-dir", str(tool.save_dir))
    command_line = [sys.executable, "-m", "mmf_win", *arguments, *folders]
    group = subprocess.CREATE_NEW_PROCESS_GROUP if sys.platform == "win32" else 0
    environ = {**os.environ, "PYTHONUTF8": "1"}  # stderr is read as UTF-8
    with subprocess.Popen(
        command_line, stderr=subprocess.PIPE, encoding="utf-8", creationflags=group, env=environ
    ) as process:
        try:
            yield RunningCommand(process, tool)
        finally:
            process.kill()


def endless_training(tool: Tool, workers: int = 0) -> list[str]:
    """Return the arguments of a training that only a signal ends."""
    overrides = ("training.log_interval=1", f"training.num_workers={workers}")
    return ["train", tool.write_preset("vilbert"), "--updates", "100000", *overrides]


@pytest.fixture
def phase_1_tool(tool: Tool) -> Tool:
    """Return the tool with a dataset whose annotation files have the names of phase 1."""
    tool_copy = tool.with_world_copy("phase 1")
    for split in ("dev", "test"):
        annotations = tool_copy.world.dataset / "annotations"
        (annotations / f"{split}_seen.jsonl").rename(annotations / f"{split}.jsonl")
        (annotations / f"{split}_unseen.jsonl").unlink()
    return tool_copy


def attempt_outcomes(run: Run) -> list[str]:
    """Return the outcome of each attempt of a run, in order; ``""`` for an attempt without an outcome."""
    numbers = sorted(int(folder.name) for folder in run.path.glob("attempts/*"))
    outcomes = [AttemptOutcome.load(run.attempt(number).outcome_file) for number in numbers]
    return [outcome.kind if outcome else "" for outcome in outcomes]


def read_events_of_kind(run: Run, kind: str) -> list[Event]:
    """Return the events of one kind in all attempts of a run."""
    return [event for event in read_events(run.events) if event["kind"] == kind]


def start_updates(run: Run) -> list[int]:
    """Return the updates at which the training attempts of a run started."""
    return [event["update"] for event in read_events_of_kind(run, "train_started")]


def logged_losses(run: Run) -> list[float]:
    """Return the training losses that a run has logged."""
    return [event["loss"] for event in read_events_of_kind(run, "train")]


def load_checkpoint(run: Run, name: str = "current.ckpt") -> dict[str, Any]:
    """Return the contents of a checkpoint."""
    import torch

    return dict(torch.load(run.checkpoints / name, weights_only=True))


def assert_same_weights(run: Run, expected: Run, rtol: float = 0, atol: float = 0) -> None:
    """Assert that the last checkpoints of two runs have the same weights, within tolerances."""
    import torch

    torch.testing.assert_close(load_checkpoint(run)["model"], load_checkpoint(expected)["model"], rtol=rtol, atol=atol)


def predicted_ids(result: Mapping[str, Any]) -> list[str]:
    """Return the ids of the rows that ``mmfw predict`` wrote, in their order."""
    return [row.id for row in read_predictions(Path(result["csv"]))]


def probabilities(result: Mapping[str, Any]) -> list[float]:
    """Return the probabilities that ``mmfw predict`` wrote, in the order of the rows."""
    return [row.proba for row in read_predictions(Path(result["csv"]))]


@pytest.fixture
def tool(
    mmf: str,
    world: tiny_mmf.TinyWorld,
    trained_runs_dir: Path,
    worker_command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Tool:
    """Return ``mmfw`` with the tiny dataset and one thread per process."""
    monkeypatch.setattr(attempts, "WORKER_COMMAND", worker_command)
    monkeypatch.setattr(micro_batch_store, "store_path", lambda: tmp_path / "fits.json")
    monkeypatch.setattr(user_code, "trusted_folders_path", lambda: tmp_path / "trusted.json")
    monkeypatch.setenv("MMF_USER_DIR", str(Path(tiny_mmf.__file__).with_name("faults")))
    for name in ("MMF_CACHE_DIR", "HF_HOME", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, world.environment[name])
    return Tool(world, tmp_path, trained_runs_dir, lambda: tuple(capfd.readouterr()))  # type: ignore[arg-type, return-value]
