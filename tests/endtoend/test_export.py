"""Export of trained runs to ONNX, which predict as ``mmfw predict`` does, without PyTorch, MMF and mmfw."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mmf_win.dataset.annotations import read_annotations
from mmf_win.dataset.prediction_file import read_predictions
from mmf_win.export import exported_model
from mmf_win.upstream import install
from tests.endtoend.conftest import SetFaults, Tool, probabilities, start_command

pytest.importorskip("onnxruntime", reason="could not import onnxruntime")
onnx = pytest.importorskip("onnx", reason="could not import onnx")

# Allows only imports of the standard library and of the packages that run.py and onnxruntime need.
RUN_ISOLATED = """
import runpy, sys
SEEN = {"onnxruntime", "tokenizers", "PIL", "numpy", "flatbuffers", "google", "packaging"}

class Hidden:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] not in SEEN | sys.stdlib_module_names:
            raise ModuleNotFoundError(f"hidden: {name}", name=name)

sys.meta_path.insert(0, Hidden)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


# Hides PyTorch and MMF from Python and its subprocesses.
WITHOUT_TORCH_AND_MMF = """
import sys

class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, *more):
        hidden = name.partition(".")[0] in {"torch", "torchvision", "transformers", "mmf", "mmf_cli"}
        return None if hidden else self.finder.find_spec(name, *more)

sys.meta_path[:] = map(Hiding, sys.meta_path)
"""


def export_run(tool: Tool, name: str, *options: str) -> tuple[Path, dict[str, Any]]:
    """Export a run of a tiny recipe, and return its folder and the JSON that ``mmfw export`` printed."""
    run = tool.get_trained_run(name)
    folder = tool.folder / "модель 型, 1=2"
    return folder, tool("export", run.id, "-o", str(folder), *options)


def run_exported_model(tool: Tool, folder: Path, *arguments: str, code: int = 0) -> str:
    """Return the output of a copied ``run.py``, run by a Python that finds neither torch nor MMF nor mmfw."""
    folder_copy = tool.folder / "elsewhere"
    shutil.copytree(folder, folder_copy, dirs_exist_ok=True)
    command = [sys.executable, "-I", "-X", "utf8", "-c", RUN_ISOLATED, str(folder_copy / "run.py"), *arguments]
    process = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=tool.folder)
    assert process.returncode == code, process.stderr
    return process.stdout + process.stderr


