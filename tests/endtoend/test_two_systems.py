"""A run that was trained here is predicted by a Windows Python; `scripts/test.py --windows` names one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path, PureWindowsPath

import pytest

from tests.endtoend.conftest import Tool, predicted_ids, probabilities, read_events_of_kind
from tests.tracking.conftest import mlflow, server  # noqa: F401
from tests.worlds.mlflow_server import MlflowExperiment

pytestmark = pytest.mark.timeout(1200)

_WINDOWS_PYTHON = os.environ.get("MMFW_WINDOWS_PYTHON")


def _on_windows(path: Path) -> str:
    return str(PureWindowsPath("Z:", path))


needs_windows_python = pytest.mark.skipif(_WINDOWS_PYTHON is None, reason="MMFW_WINDOWS_PYTHON names no Windows Python")


def _predict_on_windows(tool: Tool, *words: str) -> None:
    """Predict the newest run with the Windows Python."""
    places = ["--data-dir", _on_windows(tool.world.data), "--save-dir", _on_windows(tool.save_dir)]
    command = [str(_WINDOWS_PYTHON), "-m", "mmf_win", "predict", *places, *words]
    caches = {name: _on_windows(Path(os.environ[name])) for name in ("MMF_CACHE_DIR", "HF_HOME", "MMF_USER_DIR")}
    done = subprocess.run(command, env=os.environ | caches, capture_output=True, encoding="utf-8", errors="replace")
    assert done.returncode == 0, done.stdout


@needs_windows_python
def test_windows_predicts_the_same_to_six_digits(tool: Tool) -> None:
    run = tool.get_trained_run("bert")
    here = tool("predict")
    _predict_on_windows(tool)
    (there,) = ({"csv": file} for file in run.reports.glob("*.csv") if file != Path(here["csv"]))
    assert predicted_ids(there) == predicted_ids(here)
    assert probabilities(there) == pytest.approx(probabilities(here), abs=1e-6)


@pytest.mark.wide
@needs_windows_python
def test_windows_sends_its_predictions_and_the_training(tool: Tool, mlflow: MlflowExperiment) -> None:  # noqa: F811
    run = tool.get_trained_run("bert")
    _predict_on_windows(tool, "--track", "mlflow")
    assert mlflow.only_run().info.status == "FINISHED"
    assert {step for step, _, _ in mlflow.points("train/loss")} == {
        event["update"] for event in read_events_of_kind(run, "train")
    }
    (written,) = run.reports.glob("*.csv")
    assert f"reports/{written.name}" in mlflow.list_files("reports")
