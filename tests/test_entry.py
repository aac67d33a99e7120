"""``mmfw train`` as queues start it: by named arguments, as a module or as a file."""

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
    ("arguments", "words"),
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
def test_named_arguments_become_the_words_of_train(arguments: str, words: str) -> None:
    assert entry.mmfw_arguments(arguments.split()) == ["train", *words.split()]


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
def test_an_unknown_name_is_refused_with_the_nearest(argument: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        entry.mmfw_arguments(["preset=mmbt_grid", argument])
    assert argument in str(refused.value) and refused.value.hint == hint


def test_what_is_wrong_is_said_as_by_mmfw(capsys: pytest.CaptureFixture[str]) -> None:
    for argument, said in (("xyz=7", "xyz=7: not a NAME"), ("fast=maybe", "'--fast' does not take a value")):
        assert main(lambda argument=argument: entry.mmfw_arguments(["preset=mmbt_grid", argument])) == 2  # type: ignore[misc]
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("how", [["-m", "mmf_win.entry"], [_FILE]])
def test_it_runs_as_a_module_and_as_a_file_from_anywhere(how: list[str], tmp_path: Path) -> None:
    root = str(Path(_FILE).parents[1])
    code = f"import sys; sys.path.append({root!r}); import runpy; sys.argv = ['', 'list=true', 'json=true']; "
    run = f"sys.path.insert(0, {str(Path(_FILE).parent)!r}); runpy.run_path({_FILE!r}, run_name='__main__')"
    run = "runpy.run_module('mmf_win.entry', run_name='__main__')" if how[0] == "-m" else run
    done = subprocess.run([sys.executable, "-c", code + run], cwd=tmp_path, capture_output=True, encoding="utf-8")
    assert "mmbt_grid" in {preset["name"] for preset in json.loads(done.stdout)}, done.stderr


def test_as_a_file_the_modules_beside_it_take_no_others_place() -> None:
    code = (
        f"import importlib.util, runpy, sys; sys.path.insert(0, {str(Path(_FILE).parent)!r}); "
        f"runpy.run_path({_FILE!r}); print(importlib.util.find_spec('console'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.split() == ["None"]


def test_a_stand_in_for_data_sets_is_asked_for_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clearml_datasets, "download_dataset", lambda given: tmp_path / given)
    words = entry.mmfw_arguments(["preset=mmbt_grid", "dataset_id=7f"])
    assert words == ["train", "mmbt_grid", f"--data-dir={tmp_path / '7f'}"]


@pytest.mark.wide
def test_a_stub_of_clearml_has_the_arguments_of_an_agents_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("clearml")
    arguments = {name: {"section": "Args", "name": name, "value": "true"} for name in ("list", "json")}
    with ClearMLStub.serving(tmp_path, monkeypatch) as stub:
        queued = stub._tasks_create(name="queued", hyperparams={"Args": arguments, "General": {}})["id"]
        monkeypatch.setenv("CLEARML_TASK_ID", queued)
        done = subprocess.run([sys.executable, _FILE], capture_output=True, encoding="utf-8")
        assert done.returncode == 0, done.stderr
        assert "mmbt_grid" in {preset["name"] for preset in json.loads(done.stdout)}
        assert entry.mmfw_arguments(["preset=vilbert"]) == ["train", "vilbert"], "what is given is not asked for"
        monkeypatch.setenv("CLEARML_TASK_ID", "8a")
        done = subprocess.run([sys.executable, _FILE], capture_output=True, encoding="utf-8")
        assert done.returncode == 6 and "Traceback" not in done.stderr
