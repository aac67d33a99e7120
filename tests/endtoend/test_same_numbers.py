"""Equality of mmfw's losses with those of MMF alone, bit by bit."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mmf_win.paths import MmfPaths
from mmf_win.protocol import AttemptRequest
from mmf_win.runs.folder import Run
from mmf_win.upstream import default_settings
from tests.endtoend.conftest import Tool, logged_losses

UPDATES = 50

# The same request, done by MMF's own `run`: no hooks, no cache, and only the patches without which it fails.
_MMF_ALONE = """\
import json, sys
from pathlib import Path
from mmf_win.protocol import AttemptRequest
from mmf_win import compat
from mmf_win.worker import entry
request = AttemptRequest.load(Path(sys.argv[1]))
compat.install(Path(request.mmf_root), compat.REQUIRED_PATCHES)
from mmf.common.registry import Registry
register = Registry.register
losses = []
def noting(cls, name, value):
    if name == "train/total_loss":
        losses.append(float(value))
    return register(name, value)
Registry.register = classmethod(noting)
from mmf_cli.run import run
run(entry.write_mmf_options(request))
Path(sys.argv[2]).write_text(json.dumps(losses))
"""


def mmf_alone(tool: Tool, run: Run, tmp_path: Path) -> list[float]:
    """The losses of the first attempt of a run, when MMF does it alone."""
    first = AttemptRequest.load(run.path / "attempts" / "1" / "request.json")
    training = {key: value for key, value in first.settings["training"].items() if key != "trainer"}
    training["callbacks"] = [each for each in training.get("callbacks", []) if each["type"] != "mmfw"]
    again = Run.create(tmp_path / "alone", "run")
    again.checkpoints.mkdir()
    asked = replace(
        first, attempt_dir=str(again.create_attempt().path), settings={**first.settings, "training": training}
    )
    asked.save()
    places = MmfPaths.resolve(tool.world.data, tool.save_dir)
    environment = default_settings.worker_environment(
        places, again.checkpoints, again.logs, again.path / "raw", offline=True
    )
    file = tmp_path / "losses.json"
    command = [sys.executable, "-c", _MMF_ALONE, str(asked.folder.request_file), str(file)]
    done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr[-4000:]
    return [float(loss) for loss in json.loads(file.read_text(encoding="utf-8"))]


@pytest.mark.wide
@pytest.mark.parametrize("name", ["mmbt", "visual_bert"])
def test_losses_are_bit_by_bit_those_of_mmf_alone(
    tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """14 rows, four a batch: the images are decoded in the first of 13 passes, and cached in the others."""
    monkeypatch.setenv("MMF_CACHE_DIR", str(tmp_path / "cache"))
    words = ("--updates", str(UPDATES), "--seed", "7", "training.log_interval=1")
    run = tool.train(tool.preset(name), *words)
    theirs = mmf_alone(tool, run, tmp_path)
    kept = [path for path in (tmp_path / "cache" / "mmfw-images").rglob("*") if path.is_file()]
    assert len(kept) == (19 if name == "mmbt" else 0), "of train and dev_unseen"
    assert len(logged_losses(run)) == UPDATES
    assert logged_losses(run) == theirs[:UPDATES]  # 1.0.0rc10 alone makes one update more than it was asked for


def test_predictions_are_the_same_with_and_without_the_cache(
    tool: Tool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MMF_CACHE_DIR", str(tmp_path / "кэш"))
    cache = tmp_path / "кэш" / "mmfw-images"

    def kept() -> int:
        return sum(path.is_file() for path in cache.rglob("*"))

    def predict() -> bytes:
        csv = Path(tool("predict", str(run.path), "--split", "test_seen", "--no-report")["csv"])
        return csv.read_bytes()

    monkeypatch.setenv("MMFW_IMAGE_CACHE", "off")
    run = tool.get_trained_run("mmbt")
    without = predict()
    assert not cache.exists()
    monkeypatch.delenv("MMFW_IMAGE_CACHE")
    filling = predict()
    assert kept() == 4
    assert [filling, predict()] == [without, without]
    assert kept() == 4
