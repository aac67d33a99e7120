"""Data sets in a stub of ClearML's servers, to and from which clearml's real client brings them."""

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
    """The servers."""
    with ClearMLStub.serving(tmp_path / "clearml", monkeypatch) as servers:
        yield servers


@pytest.fixture
def mmf_paths(user_dir: Path, mmfw: MmfwRunner) -> MmfPaths:
    """A converted dataset."""
    mmfw("convert", write_tree(dataset_files(), user_dir / "source"), "--data-dir", user_dir / "data")
    return MmfPaths.resolve(user_dir / "data")


def run(*words: object, code: int = 0, said: str = "", **environ: str) -> Any:
    """A command in a process of its own: what it says, as JSON where it succeeds."""
    ended = subprocess.run(
        [sys.executable, "-m", "mmf_win", *map(str, words), *(["--json"] if code == 0 else [])],
        input=said,
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONUTF8": "1", **environ},
    )
    assert ended.returncode == code and "Traceback" not in ended.stderr, ended.stderr
    return ended.stderr if code else json.loads(ended.stdout)


def register(places: MmfPaths) -> str:
    """Make a data set; its id."""
    told = run("track", "register-dataset", "memes", "--yes", "--data-dir", places.data_dir)
    return str(told["id"])


def test_a_registered_dataset_is_got_from_a_stub_and_verified_and_used_in_place(
    mmf_paths: MmfPaths, stub: ClearMLStub, user_dir: Path
) -> None:
    made = register(mmf_paths)
    task = stub.tasks[made]
    assert (task["name"], task["status"]) == ("memes", "completed") and "dataset" in task["system_tags"]
    told = run("convert", "--clearml-dataset", made)
    copy = Path(told["data_dir"])
    assert copy.is_relative_to(os.environ["CLEARML_CACHE_DIR"]) and told["already_done"]
    for part in ("annotations", "images"):
        assert read_tree(copy / "datasets/hateful_memes/defaults" / part) == read_tree(
            mmf_paths.dataset.root / part
        )
    assert told["splits"]["train"]["rows"] == 6
    elsewhere = run("convert", "--clearml-dataset", made, "--data-dir", user_dir / "other")
    assert MmfPaths.resolve(user_dir / "other").dataset.annotation_file("train").is_file()
    assert not elsewhere["already_done"]

    image = next((copy / "datasets/hateful_memes/defaults/images/img").iterdir())
    image.write_bytes(image.read_bytes()[:-1] + b"?")
    said = run("convert", "--clearml-dataset", made, code=3)
    assert f"images/img/{image.name}" in said and str(copy) in said
    remove_tree(copy)
    assert run("convert", "--clearml-dataset", made)["data_dir"] == str(copy)


def test_a_data_set_in_a_stub_that_mmfw_did_not_make_is_converted(stub: ClearMLStub, user_dir: Path) -> None:
    write_tree(dataset_files(), user_dir / "source")
    code = (
        "import sys; from clearml import Dataset\n"
        "made = Dataset.create('raw', 'memes'); made.add_files(sys.argv[1]); made.upload(); made.finalize()"
    )
    subprocess.run([sys.executable, "-c", code, str(user_dir / "source")], check=True, capture_output=True)
    [made] = stub.tasks
    told = run("convert", "--clearml-dataset", made, "--data-dir", user_dir / "data")
    assert (told["data_dir"], told["already_done"]) == (str(user_dir / "data"), False)
    run("verify", "dataset", "--data-dir", user_dir / "data")


def test_what_a_stub_does_not_have_and_offline_mode_are_usage_errors(stub: ClearMLStub) -> None:
    assert "nope: ClearML has no data set" in run("convert", "--clearml-dataset", "nope", code=2)
    task = stub._tasks_create(name="a run")["id"]
    assert "no data set" in run("convert", "--clearml-dataset", task, code=2)
    assert "offline" in run("convert", "--clearml-dataset", "nope", code=2, CLEARML_OFFLINE_MODE="1")
    assert "more than once" in run("convert", "x.zip", "--clearml-dataset", "nope", code=2)


def test_a_server_that_is_down_is_an_error_of_data_sets_too(mmf_paths: MmfPaths, stub: ClearMLStub) -> None:
    stub.stop_servers()
    assert "later" in run("convert", "--clearml-dataset", "any", code=6)
    register = ("track", "register-dataset", "memes", "--yes", "--data-dir", mmf_paths.data_dir)
    assert "later" in run(*register, code=6)


def test_nothing_goes_to_a_stub_before_all_is_intact_and_the_licence_was_named(
    mmf_paths: MmfPaths, stub: ClearMLStub, user_dir: Path
) -> None:
    register = ("track", "register-dataset", "memes", "--data-dir")
    for said, why in (("n\n", "not registered"), ("", "nobody is there to answer")):
        told = run(*register, mmf_paths.data_dir, code=2, said=said)
        assert why in told and "licence" in told
    assert "mmfw convert" in run(*register, user_dir / "none", "--yes", code=3)
    image = next((mmf_paths.dataset.images / "img").iterdir())
    image.write_bytes(b"damaged")
    told = run(*register, mmf_paths.data_dir, "--yes", code=3)
    assert image.name in told and "mmfw repair dataset" in told and stub.tasks == {}
