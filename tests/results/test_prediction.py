"""What is refused before anything is predicted."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmf_win.commands.progress import RunDisplay
from mmf_win.errors import DatasetError
from mmf_win.results import prediction
from mmf_win.results.prediction import RunCheckpoint
from tests.worlds import report_world


def test_a_split_without_memes_is_refused(tmp_path: Path) -> None:
    world = report_world.make(tmp_path, groups=0)  # draws nothing, so it needs no Pillow
    world.annotate([], "nobody")
    member = RunCheckpoint(world.run(), tmp_path / "best.ckpt")
    with pytest.raises(DatasetError, match=r"nobody\.jsonl: there are no memes in it"):
        options = prediction.PredictionOptions(RunDisplay, splits=["nobody"])
        list(prediction.predict([member], world.save, options))
