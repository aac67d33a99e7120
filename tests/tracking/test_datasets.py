"""Datasets sent to and downloaded from a stub of ClearML's servers by clearml's real client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mmf_win.files import remove_tree
from mmf_win.paths import MmfPaths
from tests.worlds.clearml_stub import ClearMLStub
from tests.worlds.memes import dataset_files, read_tree, write_tree
from tests.worlds.tools import MmfwRunner, requires_package

pytestmark = [pytest.mark.wide, requires_package("clearml")]


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClearMLStub]:
    """Return the stub servers."""
    with ClearMLStub.serving(tmp_path / "clearml", monkeypatch) as servers:
        yield servers


@pytest.fixture
def mmf_paths(user_dir: Path, mmfw: MmfwRunner) -> MmfPaths:
    """Folders of a converted dataset."""
    mmfw("convert", write_tree(dataset_files(), user_dir / "source"), "--data-dir", user_dir / "data")
    return MmfPaths.resolve(user_dir / "data")


def run(*words: object, code: int = 0, text: str = "", **environ: str) -> Any:
    """Run a command in a separate process; return its JSON result, or its error output."""
    ended = subprocess.run(
        [sys.executable, "-m", "mmf_win", *map(str, words), *(["--json"] if code == 0 else [])],
        input=text,
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONUTF8": "1", **environ},
    )
    assert ended.returncode == code and "Traceback" not in ended.stderr, ended.stderr
    return ended.stderr if code else json.loads(ended.stdout)


def register(places: MmfPaths) -> str:
    """Create a ClearML dataset and return its ID."""
    result = run("track", "register-dataset", "memes", "--yes", "--data-dir", places.data_dir)
    return str(result["id"])


def test_registered_dataset_is_downloaded_from_a_stub_verified_and_used_in_place(
    mmf_paths: MmfPaths, stub: ClearMLStub, user_dir: Path
) -> None:
    dataset_id = register(mmf_paths)
    task = stub.tasks[dataset_id]
    assert (task["name"], task["status"]) == ("memes", "completed") and "dataset" in task["system_tags"]
    result = run("convert", "--clearml-dataset", dataset_id)
    copy = Path(result["data_dir"])
    assert copy.is_relative_to(os.environ["CLEARML_CACHE_DIR"]) and result["already_done"]
    for part in ("annotations", "images"):
        assert read_tree(copy / "datasets/hateful_memes/defaults" / part) == read_tree(mmf_paths.dataset.root / part)
    assert result["splits"]["train"]["rows"] == 6
    elsewhere = run("convert", "--clearml-dataset", dataset_id, "--data-dir", user_dir / "other")
    assert MmfPaths.resolve(user_dir / "other").dataset.annotation_file("train").is_file()
    assert not elsewhere["already_done"]

    image = next((copy / "datasets/hateful_memes/defaults/images/img").iterdir())
    image.write_bytes(image.read_bytes()[:-1] + b"?")
    text = run("convert", "--clearml-dataset", dataset_id, code=3)
    assert f"images/img/{image.name}" in text and str(copy) in text
    remove_tree(copy)
    assert run("convert", "--clearml-dataset", dataset_id)["data_dir"] == str(copy)


def test_foreign_dataset_in_a_stub_is_converted(stub: ClearMLStub, user_dir: Path) -> None:
    write_tree(dataset_files(), user_dir / "source")
    code = (
        "import sys; from clearml import Dataset\n"
        "made = Dataset.create('raw', 'memes'); made.add_files(sys.argv[1]); made.upload(); made.finalize()"
    )
    subprocess.run([sys.executable, "-c", code, str(user_dir / "source")], check=True, capture_output=True)
    [dataset_id] = stub.tasks
    result = run("convert", "--clearml-dataset", dataset_id, "--data-dir", user_dir / "data")
    assert (result["data_dir"], result["already_done"]) == (str(user_dir / "data"), False)
    run("verify", "dataset", "--data-dir", user_dir / "data")


def test_dataset_missing_in_a_stub_and_offline_mode_are_usage_errors(stub: ClearMLStub) -> None:
    assert "no ClearML dataset with the ID nope" in run("convert", "--clearml-dataset", "nope", code=2)
    task = stub._tasks_create(name="a run")["id"]
    assert "no ClearML dataset with the ID" in run("convert", "--clearml-dataset", task, code=2)
    assert "offline" in run("convert", "--clearml-dataset", "nope", code=2, CLEARML_OFFLINE_MODE="1")
    assert "only one of" in run("convert", "x.zip", "--clearml-dataset", "nope", code=2)


def test_unreachable_server_is_an_error_for_datasets(mmf_paths: MmfPaths, stub: ClearMLStub) -> None:
    stub.stop_servers()
    assert "later" in run("convert", "--clearml-dataset", "any", code=6)
    register = ("track", "register-dataset", "memes", "--yes", "--data-dir", mmf_paths.data_dir)
    assert "later" in run(*register, code=6)


def test_nothing_is_sent_to_a_stub_before_verification_and_licence_consent(
    mmf_paths: MmfPaths, stub: ClearMLStub, user_dir: Path
) -> None:
    register = ("track", "register-dataset", "memes", "--data-dir")
    for text, why in (("n\n", "not registered"), ("", "confirmation required")):
        result = run(*register, mmf_paths.data_dir, code=2, text=text)
        assert why in result and "licence" in result
    assert "mmfw convert" in run(*register, user_dir / "none", "--yes", code=3)
    image = next((mmf_paths.dataset.images / "img").iterdir())
    image.write_bytes(b"damaged")
    result = run(*register, mmf_paths.data_dir, "--yes", code=3)
    assert image.name in result and "mmfw repair dataset" in result and stub.tasks == {}
