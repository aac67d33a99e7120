"""Progress display of a run."""

from __future__ import annotations

import sys

import pytest

from mmf_win import console
from mmf_win.commands.progress import RunDisplay
from mmf_win.protocol import Event
from tests.worlds.fake_nvml import FakeNvml

STARTED: Event = {
    "kind": "train_started",
    "update": 0,
    "max_updates": 30,
    "device": "cpu",
    "parameters": 1,
    "batch": 4,
    "seed": 1,
    "precision": "fp32",
}


@pytest.mark.parametrize(("device", "card"), [("cuda:0", ", GPU 87 %, 10.0 GiB of 24.0 GiB"), ("cpu", "")])
def test_plain_line_shows_all_values_with_fake_nvml(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], device: str, card: str
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    now = 0.0
    monkeypatch.setattr(console.time, "monotonic", lambda: now)
    with RunDisplay() as show:
        show({**STARTED, "device": device})
        show({"kind": "val", "update": 5, "metrics": {"auroc": 0.61}})
        capsys.readouterr()
        now = 20.0
        show({"kind": "train", "update": 10, "loss": 0.5})
    line = capsys.readouterr().err
    assert line == (f"training:  33% 10/30 [00:20<00:40,  2.00s/update, AUROC 0.6100, loss 0.5000{card}]\n")


def test_best_update_is_that_of_the_best_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    with RunDisplay() as show:
        show(STARTED)
        for update, auroc, best in ((5, 0.61, True), (10, 0.61, True), (15, 0.7, False)):
            show({"kind": "checkpoint", "update": update, "best": False})
            show({"kind": "checkpoint", "update": update, "best": best})
            show({"kind": "val", "update": update, "metrics": {"auroc": auroc}})
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("update")]
    assert [line.endswith(" (best)") for line in lines] == [True, True, False]


def test_coverage_is_shown_for_training_and_each_validation(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = {"auroc": 0.61}
    with RunDisplay() as show:
        show({**STARTED, "data": {"split": "train", "rows": 8400, "full_rows": 8500}})
        for rows, full in ((433, 540), (540, 540), (540, None)):
            data = {"split": "dev_unseen", "rows": rows, "full_rows": full}
            show({"kind": "val", "update": rows, "metrics": metrics, "data": data})
    _, training, *validations = capsys.readouterr().err.splitlines()
    assert training.endswith("8,400 of 8,500 rows of train")
    assert ["433 of 540 rows of dev_unseen" in line for line in validations] == [True, False, False]
    assert not any("rows of" in line for line in validations[1:])