def test_exported_model_predicts_like_mmfw_without_torch(tool: Tool) -> None:
    folder, description = export_run(tool, "concat_bert")
    assert sorted(path.name for path in folder.iterdir()) == ["model.json", "model.onnx", "run.py", "tokenizer.json"]
    assert json.loads((folder / "model.json").read_text("utf-8")) == description
    assert description["parity"]["largest_difference"] <= 1e-4
    assert {"mmfw", "mmf", "torch"} <= description["versions"].keys()
    assert not list(tool.folder.glob(".mmfw-export-*"))

    predicted = tool("predict", "--split", "test_unseen", "--no-report")
    expected = probabilities(predicted)
    by_onnx = tool("predict", "--with", str(folder), "--split", "test_unseen", "--no-report")
    assert {*by_onnx["versions"]} == {*predicted["versions"], "onnxruntime"} - {"python"}
    assert probabilities(by_onnx) == pytest.approx(expected, abs=1e-4)
    assert by_onnx["auroc"] == pytest.approx(predicted["auroc"], abs=1e-3)

    rows = read_annotations(tool.world.dataset / "annotations" / "test_unseen.jsonl")
    images = tool.world.dataset / "images"
    output = run_exported_model(tool, folder, "--image", str(images / rows[0].img), "--text", rows[0].text)
    assert float(output.splitlines()[1].split(",")[1]) == pytest.approx(expected[0], abs=1e-4)
    table = tool.folder / "memes таблица.csv"
    lines = [f'{row.id},"{images / row.img}","{row.text}"' for row in rows]
    table.write_text("\n".join(["id,image,text", *lines]), encoding="utf-8")
    run_exported_model(tool, folder, str(table), "-o", str(tool.folder / "out.csv"))
    predictions = read_predictions(tool.folder / "out.csv")
    assert [row.proba for row in predictions] == pytest.approx(expected, abs=1e-4)
    assert "error: meme 1: nothing.png: " in run_exported_model(tool, folder, "--image", "nothing.png", code=1)
    table.write_text(f"img\n{images / rows[0].img}\n", encoding="utf-8")
    assert "error: meme 1 has no text," in run_exported_model(tool, folder, str(table), code=1)
    table.write_text(f"Text; IMG\n{rows[0].text};{images / rows[0].img}\n", encoding="utf-8")
    (line,) = (line for line in run_exported_model(tool, folder, str(table)).splitlines() if line.startswith("1,"))
    assert float(line.split(",")[1]) == pytest.approx(expected[0], abs=1e-4)
    table.write_text(f"img,text\n{images / rows[0].img},cats, dogs\n", encoding="utf-8")
    assert "row 1 has more values than columns" in run_exported_model(tool, folder, str(table), code=1)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.open(images / rows[0].img).convert("RGB").save(tool.folder / "turned.png", exif=exif.tobytes())
    Image.linear_gradient("L").convert("I").point(lambda value: value * 257).convert("I;16").save(
        tool.folder / "grey.png"
    )
    table.write_text("img,text\nturned.png,cats\ngrey.png,cats\n", encoding="utf-8")
    expected_user_memes = probabilities(tool("predict", "--memes", str(table), "--no-report"))
    run_exported_model(tool, folder, str(table), "-o", str(tool.folder / "own.csv"))
    predictions = read_predictions(tool.folder / "own.csv")
    assert [row.proba for row in predictions] == pytest.approx(expected_user_memes, abs=1e-4)
    table.write_text("img,text\n", encoding="utf-8")
    assert "no memes found" in run_exported_model(tool, folder, str(table), code=1)
    (tool.folder / "cut.png").write_bytes((images / rows[0].img).read_bytes()[:60])
    table.write_text("id,img,text\nm 5,cut.png,cat\n", encoding="utf-8")
    assert "error: meme m 5: " in run_exported_model(tool, folder, str(table), code=1)
    table.with_suffix(".jsonl").write_text('{"img": "cut.png", "text": 5}', encoding="utf-8")
    assert "error: meme 1 has no text," in run_exported_model(tool, folder, str(table.with_suffix(".jsonl")), code=1)
    assert "folder not found" in run_exported_model(tool, folder, str(table), "-o", "none/out.csv", code=2)
    assert "pass either a table or a single meme" in run_exported_model(tool, folder, str(table), "--text", "x", code=2)

    assert tool.run_for_exit_code("export", "-o", str(folder)) == 2 and str(folder) in tool.errors
    assert tool.run_for_exit_code("export", "-o", str(tool.folder / "new"), "--tolerance", "nan") == 2
    options = ("--precision", "bf16", "--source", "x", "--best-of", "y")
    assert tool.run_for_exit_code("predict", "--with", str(folder), *options) == 2
    assert "--with cannot be combined with --best-of and --source and --precision" in tool.errors
    assert tool.run_for_exit_code("export", "-o", str(tool.folder / "new"), "--max-loss", "0.1") == 2
    model = onnx.load(folder / "model.onnx")
    model.ir_version = 99
    onnx.save(model, folder / "model.onnx")
    assert tool.run_for_exit_code("predict", "--with", str(folder), "--no-report") == 6
    assert "Unsupported model IR version: 99" in tool.errors
    message = f"exported with onnxruntime {description['versions']['onnxruntime']}, running "
    assert message in tool.errors and str(folder / "model.onnx") in tool.errors
    (folder / "tokenizer.json").unlink()
    (tool.folder / "elsewhere" / "tokenizer.json").unlink()
    assert "tokenizer.json: " in run_exported_model(tool, folder, "--text", "x", code=1)


def test_mmfw_predicts_with_an_exported_model_without_torch_and_mmf(tool: Tool, tmp_path: Path) -> None:
    folder, _ = export_run(tool, "concat_bert")
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_TORCH_AND_MMF, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "MMFW_HOME": str(tmp_path / "empty"), "PYTHONUTF8": "1"}
    mmfw = [sys.executable, "-m", "mmf_win"]
    path_options = ["--save-dir", str(tool.save_dir), "--data-dir", str(tool.world.data)]

    def run(*arguments: str, code: int = 0) -> str:
        process = subprocess.run([*mmfw, *arguments], capture_output=True, encoding="utf-8", env=environment)
        assert process.returncode == code, process.stderr
        return process.stdout

    assert "not installed" in run("--version")
    predict = ["predict", "--with", str(folder), "--json", *path_options]
    image = (
        tool.world.dataset
        / "images"
        / read_annotations(tool.world.dataset / "annotations" / "test_unseen.jsonl")[0].img
    )
    table = tool.folder / "own.csv"
    table.write_text(f"img,text,label\n{image},cats,0\n{image},dogs,1\n", encoding="utf-8")
    for arguments in (["--split", "test_unseen"], ["--memes", str(table)]):
        result = json.loads(run(*predict, *arguments))
        assert {"mmf", "torch", "onnxruntime"} <= result["versions"].keys()
        assert all(Path(result[name]).is_file() for name in ("csv", "report"))
        assert Path(result["csv"]).with_suffix(".metrics.json").is_file()
    assert 0 < json.loads(run(*predict, "--image", str(image), "--text", "cats"))["proba"] < 1


