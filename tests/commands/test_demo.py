"""``mmfw demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest

from mmf_win.cli import main
from mmf_win.commands import demo
from mmf_win.errors import MmfEnvironmentError
from mmf_win.upstream import install
from tests.worlds.tools import MmfwRunner


@pytest.fixture
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder that contains only the folder for temporary files."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    return tmp_path


@pytest.mark.torch
def test_foreign_folder_is_refused_and_unchanged(user_dir: Path, mmfw: MmfwRunner) -> None:
    (user_dir / "thesis.txt").write_text("mine", encoding="utf-8")
    assert "not a demo folder" in mmfw("demo", "--dir", user_dir, code=2)
    assert [file.name for file in user_dir.iterdir()] == ["thesis.txt"]


@pytest.mark.torch
def test_error_of_the_child_that_generates_files_is_shown(user_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in (".mmfw-demo", "hateful_memes.zip", "features.tar.gz", "data"):  # the last must be a folder
        (user_dir / name).touch()
    assert main(["demo", "--dir", str(user_dir)]) == 3
    message = capfd.readouterr().err
    assert "data'" in message
    assert "cannot create the demo's files" in message
    assert "Traceback" not in message


def test_missing_mmf_or_package_names_the_next_step_with_fake_environment(
    in_tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mmfw: MmfwRunner
) -> None:
    def missing() -> NoReturn:
        raise MmfEnvironmentError("MMF is not installed", hint="mmfw setup")

    monkeypatch.setattr(install, "find_spec", lambda name: None if name == "PIL" else object())
    for usable, message in ((missing, "mmfw setup"), (lambda: None, ": pillow")):
        monkeypatch.setattr(demo, "require_mmf", usable)
        assert message in mmfw("demo", "--dir", "here", code=MmfEnvironmentError.exit_code)
    assert not (in_tmp_path / "here").exists()


RESULT = {"auroc": 0.9, "accuracy": 0.8, "data_dir": "data", "save_dir": "save"}


def write_fake_results(path: Path, model: str) -> dict[str, Any]:
    """Write the results of the demo without running it."""
    path.mkdir(parents=True, exist_ok=True)
    print("a line of a command")
    csv, report = path / "predictions.csv", path / "report.html"
    csv.write_text("id,proba,label\n", encoding="utf-8")
    report.write_text("<!doctype html>", encoding="utf-8")
    run = {"vilbert": "demo/1", "clip": "demo_clip/1"}[model]
    return {**RESULT, "run": run, "csv": str(csv), "report": str(report)}


@pytest.fixture
def fake_workflow(in_tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace the workflow, so that only the rest of the command is tested; return the current folder."""
    monkeypatch.setattr(demo, "require_mmf", lambda: None)
    monkeypatch.setattr(demo, "require_packages", lambda *_: None)
    monkeypatch.setattr(demo, "_run_workflow", write_fake_results)
    return in_tmp_path


def test_only_predictions_and_report_are_kept_with_fake_workflow(fake_workflow: Path, mmfw: MmfwRunner) -> None:
    result = mmfw.json("demo")
    csv, report = sorted(fake_workflow.glob("mmfw-demo-*"))
    keys = {"auroc", "accuracy", "run", "data_dir", "save_dir", "csv", "report", "seconds"}
    assert result.keys() == keys
    assert (result["csv"], result["report"]) == (str(csv), str(report))
    assert (result["data_dir"], result["save_dir"]) == (None, None)
    assert csv.read_text(encoding="utf-8") == "id,proba,label\n"
    assert report.read_text(encoding="utf-8") == "<!doctype html>"
    assert list((fake_workflow / "temporary").iterdir()) == []


def test_unwritable_current_folder_is_not_an_error_with_fake_workflow(
    fake_workflow: Path, monkeypatch: pytest.MonkeyPatch, mmfw: MmfwRunner
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(demo.shutil, "copyfile", refuse)
    result = mmfw.json("demo")
    assert (result["csv"], result["report"]) == (None, None)
    assert "to the current folder (Permission denied)" in mmfw.err
    assert [path.name for path in fake_workflow.iterdir()] == ["temporary"]


@pytest.mark.parametrize(("model", "preset"), [("vilbert", "demo"), ("clip", "demo_clip")])
def test_kept_demo_prints_the_next_commands_with_fake_workflow(
    fake_workflow: Path, mmfw: MmfwRunner, model: str, preset: str
) -> None:
    mmfw("demo", "--keep", "--model", model)
    assert (fake_workflow / "mmfw-demo" / "predictions.csv").is_file()
    assert not list(fake_workflow.glob("*.csv"))
    assert mmfw.err.splitlines()[-2:] == [
        f"  mmfw train {preset} --data-dir data --save-dir save",
        "  mmfw predict --data-dir data --save-dir save",
    ]


def test_poor_result_is_an_error_with_fake_workflow(
    fake_workflow: Path, monkeypatch: pytest.MonkeyPatch, mmfw: MmfwRunner
) -> None:
    monkeypatch.setattr(demo, "_run_workflow", lambda *arguments: {**write_fake_results(*arguments), "auroc": 0.5})
    assert mmfw.json("demo", code=7)["auroc"] == 0.5
    assert "0.5000 is below" in mmfw.err


@pytest.mark.parametrize(
    ("arguments", "error", "code"),
    [
        ([], KeyboardInterrupt(), 130),
        (["--dir", "mine"], KeyboardInterrupt(), 130),
        ([], MmfEnvironmentError("the worker died"), MmfEnvironmentError.exit_code),
    ],
)
def test_temporary_folder_is_removed_only_after_ctrl_c_with_fake_workflow(
    fake_workflow: Path,
    monkeypatch: pytest.MonkeyPatch,
    mmfw: MmfwRunner,
    arguments: list[str],
    error: BaseException,
    code: int,
) -> None:
    def fail(path: Path, model: str) -> NoReturn:
        write_fake_results(path, model)
        raise error

    monkeypatch.setattr(demo, "_run_workflow", fail)
    mmfw("demo", *arguments, code=code)
    assert (fake_workflow / "mine" / "predictions.csv").exists() == bool(arguments)
    remaining = list((fake_workflow / "temporary").iterdir())
    assert len(remaining) == (code != 130)
    assert all(f"kept for inspection: {folder}" in mmfw.err for folder in remaining)
