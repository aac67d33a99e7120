"""How the process of an exported model ends; scripts stand for run.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmf_win.dataset.annotations import Row
from mmf_win.errors import MmfError, TrainingError
from mmf_win.export import running


@pytest.mark.parametrize(
    ("script", "kind", "told"),
    [
        ("import sys; sys.exit('error: model.onnx: damaged')", MmfError, r"^model\.onnx: damaged$"),
        ("import sys; print('1 of 2 memes', flush=True); sys.exit(3)", TrainingError, r"\(code 3\)"),
        ("import os; os._exit(4)", TrainingError, r"\(code 4\)"),
    ],
)
def test_a_model_that_cannot_be_run_is_told_apart_from_a_process_that_died(
    script: str, kind: type[Exception], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = tmp_path / "run.py"
    stub.write_text(script, encoding="utf-8")
    monkeypatch.setattr(running, "SCRIPT", stub)
    with pytest.raises(kind, match=told):
        running.run_model(tmp_path, [Row(1, "1.png", "text", None, 1)], tmp_path)
