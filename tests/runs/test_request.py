"""What a run was asked for, over the life of a run and of versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmf_win.errors import DataError
from mmf_win.runs.folder import Run
from mmf_win.runs.request import RunRequest

# As 0.1.0 wrote it.
OF_0_1_0 = {
    "preset": "mmbt_grid",
    "model": "mmbt",
    "config": "projects/hateful_memes/configs/mmbt/defaults.yaml",
    "settings": {"training": {"num_workers": 0}},
    "overrides": ["optimizer.params.lr=1e-5"],
    "splits": {"train": "train", "val": "dev_unseen", "test": "test_unseen"},
    "data_dir": "/data",
    "preset_file": None,
    "offline": False,
    "seed": 3,
    "batch_size": 16,
    "auto_batch": True,
    "updates": 500,
    "epochs": None,
    "detect_anomaly": True,
    "keep": 2,
    "allow_missing": True,
    "start": None,
    "init": None,
    "published_weights": None,
    "published_sha256": None,
    "mmf": "1.0.0rc10",
    "published": {"val": {"auroc": 67.4}},
    "created": 1789000000.0,
}


def test_a_run_of_0_1_0_is_read_and_resumed_as_it_was_asked_for(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "mmbt_grid")
    run.request_file.write_text(json.dumps(OF_0_1_0), encoding="utf-8")
    request = run.request()
    assert {key: getattr(request, key) for key in OF_0_1_0} == OF_0_1_0
    resumed = RunRequest(updates=900).over(request)
    lasting = OF_0_1_0 | {"updates": 900, "detect_anomaly": False}
    assert {key: getattr(resumed, key) for key in OF_0_1_0} == lasting
    assert resumed.retry and resumed.remembered and not resumed.trust


def test_the_last_word_about_the_precision_holds() -> None:
    half = RunRequest(precision="bf16").over(RunRequest(overrides=["training.fp16=True"]))
    assert (half.precision, half.overrides) == ("bf16", [])
    of_mmf = RunRequest(overrides=["training.fp16=True"]).over(half)
    assert (of_mmf.precision, of_mmf.overrides) == (None, ["training.fp16=True"])
    assert RunRequest(overrides=["training.seed=1"]).over(half).precision == "bf16"


def test_what_was_chosen_for_one_command_does_not_hold_for_the_next(tmp_path: Path) -> None:
    chosen = RunRequest(trust=True, retry=False, remembered=False, detect_anomaly=True, stop_timeout=1)
    run = Run.create(tmp_path, "mmbt")
    run.save_request(chosen.over(RunRequest(model="mmbt")))
    resumed = RunRequest().over(run.request())
    assert (resumed.trust, resumed.retry, resumed.remembered) == (False, True, True)
    assert (resumed.detect_anomaly, resumed.stop_timeout) == (False, 30)


@pytest.mark.parametrize("content", ["{}", "[]", "{half a"])
def test_a_file_that_is_no_request_is_named(tmp_path: Path, content: str) -> None:
    run = Run.create(tmp_path, "mmbt")
    run.request_file.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=r"request\.json"):
        run.request()
