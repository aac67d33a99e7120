"""``mmfw train`` as job queues start it: with named arguments, as a module or as a file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mmf_win import entry
from mmf_win.cli import main
from mmf_win.errors import UsageError
from mmf_win.tracking import clearml_datasets
from tests.worlds.clearml_stub import ClearMLStub

_FILE = str(entry.__file__)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("preset=mmbt_grid seed=1", "mmbt_grid --seed=1"),
        ("seed=1 preset=my.yaml optimizer.params.lr=1e-5", "my.yaml --seed=1 optimizer.params.lr=1e-5"),
        ("resume=last data-dir=a data_dir=b", "--resume=last --data-dir=a --data-dir=b"),
        ("--preset=vilbert --batch_size=auto", "vilbert --batch-size=auto"),
        ("fast=true detect_anomaly=True trust=false", "--fast --detect-anomaly"),
        ("fast=False no_retry=true", "--no-fast --no-retry"),
        ("track=clearml,mlflow track_models=best", "--track=clearml --track=mlflow --track-models=best"),
        ("name=a=b a.b=c=d", "--name=a=b a.b=c=d"),
    ],
)
def test_named_arguments_become_arguments_of_train(arguments: str, expected: str) -> None:
    assert entry.convert_arguments(arguments.split()) == ["train", *expected.split()]


@pytest.mark.parametrize(
    ("argument", "hint"),
    [
        ("presett=mmbt_grid", "did you mean preset=…?"),
        ("dataset-ids=7", "did you mean dataset_id=…?"),
        ("upates=7", "did you mean updates=…?"),
        ("seed", "did you mean seed=…?"),
        ("xyz=7", "for example preset=mmbt_grid seed=1"),
    ],
)
def test_unknown_name_is_refused_with_closest_match(argument: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        entry.convert_arguments(["preset=mmbt_grid", argument])
    assert argument in str(raised.value) and raised.value.hint == hint


def test_invalid_arguments_print_the_errors_of_mmfw(capsys: pytest.CaptureFixture[str]) -> None:
    for argument, message in (("xyz=7", "xyz=7: not a NAME"), ("fast=maybe", "'--fast' does not take a value")):
        assert main(lambda argument=argument: entry.convert_arguments(["preset=mmbt_grid", argument])) == 2  # type: ignore[misc]
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("invocation", [["-m", "mmf_win.entry"], [_FILE]])
def test_entry_runs_as_module_and_as_file_from_any_folder(invocation: list[str], tmp_path: Path) -> None:
    root = str(Path(_FILE).parents[1])
    code = f"import sys; sys.path.append({root!r}); import runpy; sys.argv = ['', 'list=true', 'json=true']; "
    statement = f"sys.path.insert(0, {str(Path(_FILE).parent)!r}); runpy.run_path({_FILE!r}, run_name='__main__')"
    statement = "runpy.run_module('mmf_win.entry', run_name='__main__')" if invocation[0] == "-m" else statement
    process = subprocess.run(
        [sys.executable, "-c", code + statement], cwd=tmp_path, capture_output=True, encoding="utf-8"
    )
    assert "mmbt_grid" in {preset["name"] for preset in json.loads(process.stdout)}, process.stderr


def test_entry_run_as_file_does_not_make_its_folder_importable() -> None:
    code = (
        f"import importlib.util, runpy, sys; sys.path.insert(0, {str(Path(_FILE).parent)!r}); "
        f"runpy.run_path({_FILE!r}); print(importlib.util.find_spec('console'))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert process.stdout.split() == ["None"]


def test_dataset_id_becomes_folder_of_fake_dataset_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clearml_datasets, "download_dataset", lambda dataset_id: tmp_path / dataset_id)
    arguments = entry.convert_arguments(["preset=mmbt_grid", "dataset_id=7f"])
    assert arguments == ["train", "mmbt_grid", f"--data-dir={tmp_path / '7f'}"]


@pytest.mark.wide
def test_arguments_of_agent_come_from_its_task_in_clearml_stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("clearml")
    arguments = {name: {"section": "Args", "name": name, "value": "true"} for name in ("list", "json")}
    with ClearMLStub.serving(tmp_path, monkeypatch) as stub:
        queued = stub._tasks_create(name="queued", hyperparams={"Args": arguments, "General": {}})["id"]
        monkeypatch.setenv("CLEARML_TASK_ID", queued)
        process = subprocess.run([sys.executable, _FILE], capture_output=True, encoding="utf-8")
        assert process.returncode == 0, process.stderr
        assert "mmbt_grid" in {preset["name"] for preset in json.loads(process.stdout)}
        assert entry.convert_arguments(["preset=vilbert"]) == ["train", "vilbert"], "arguments must take precedence"
        monkeypatch.setenv("CLEARML_TASK_ID", "8a")
        process = subprocess.run([sys.executable, _FILE], capture_output=True, encoding="utf-8")
        assert process.returncode == 6 and "Traceback" not in process.stderr
