"""What an attempt and the request of its run get of the overrides that are typed."""

from __future__ import annotations

from pathlib import Path

from mmf_win.paths import Places
from mmf_win.protocol import Attempt
from mmf_win.runs import needs
from mmf_win.runs.request import Job, Once
from tests.worlds.mmf_sources import bare_mmf
from tests.worlds.requests import request


def test_an_override_of_mmfs_own_precision_takes_the_place_of_the_runs_in_attempt_and_request(
    tmp_path: Path,
) -> None:
    root = bare_mmf(tmp_path / "mmf", "1.0.0rc12", "training: {fp16: false, seed: 1}\n")
    places = Places.resolve(tmp_path / "data", tmp_path / "save")
    run = request(model="mmbt", preset="mine", precision="bf16", mmf="1.0.0rc12")
    first = Attempt("train", "mmbt", str(root), settings={"training": {"fp16": False}}, precision="bf16")
    for word, precision in (("training.seed=3", "bf16"), ("training.fp16=true", None)):
        attempt, kept, _ = needs.composed(first, Job(run, Once(overrides=[word]), places), "run r")
        assert attempt.precision == kept.request.ours.precision == precision
        assert attempt.settings["training"]["fp16"] is (precision is None)


def test_what_starts_a_run_is_in_the_attempt_though_the_run_will_not_keep_it(tmp_path: Path) -> None:
    root = bare_mmf(tmp_path / "mmf", more="checkpoint: {reset: {all: false}, resume_zoo: null}\n")
    places = Places.resolve(tmp_path / "data", tmp_path / "save")
    job = Job(request(model="mmbt"), Once(overrides=["checkpoint.reset.all=true"]), places)
    first = Attempt("train", "mmbt", str(root))
    attempt, _, config = needs.composed(first, job, "preset mine")
    assert attempt.settings == {"checkpoint": {"reset": {"all": True}}}
    assert config["checkpoint"]["reset"]["all"] is True
