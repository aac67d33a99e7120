"""One user's way through everything, on Linux and Windows alike; the other tests here go into detail."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mmf_win.locking import locked
from mmf_win.protocol import read_events
from mmf_win.runs.folder import Run
from mmf_win.runs.search import all_runs
from tests.worlds import tiny_mmf
from tests.worlds.held import witness

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1200)]  # Windows Python under Wine takes its time

_FAULTS = Path(tiny_mmf.__file__).with_name("faults")


class Demo:
    """The folder of ``mmfw demo``, and a user who goes on in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.save_dir = folder / "save"

    def mmfw(self, *words: str) -> Any:
        """The JSON that a command prints; it has to succeed."""
        command = [*self._command(*words), "--json"]
        done = subprocess.run(command, capture_output=True, encoding="utf-8")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @contextmanager
    def at_work(self, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """A command that goes on while the user does other things."""
        with subprocess.Popen(self._command(*words), stderr=subprocess.DEVNULL) as process:
            try:
                yield process
            finally:
                process.kill()

    def _command(self, name: str, *words: str) -> list[str]:
        data, save = ["--data-dir", str(self.folder / "data")], ["--save-dir", str(self.save_dir)]
        places = {"demo": ["--dir", str(self.folder)], "verify": data, "runs": save}.get(name, data + save)
        return [sys.executable, "-m", "mmf_win", name, *words, *places]


def wait_for(run: Run, process: subprocess.Popen[bytes], kind: str, count: int) -> None:
    """Wait until the run has told of something so many times."""
    while sum(event["kind"] == kind for event in read_events(run.events)) < count:
        assert process.poll() is None, f"it ended before {kind}"
        time.sleep(0.05)


def test_demo_stop_resume_kill_resume_verify_and_predict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = Demo(tmp_path / "Мой demo 数据")
    assert demo.mmfw("demo")["auroc"] > 0.8

    before = set(all_runs(demo.save_dir))
    endless = ("--updates", "100000", "training.log_interval=1", "training.num_workers=2")
    with demo.at_work("train", "demo", *endless) as training:
        while not (new := set(all_runs(demo.save_dir)) - before):
            assert training.poll() is None, "it ended before there was a run"
            time.sleep(0.05)
        run = new.pop()
        wait_for(run, training, "train", 2)
        Path(run.path, "attempts", "1", "stop").touch()
        assert training.wait() == 130
    stopped = demo.mmfw("runs", "show", run.id)
    assert stopped["state"] == "interrupted" and stopped["updates"] >= 2

    with witness() as held:
        faults = [{"at": at, "do": "connect", "port": int(held.port)} for at in ("loader", "loader_worker")]
        monkeypatch.setenv("MMF_USER_DIR", str(_FAULTS))
        monkeypatch.setenv("MMFW_TEST_FAULTS", json.dumps(faults))
        with demo.at_work("train", "--resume", run.id) as training:
            held.accept(3)
            wait_for(run, training, "train", stopped["updates"] + 1)
            training.kill()
        assert held.all_dead(), "the worker and its two loader workers"
    monkeypatch.delenv("MMF_USER_DIR")
    with locked(run.lock, patience=120):
        killed = demo.mmfw("runs", "show", run.id)

    done = demo.mmfw("train", "--resume", run.id, "--updates", str(killed["updates"] + 5))
    assert (done["state"], done["updates"]) == ("done", killed["updates"] + 5)
    demo.mmfw("verify")
    assert demo.mmfw("predict", run.id, "--split", "test_seen")["rows"] == 40
