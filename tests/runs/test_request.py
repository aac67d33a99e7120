"""What a run was asked for, over the life of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mmf_win.errors import DataError
from mmf_win.runs.folder import Run
from mmf_win.runs.request import RunRequest
from tests.worlds.memes import SLOTS


def test_a_run_is_resumed_as_it_was_asked_for(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "mmbt_grid")
    asked = RunRequest(model="mmbt", splits=SLOTS, updates=500, seed=3, keep=2, detect_anomaly=True)
    run.save_request(asked)
    assert run.request() == asked
    resumed = RunRequest(updates=900).over(run.request())
    assert resumed == replace(asked, updates=900, detect_anomaly=False)


def test_the_last_word_about_the_precision_holds() -> None:
    half = RunRequest(precision="bf16").over(RunRequest(overrides=["training.fp16=True"]))
    assert (half.precision, half.overrides) == ("bf16", [])
    of_mmf = RunRequest(overrides=["training.fp16=True"]).over(half)
    assert (of_mmf.precision, of_mmf.overrides) == (None, ["training.fp16=True"])
    assert RunRequest(overrides=["training.seed=1"]).over(half).precision == "bf16"


def test_what_was_chosen_for_one_command_does_not_hold_for_the_next(tmp_path: Path) -> None:
    chosen = RunRequest(trust=True, retry=False, use_known_fits=False, detect_anomaly=True, stop_timeout=1)
    run = Run.create(tmp_path, "mmbt")
    run.save_request(chosen.over(RunRequest(model="mmbt", splits=SLOTS)))
    resumed = RunRequest().over(run.request())
    assert (resumed.trust, resumed.retry, resumed.use_known_fits) == (False, True, True)
    assert (resumed.detect_anomaly, resumed.stop_timeout) == (False, 30)


@pytest.mark.parametrize(
    "content", ["{}", "[]", "{half a", '{"model": "mmbt", "splits": {"train": "train"}}']
)
def test_a_file_that_is_no_request_is_named(tmp_path: Path, content: str) -> None:
    run = Run.create(tmp_path, "mmbt")
    run.request_file.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=r"request\.json"):
        run.request()
