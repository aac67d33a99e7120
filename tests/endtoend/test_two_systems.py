"""A run that was trained here is predicted by a Windows Python; `scripts/test.py --windows` names one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path, PureWindowsPath

import pytest

from tests.endtoend.conftest import Tool, events, ids, probabilities
from tests.tracking.conftest import mlflow, server  # noqa: F401
from tests.worlds.mlflow_server import Seen

pytestmark = pytest.mark.timeout(1200)

_WINDOWS_PYTHON = os.environ.get("MMFW_WINDOWS_PYTHON")


def _on_windows(path: Path) -> str:
    return str(PureWindowsPath("Z:", path))


@pytest.mark.skipif(_WINDOWS_PYTHON is None, reason="MMFW_WINDOWS_PYTHON names no Windows Python")
def test_windows_predicts_the_same_to_six_digits_and_sends_it(tool: Tool, mlflow: Seen) -> None:  # noqa: F811
    run = tool.trained("bert")
    here = tool("predict")
    places = ["--data-dir", _on_windows(tool.world.data), "--save-dir", _on_windows(tool.save_dir)]
    command = [str(_WINDOWS_PYTHON), "-m", "mmf_win", "predict", *places, "--track", "mlflow"]
    caches = {
        name: _on_windows(Path(os.environ[name])) for name in ("MMF_CACHE_DIR", "HF_HOME", "MMF_USER_DIR")
    }
    done = subprocess.run(
        command, env=os.environ | caches, capture_output=True, encoding="utf-8", errors="replace"
    )
    assert done.returncode == 0, done.stdout
    (there,) = ({"csv": file} for file in run.reports.glob("*.csv") if file != Path(here["csv"]))
    assert ids(there) == ids(here)
    assert probabilities(there) == pytest.approx(probabilities(here), abs=1e-6)
    assert mlflow.run().info.status == "FINISHED"
    assert {step for step, _, _ in mlflow.points("train/loss")} == {
        event["update"] for event in events(run, "train")
    }
    assert f"reports/{there['csv'].name}" in mlflow.files("reports")
