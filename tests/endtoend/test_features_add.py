"""Models with regions, trained by the real MMF on features that ``mmfw features add`` has put together."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mmf_win.cli import main
from mmf_win.protocol import read_events
from tests.endtoend.conftest import Tool
from tests.worlds import npy
from tests.worlds.tiny_mmf import TinyWorld

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("recipe", ["visual_bert", "vilbert"])
def test_it_trains_and_predicts_as_on_the_lmdb_that_the_files_came_from(
    recipe: str, tool: Tool, tmp_path: Path
) -> None:
    world = TinyWorld(tmp_path / "без features 特征")
    shutil.copytree(tool.world.root, world.root)
    features = world.dataset / "features"
    folder = npy.pairs_of(features / "detectron.lmdb", tmp_path / "извлечено")
    shutil.rmtree(features)
    own = replace(tool, world=world, folder=tmp_path / "own")
    own.folder.mkdir()
    assert own.code("train", own.preset(recipe), "--updates", "2") == 3
    assert main(["features", "add", str(folder), "--data-dir", str(world.data)]) == 0
    tool.read()  # what it has printed
    assert _trained(own, recipe) == _trained(tool, recipe)


def test_a_folder_of_npy_files_is_read_as_mmf_reads_it(tool: Tool, tmp_path: Path) -> None:
    lmdb = tool.world.dataset / "features" / "detectron.lmdb"
    folder = npy.pairs_of(lmdb, tmp_path / "извлечено")
    words = [f"dataset_config.hateful_memes.features.{slot}[0]={folder}" for slot in ("train", "val", "test")]
    assert _trained(tool, "visual_bert", *words) == _trained(tool, "visual_bert")
    shutil.rmtree(folder)
    assert tool.code("train", tool.preset("visual_bert"), "--updates", "2", *words) == 3
    assert str(folder) in tool.errors


def _trained(tool: Tool, recipe: str, *words: str) -> tuple[list[Any], str]:
    """The losses of a training, and its predictions."""
    run = tool.run_of(tool("train", tool.preset(recipe), "--updates", "3", "--seed", "1", *words))
    losses = [event["loss"] for event in read_events(run.events) if event["kind"] == "train"]
    assert len(losses) == 3
    tool("predict")
    (report,) = (path for path in run.reports.glob("*.csv"))
    return losses, report.read_text(encoding="utf-8")
