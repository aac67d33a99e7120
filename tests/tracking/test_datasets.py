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
    """Convert a dataset and return its folders."""
    mmfw("convert", write_tree(dataset_files(), user_dir / "source"), "--data-dir", user_dir / "data")
    return MmfPaths.resolve(user_dir / "data")


def run_mmfw(*arguments: object, code: int = 0, text: str = "", **environ: str) -> Any:
    """Run a command in a separate process; return its JSON result, or its error output."""
    ended = subprocess.run(
        [sys.executable, "-m", "mmf_win", *map(str, arguments), *(["--json"] if code == 0 else [])],
        input=text,
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONUTF8": "1", **environ},
    )
    assert ended.returncode == code and "Traceback" not in ended.stderr, ended.stderr
    return ended.stderr if code else json.loads(ended.stdout)


def register_dataset(mmf_paths: MmfPaths) -> str:
    """Create a ClearML dataset and return its ID."""
    result = run_mmfw("track", "register-dataset", "memes", "--yes", "--data-dir", mmf_paths.data_dir)
    return str(result["id"])


def test_registered_dataset_is_downloaded_from_a_stub_verified_and_used_in_place(
    mmf_paths: MmfPaths, stub: ClearMLStub, user_dir: Path
) -> None:
    dataset_id = register_dataset(mmf_paths)
    task = stub.tasks[dataset_id]
    assert (task["name"], task["status"]) == ("memes", "completed") and "dataset" in task["system_tags"]
    result = run_mmfw("convert", "--clearml-dataset", dataset_id)
    copy = Path(result["data_dir"])
    assert copy.is_relative_to(os.environ["CLEARML_CACHE_DIR"]) and result["already_done"]
    for part in ("annotations", "images"):
        assert read_tree(copy / "datasets/hateful_memes/defaults" / part) == read_tree(mmf_paths.dataset.root / part)
    assert result["splits"]["train"]["rows"] == 6
    second_result = run_mmfw("convert", "--clearml-dataset", dataset_id, "--data-dir", user_dir / "other")
    assert MmfPaths.resolve(user_dir / "other").dataset.annotation_file("train").is_file()
    assert not second_result["already_done"]

    image = next((copy / "datasets/hateful_memes/defaults/images/img").iterdir())
    image.write_bytes(image.read_bytes()[:-1] + b"?")
    text = run_mmfw("convert", "--clearml-dataset", dataset_id, code=3)
    assert f"images/img/{image.name}" in text and str(copy) in text
    remove_tree(copy)
    assert run_mmfw("convert", "--clearml-dataset", dataset_id)["data_dir"] == str(copy)


def test_foreign_dataset_in_a_stub_is_converted(stub: ClearMLStub, user_dir: Path) -> None:
    write_tree(dataset_files(), user_dir / "source")
    code = (
        "import sys; from clearml import Dataset\n"
        "made = Dataset.create('raw', 'memes'); made.add_files(sys.argv[1]); made.upload(); made.finalize()"
    )
    subprocess.run([sys.executable, "-c", code, str(user_dir / "source")], check=True, capture_output=True)
    [dataset_id] = stub.tasks
    result = run_mmfw("convert", "--clearml-dataset", dataset_id, "--data-dir", user_dir / "data")
    assert (result["data_dir"], result["already_done"]) == (str(user_dir / "data"), False)
    run_mmfw("verify", "dataset", "--data-dir", user_dir / "data")


def test_dataset_missing_in_a_stub_and_offline_mode_are_usage_errors(stub: ClearMLStub) -> None:
    assert "no ClearML dataset with the ID nope" in run_mmfw("convert", "--clearml-dataset", "nope", code=2)
    task = stub._tasks_create(name="a run")["id"]
    assert "no ClearML dataset with the ID" in run_mmfw("convert", "--clearml-dataset", task, code=2)
    assert "offline" in run_mmfw("convert", "--clearml-dataset", "nope", code=2, CLEARML_OFFLINE_MODE="1")
    assert "cannot be combined" in run_mmfw("convert", "x.zip", "--clearml-dataset", "nope", code=2)


def test_unreachable_server_is_an_error_for_datasets(mmf_paths: MmfPaths, stub: ClearMLStub) -> None:
    stub.stop_servers()
    assert "later" in run_mmfw("convert", "--clearml-dataset", "any", code=6)
    arguments = ("track", "register-dataset", "memes", "--yes", "--data-dir", mmf_paths.data_dir)
    assert "later" in run_mmfw(*arguments, code=6)


def test_nothing_is_sent_to_a_stub_before_verification_and_licence_consent(
    mmf_paths: MmfPaths, stub: ClearMLStub, user_dir: Path
) -> None:
    arguments = ("track", "register-dataset", "memes", "--data-dir")
    for text, message in (("n\n", "not registered"), ("", "confirmation required")):
        result = run_mmfw(*arguments, mmf_paths.data_dir, code=2, text=text)
        assert message in result and "licence" in result
    assert "mmfw convert" in run_mmfw(*arguments, user_dir / "none", "--yes", code=3)
    image = next((mmf_paths.dataset.images / "img").iterdir())
    image.write_bytes(b"damaged")
    result = run_mmfw(*arguments, mmf_paths.data_dir, "--yes", code=3)
    assert image.name in result and "mmfw repair dataset" in result and stub.tasks == {}
