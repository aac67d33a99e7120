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
    """A current folder of the test's own, whose folder for temporary files is the only thing in it."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    return tmp_path


@pytest.mark.torch
def test_a_folder_of_something_else_is_refused_and_left_alone(user_dir: Path, mmfw: MmfwRunner) -> None:
    (user_dir / "thesis.txt").write_text("mine", encoding="utf-8")
    assert "not a demo folder" in mmfw("demo", "--dir", user_dir, code=2)
    assert [file.name for file in user_dir.iterdir()] == ["thesis.txt"]


@pytest.mark.torch
def test_files_that_cannot_be_made_are_said_by_the_child(
    user_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in (".mmfw-demo", "hateful_memes.zip", "features.tar.gz", "data"):  # the last must be a folder
        (user_dir / name).touch()
    assert main(["demo", "--dir", str(user_dir)]) == 3
    said = capfd.readouterr().err
    assert "data'" in said
    assert "cannot create the demo's files" in said
    assert "Traceback" not in said


def test_without_mmf_or_a_package_it_names_the_next_step_and_writes_nothing_fake_environment(
    in_tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mmfw: MmfwRunner
) -> None:
    def missing() -> NoReturn:
        raise MmfEnvironmentError("MMF is not installed", hint="mmfw setup")

    monkeypatch.setattr(install, "find_spec", lambda name: None if name == "PIL" else object())
    for usable, said in ((missing, "mmfw setup"), (lambda: None, "pillow cannot be found")):
        monkeypatch.setattr(demo, "require_mmf", usable)
        assert said in mmfw("demo", "--dir", "here", code=MmfEnvironmentError.exit_code)
    assert not (in_tmp_path / "here").exists()


RESULT = {"auroc": 0.9, "accuracy": 0.8, "data_dir": "data", "save_dir": "save"}


def go_fake(path: Path, model: str) -> dict[str, Any]:
    """What the demo leaves behind, without running it."""
    path.mkdir(parents=True, exist_ok=True)
    print("a line of a command")
    csv, report = path / "predictions.csv", path / "report.html"
    csv.write_text("id,proba,label\n", encoding="utf-8")
    report.write_text("<!doctype html>", encoding="utf-8")
    run = {"vilbert": "demo/1", "clip": "demo_clip/1"}[model]
    return {**RESULT, "run": run, "csv": str(csv), "report": str(report)}


@pytest.fixture
def fake_way(in_tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, where the workflow is replaced, so that only what is around it is tested."""
    monkeypatch.setattr(demo, "require_mmf", lambda: None)
    monkeypatch.setattr(demo, "require_packages", lambda *_: None)
    monkeypatch.setattr(demo, "_run_workflow", go_fake)
    return in_tmp_path


def test_only_the_predictions_and_the_report_stay_fake_way(fake_way: Path, mmfw: MmfwRunner) -> None:
    result = mmfw.json("demo")
    csv, report = sorted(fake_way.glob("mmfw-demo-*"))
    known = {"auroc", "accuracy", "run", "data_dir", "save_dir", "csv", "report", "seconds"}
    assert result.keys() == known
    assert (result["csv"], result["report"]) == (str(csv), str(report))
    assert (result["data_dir"], result["save_dir"]) == (None, None)
    assert csv.read_text(encoding="utf-8") == "id,proba,label\n"
    assert report.read_text(encoding="utf-8") == "<!doctype html>"
    assert list((fake_way / "temporary").iterdir()) == []


def test_a_current_folder_that_cannot_be_written_to_does_not_fail_it_at_the_end_fake_way(
    fake_way: Path, monkeypatch: pytest.MonkeyPatch, mmfw: MmfwRunner
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(demo.shutil, "copyfile", refuse)
    result = mmfw.json("demo")
    assert (result["csv"], result["report"]) == (None, None)
    assert "cannot be written here (Permission denied)" in mmfw.err
    assert [path.name for path in fake_way.iterdir()] == ["temporary"]


@pytest.mark.parametrize(("model", "preset"), [("vilbert", "demo"), ("clip", "demo_clip")])
def test_kept_it_ends_with_the_lines_that_go_on_fake_way(
    fake_way: Path, mmfw: MmfwRunner, model: str, preset: str
) -> None:
    mmfw("demo", "--keep", "--model", model)
    assert (fake_way / "mmfw-demo" / "predictions.csv").is_file()
    assert not list(fake_way.glob("*.csv"))
    assert mmfw.err.splitlines()[-2:] == [
        f"  mmfw train {preset} --data-dir data --save-dir save",
        "  mmfw predict --data-dir data --save-dir save",
    ]


def test_a_poor_result_is_an_error_fake_way(
    fake_way: Path, monkeypatch: pytest.MonkeyPatch, mmfw: MmfwRunner
) -> None:
    monkeypatch.setattr(demo, "_run_workflow", lambda *of: {**go_fake(*of), "auroc": 0.5})
    assert mmfw.json("demo", code=7)["auroc"] == 0.5
    assert "0.5000 is less than" in mmfw.err


@pytest.mark.parametrize(
    ("words", "error", "code"),
    [
        ([], KeyboardInterrupt(), 130),
        (["--dir", "mine"], KeyboardInterrupt(), 130),
        ([], MmfEnvironmentError("the worker died"), MmfEnvironmentError.exit_code),
    ],
)
def test_only_ctrl_c_removes_a_folder_and_only_a_temporary_one_fake_way(
    fake_way: Path,
    monkeypatch: pytest.MonkeyPatch,
    mmfw: MmfwRunner,
    words: list[str],
    error: BaseException,
    code: int,
) -> None:
    def fails(path: Path, model: str) -> NoReturn:
        go_fake(path, model)
        raise error

    monkeypatch.setattr(demo, "_run_workflow", fails)
    mmfw("demo", *words, code=code)
    assert (fake_way / "mine" / "predictions.csv").exists() == bool(words)
    left = list((fake_way / "temporary").iterdir())
    assert len(left) == (code != 130)
    assert all(f"{folder} stays" in mmfw.err for folder in left)  # to look into it
