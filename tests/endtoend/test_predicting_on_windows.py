"""Predictions by a Windows Python with a run that was trained on Linux.

`scripts/test.py --windows` names the Windows Python in MMFW_WINDOWS_PYTHON.
"""

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


def _windows_path(path: Path) -> str:
    return str(PureWindowsPath("Z:", path))


needs_windows_python = pytest.mark.skipif(_WINDOWS_PYTHON is None, reason="MMFW_WINDOWS_PYTHON names no Windows Python")


def _predict_on_windows(tool: Tool, *arguments: str) -> None:
    """Predict the newest run with the Windows Python."""
    folders = ["--data-dir", _windows_path(tool.world.data), "--save-dir", _windows_path(tool.save_dir)]
    command = [str(_WINDOWS_PYTHON), "-m", "mmf_win", "predict", *folders, *arguments]
    caches = {name: _windows_path(Path(os.environ[name])) for name in ("MMF_CACHE_DIR", "HF_HOME", "MMF_USER_DIR")}
    process = subprocess.run(command, env=os.environ | caches, capture_output=True, encoding="utf-8", errors="replace")
    assert process.returncode == 0, process.stdout


@needs_windows_python
def test_windows_predictions_equal_linux_predictions_to_six_digits(tool: Tool) -> None:
    run = tool.get_trained_run("bert")
    linux_result = tool("predict")
    _predict_on_windows(tool)
    (windows_result,) = ({"csv": file} for file in run.reports.glob("*.csv") if file != Path(linux_result["csv"]))
    assert predicted_ids(windows_result) == predicted_ids(linux_result)
    assert probabilities(windows_result) == pytest.approx(probabilities(linux_result), abs=1e-6)


@pytest.mark.wide
@needs_windows_python
def test_windows_uploads_predictions_and_training(tool: Tool, mlflow: MlflowExperiment) -> None:  # noqa: F811
    run = tool.get_trained_run("bert")
    _predict_on_windows(tool, "--track", "mlflow")
    assert mlflow.only_run().info.status == "FINISHED"
    assert {step for step, _, _ in mlflow.points("train/loss")} == {
        event["update"] for event in read_events_of_kind(run, "train")
    }
    (prediction_file,) = run.reports.glob("*.csv")
    assert f"reports/{prediction_file.name}" in mlflow.list_files("reports")
