"""Exit of the process of an exported model; the damaged model is real, scripts replace dying processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from mmf_win.dataset.annotations import AnnotationRow
from mmf_win.errors import MmfEnvironmentError, TrainingError
from mmf_win.export import exported_model
from mmf_win.files import write_json

ROWS = [AnnotationRow(1, "1.png", "text", None, 1)]


def write_model(folder: Path) -> None:
    """Write a text-only model with damaged data files."""
    about: dict[str, Any] = {"text": False, "image": False, "features": False, "inputs": []}
    write_json(folder / "model.json", {**about, "versions": {"onnxruntime": "1"}, "run": "r"})
    (folder / "model.onnx").write_bytes(b"none")


def test_damaged_model_is_named(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="could not import onnxruntime")
    with pytest.raises(MmfEnvironmentError, match="^" + str(tmp_path / "model.json").replace("\\", ".")):
        exported_model.run_model(tmp_path, ROWS, tmp_path)
    write_model(tmp_path)
    with pytest.raises(
        MmfEnvironmentError, match=r"^exported with onnxruntime 1, running [^:]*: .*model\.onnx: "
    ) as raised:
        exported_model.run_model(tmp_path, ROWS, tmp_path)
    assert "\n" not in str(raised.value) and "error:" not in str(raised.value)


def test_package_that_cannot_be_imported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numpy")
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('DLL load failed')", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    expected = "^DLL load failed: pip install onnxruntime tokenizers pillow numpy$"
    with pytest.raises(MmfEnvironmentError, match=expected):
        exported_model.run_model(tmp_path, ROWS, tmp_path)
    with pytest.raises(MmfEnvironmentError, match=expected):
        exported_model.ExportedModel(tmp_path, {}).start_model_process(tmp_path)


@pytest.mark.parametrize("script", ["print('error: none', flush=True); sys.exit(3)", "os._exit(4)"])
def test_dead_process_is_distinguished_from_unusable_model(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", f"import os, sys; {script}"]
    monkeypatch.setattr(exported_model, "module_command", lambda *_: command)
    with pytest.raises(TrainingError, match=r"run\.py exited unexpectedly \(code [34]\)"):
        exported_model.run_model(tmp_path, ROWS, tmp_path)


def test_unreadable_image_is_named_without_its_row() -> None:
    pytest.importorskip("onnxruntime", reason="could not import onnxruntime")
    pytest.importorskip("tokenizers", reason="could not import tokenizers")
    from mmf_win.export.run import UnusableInputError, read_file

    def refuse(_: Path) -> None:
        raise ValueError("it is\nnone")

    with pytest.raises(UnusableInputError) as raised:
        read_file(Path("a.png"), refuse, "m 5")
    assert str(raised.value) == "meme m 5: a.png: it is"
    assert (raised.value.reason, str(raised.value)) == ("a.png: it is", "meme m 5: a.png: it is")
