"""``mmfw demo``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

import pytest

from mmf_win import __version__
from mmf_win.cli import main
from mmf_win.commands import demo
from mmf_win.errors import MmfError
from mmf_win.upstream import install


@pytest.fixture
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder of the test's own, whose folder for temporary files is the only thing in it."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    return tmp_path


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("thesis.txt", "mine", "not the folder of a demo"),
        ("mmfw-demo.json", '{"mmfw": "0.0.1"}', "made by the demo of mmfw 0.0.1"),
    ],
)
def test_a_folder_of_something_else_is_refused_and_left_alone(
    user_dir: Path, capsys: pytest.CaptureFixture[str], name: str, content: str, said: str
) -> None:
    (user_dir / name).write_text(content, encoding="utf-8")
    assert main(["demo", "--dir", str(user_dir)]) == 2
    assert said in capsys.readouterr().err
    assert [file.name for file in user_dir.iterdir()] == [name]


@pytest.mark.torch
def test_files_that_cannot_be_made_are_said_by_the_child(
    user_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (user_dir / "mmfw-demo.json").write_text(f'{{"mmfw": "{__version__}"}}', encoding="utf-8")
    for name in ("hateful_memes.zip", "features.tar.gz", "data"):  # the last must be a folder
        (user_dir / name).touch()
    assert main(["demo", "--dir", str(user_dir)]) == 3
    said = capfd.readouterr().err
    assert "data'" in said
    assert "the demo's files could not be made" in said
    assert "Traceback" not in said


def test_without_mmf_or_a_package_it_names_the_next_step_and_writes_nothing_fake_environment(
    in_tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> NoReturn:
        raise MmfError("MMF is not installed", hint="mmfw setup")

    monkeypatch.setattr(install, "find_spec", lambda name: None if name == "PIL" else object())
    for usable, said in ((missing, "mmfw setup"), (lambda: None, "pillow cannot be found")):
        monkeypatch.setattr(demo, "usable_mmf", usable)
        assert main(["demo", "--dir", "here"]) == MmfError.exit_code
        assert said in capsys.readouterr().err
    assert not (in_tmp_path / "here").exists()


RESULT = {"auroc": 0.9, "accuracy": 0.8, "run": "demo/1", "data_dir": "data", "save_dir": "save"}


def go_fake(path: Path) -> dict[str, Any]:
    """What the demo leaves behind, without running it."""
    path.mkdir(parents=True, exist_ok=True)
    print("a line of a command")
    csv, report = path / "predictions.csv", path / "report.html"
    csv.write_text("id,proba,label\n", encoding="utf-8")
    report.write_text("<!doctype html>", encoding="utf-8")
    return {**RESULT, "csv": str(csv), "report": str(report)}


@pytest.fixture
def fake_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the workflow, so that only what is around it is tested."""
    monkeypatch.setattr(demo, "usable_mmf", lambda: None)
    monkeypatch.setattr(demo, "require_packages", lambda *_: None)
    monkeypatch.setattr(demo, "_go", go_fake)


@pytest.mark.usefixtures("fake_way")
def test_only_the_predictions_and_the_report_stay_fake_way(
    in_tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    csv, report = sorted(in_tmp_path.glob("mmfw-demo-*"))
    assert list(result) == ["auroc", "accuracy", "run", "data_dir", "save_dir", "csv", "report", "seconds"]
    assert (result["csv"], result["report"]) == (str(csv), str(report))
    assert (result["data_dir"], result["save_dir"]) == (None, None)
    assert csv.read_text(encoding="utf-8") == "id,proba,label\n"
    assert report.read_text(encoding="utf-8") == "<!doctype html>"
    assert list((in_tmp_path / "temporary").iterdir()) == []


@pytest.mark.usefixtures("fake_way")
def test_a_current_folder_that_cannot_be_written_to_does_not_fail_it_at_the_end_fake_way(
    in_tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(demo.shutil, "copyfile", refuse)
    assert main(["demo", "--json"]) == 0
    output = capsys.readouterr()
    result = json.loads(output.out)
    assert (result["csv"], result["report"]) == (None, None)
    assert "cannot be written here (Permission denied)" in output.err
    assert [path.name for path in in_tmp_path.iterdir()] == ["temporary"]


@pytest.mark.usefixtures("fake_way")
def test_kept_it_ends_with_the_lines_that_go_on_fake_way(
    in_tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--keep"]) == 0
    assert (in_tmp_path / "mmfw-demo" / "predictions.csv").is_file()
    assert not list(in_tmp_path.glob("*.csv"))
    said = capsys.readouterr().err.splitlines()
    assert said[-2:] == [
        "  mmfw train demo --data-dir data --save-dir save",
        "  mmfw predict --data-dir data --save-dir save",
    ]


@pytest.mark.usefixtures("fake_way")
def test_a_poor_result_is_an_error_fake_way(
    in_tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "_go", lambda path: {**go_fake(path), "auroc": 0.5})
    assert main(["demo", "--json"]) == 7
    output = capsys.readouterr()
    assert json.loads(output.out)["auroc"] == 0.5
    assert "0.5000 is less than" in output.err


@pytest.mark.usefixtures("fake_way")
@pytest.mark.parametrize("chosen", [[], ["--dir", "mine"]])
def test_ctrl_c_removes_only_a_temporary_folder_fake_way(
    in_tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: list[str]
) -> None:
    def interrupted(path: Path) -> NoReturn:
        go_fake(path)
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "_go", interrupted)
    assert main(["demo", *chosen]) == 130
    assert list((in_tmp_path / "temporary").iterdir()) == []
    assert (in_tmp_path / "mine" / "predictions.csv").exists() == bool(chosen)


@pytest.mark.usefixtures("fake_way")
def test_after_an_error_the_temporary_folder_stays_to_look_into_fake_way(
    in_tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(path: Path) -> NoReturn:
        go_fake(path)
        raise MmfError("the worker died")

    monkeypatch.setattr(demo, "_go", failing)
    assert main(["demo"]) == MmfError.exit_code
    [folder] = (in_tmp_path / "temporary").iterdir()
    assert f"{folder} stays" in capsys.readouterr().err