def test_export_to_a_full_disk_reports_the_space_that_it_needs(tool: Tool, small_disk: Path) -> None:
    run = tool.get_trained_run("bert")
    free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    (small_disk / "ballast").write_bytes(bytes(free - 200_000))
    assert tool.run_for_exit_code("export", run.id, "-o", str(small_disk / "model")) == 5
    assert "model.onnx: the exported model needs " in tool.errors and "are free" in tool.errors
    assert "free some space" in tool.errors and "resume" not in tool.errors
    assert [path.name for path in small_disk.iterdir()] == ["ballast"]


@pytest.mark.wide
def test_interrupted_export_and_export_without_packages_leave_no_files(
    tool: Tool, set_faults: SetFaults, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, folder, fault_marker = tool.get_trained_run("bert"), tool.folder / "model", tool.folder / "at"
    with monkeypatch.context() as patched:
        hidden = {"onnxscript": None}
        patched.setattr(install, "find_spec", lambda name: hidden.get(name, name))
        assert tool.run_for_exit_code("export", run.id, "-o", str(folder)) == 6
        assert "not installed in " in tool.errors and ": onnxscript" in tool.errors and "[export]" in tool.errors
    if sys.platform != "win32":
        script = tool.folder / "run.py"
        script.write_text(f"import os, signal\nos.kill({os.getpid()}, signal.SIGINT)\nsignal.pause()\n")
        monkeypatch.setattr(exported_model, "module_command", lambda *_: [sys.executable, str(script)])
        assert tool.run_for_exit_code("export", run.id, "-o", str(folder)) == 130
        set_faults({"at": "exporting", "do": "wait_to_be_stopped", "once": str(fault_marker)})
        with start_command(tool, "export", run.id, "-o", str(folder), "--trust") as command:
            command.wait_until(fault_marker.exists)
            command.process.send_signal(signal.SIGINT)
            assert command.wait_for_exit() == 130
    assert not folder.exists() and not list(tool.folder.glob(".mmfw-export-*"))
    assert not list(run.reports.glob("*.csv"))


@pytest.mark.wide
def test_region_features_are_inputs_and_int8_is_refused_if_it_costs_too_much_auroc(
    tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary_dir = tool.folder / "временное"
    temporary_dir.mkdir()
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.setenv(name, str(temporary_dir))
    folder, description = export_run(tool, "vilbert", "--int8", "--max-loss", "1")
    assert description["parity"]["largest_difference"] <= 1e-4
    before, after = description["int8"]["before"], description["int8"]["after"]
    assert after["bytes"] == (folder / "model.onnx").stat().st_size < before["bytes"]
    assert 0 < description["int8"]["largest_difference"] < 0.5
    assert {model_input["name"] for model_input in description["inputs"]} >= {"features", "boxes", "input_ids"}
    auroc = description["int8"]["auroc"]
    assert auroc["difference"] == pytest.approx(auroc["after"] - auroc["before"])
    image = str(tool.world.dataset / "images" / "img")
    assert "error: meme 1 has no features" in run_exported_model(tool, folder, "--image", image, code=1)
    shapes = {"features": (3, 1), "boxes": (3, 4), "image_size": (2,)}
    np.savez(tool.folder / "narrow.npz", **{name: np.zeros(shape) for name, shape in shapes.items()})
    errors = run_exported_model(tool, folder, "--features", str(tool.folder / "narrow.npz"), "--text", "x", code=1)
    assert "narrow.npz: features must be finite numbers of shape (3, " in errors
    assert tool.run_for_exit_code("predict", "--with", str(folder)) == 2 and "region features" in tool.errors
    smaller = tool.folder / "smaller"
    assert tool.run_for_exit_code("export", description["run"], "-o", str(smaller), "--int8", "--max-loss", "-1") == 9
    assert "the AUROC on dev_unseen drops from" in tool.errors and "--max-loss" in tool.errors and not smaller.exists()
