"""Models with regions, trained by the real MMF on features that ``mmfw features add`` has put together."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mmf_win.cli import main
from tests.endtoend.conftest import Tool, losses, probabilities
from tests.worlds import npy


@pytest.mark.parametrize("recipe", ["visual_bert", "vilbert"])
def test_it_trains_and_predicts_as_on_the_lmdb_that_the_files_came_from_and_as_on_the_files(
    recipe: str, tool: Tool, tmp_path: Path
) -> None:
    own = tool.in_a_copy("без features 特征")
    features = own.world.dataset / "features"
    folder = npy.pairs_of(features / "detectron.lmdb", tmp_path / "извлечено")
    shutil.rmtree(features)
    assert own.code("train", own.preset(recipe), "--updates", "2") == 3
    assert main(["features", "add", str(folder), "--data-dir", str(own.world.data)]) == 0
    tool.read()  # what it has printed
    on_lmdb = _trained(tool, recipe)
    assert _trained(own, recipe) == on_lmdb

    words = [f"dataset_config.hateful_memes.features.{slot}[0]={folder}" for slot in ("train", "val", "test")]
    assert _trained(tool, recipe, *words) == on_lmdb
    shutil.rmtree(folder)
    assert tool.code("train", tool.preset(recipe), "--updates", "2", *words) == 3
    assert str(folder) in tool.errors


def _trained(tool: Tool, recipe: str, *words: str) -> tuple[list[float], list[float]]:
    """The losses of a training, and its predictions."""
    run = tool.run_of(tool("train", tool.preset(recipe), "--updates", "3", "--seed", "1", *words))
    assert len(losses(run)) == 3
    return losses(run), probabilities(tool("predict", "--no-report"))
