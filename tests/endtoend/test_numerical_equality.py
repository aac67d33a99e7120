"""Equality of losses with those of MMF alone, and of predictions with and without the image cache."""

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

# Runs a request by MMF's own `run`: without hooks and cache, and with only the patches that MMF needs to work.
_MMF_ALONE = """\
import json, sys
from pathlib import Path
from mmf_win.protocol import AttemptRequest
from mmf_win import compat
from mmf_win.worker import entry
request = AttemptRequest.load(Path(sys.argv[1]))
compat.install(Path(request.mmf_root), compat.REQUIRED_PATCHES)
from mmf.common.registry import Registry
original_register = Registry.register
losses = []
def register_and_record_loss(cls, name, obj):
    if name == "train/total_loss":
        losses.append(float(obj))
    return original_register(name, obj)
Registry.register = classmethod(register_and_record_loss)
from mmf_cli.run import run
run(entry.write_mmf_options(request))
Path(sys.argv[2]).write_text(json.dumps(losses))
"""


def compute_losses_with_mmf_alone(tool: Tool, run: Run, tmp_path: Path) -> list[float]:
    """Repeat the first attempt of a run with MMF alone and return its losses."""
    first_request = AttemptRequest.load(run.path / "attempts" / "1" / "request.json")
    training = {key: value for key, value in first_request.settings["training"].items() if key != "trainer"}
    training["callbacks"] = [callback for callback in training.get("callbacks", []) if callback["type"] != "mmfw"]
    mmf_run = Run.create(tmp_path / "alone", "run")
    mmf_run.checkpoints.mkdir()
    request = replace(
        first_request,
        attempt_dir=str(mmf_run.create_attempt().path),
        settings={**first_request.settings, "training": training},
    )
    request.save()
    mmf_paths = MmfPaths.resolve(tool.world.data, tool.save_dir)
    environment = default_settings.worker_environment(
        mmf_paths, mmf_run.checkpoints, mmf_run.logs, mmf_run.path / "raw", offline=True
    )
    losses_file = tmp_path / "losses.json"
    command = [sys.executable, "-c", _MMF_ALONE, str(request.folder.request_file), str(losses_file)]
    process = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8")
    assert process.returncode == 0, process.stderr[-4000:]
    return [float(loss) for loss in json.loads(losses_file.read_text(encoding="utf-8"))]


@pytest.mark.wide
@pytest.mark.parametrize("name", ["mmbt", "visual_bert"])
def test_losses_equal_those_of_mmf_alone_bit_by_bit(
    tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """14 rows in batches of 4: images are decoded in the first of 13 epochs and read from the cache in the others."""
    monkeypatch.setenv("MMF_CACHE_DIR", str(tmp_path / "cache"))
    arguments = ("--updates", str(UPDATES), "--seed", "7", "training.log_interval=1")
    run = tool.train(tool.write_preset(name), *arguments)
    mmf_losses = compute_losses_with_mmf_alone(tool, run, tmp_path)
    cached_images = [path for path in (tmp_path / "cache" / "mmfw-images").rglob("*") if path.is_file()]
    assert len(cached_images) == (19 if name == "mmbt" else 0), "each image must have one file in the cache"
    assert len(logged_losses(run)) == UPDATES
    assert logged_losses(run) == mmf_losses[:UPDATES]  # 1.0.0rc10 alone runs one update too many


def test_predictions_are_equal_with_and_without_image_cache(
    tool: Tool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MMF_CACHE_DIR", str(tmp_path / "кэш"))
    cache = tmp_path / "кэш" / "mmfw-images"

    def count_cached_images() -> int:
        return sum(path.is_file() for path in cache.rglob("*"))

    def predict() -> bytes:
        csv = Path(tool("predict", str(run.path), "--split", "test_seen", "--no-report")["csv"])
        return csv.read_bytes()

    monkeypatch.setenv("MMFW_IMAGE_CACHE", "off")
    run = tool.get_trained_run("mmbt")
    without_cache = predict()
    assert not cache.exists()
    monkeypatch.delenv("MMFW_IMAGE_CACHE")
    filling_cache = predict()
    assert count_cached_images() == 4
    assert [filling_cache, predict()] == [without_cache, without_cache]
    assert count_cached_images() == 4
