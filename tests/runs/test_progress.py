"""What is shown while a run goes on."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mmf_win import console
from mmf_win.protocol import EventLog
from mmf_win.runs import gpu
from mmf_win.runs.progress import Watcher


class FakeNvml:
    """The part of pynvml that is used, with two cards: no machine of the tests has one."""

    class NVMLError(Exception):
        """As in pynvml."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.knows = True

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index > 1:
            raise self.NVMLError
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> SimpleNamespace:
        self.asked.append(handle)
        if not self.knows:
            raise self.NVMLError
        return SimpleNamespace(gpu=87)

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> SimpleNamespace:
        return SimpleNamespace(used=10 << 30, total=24 << 30)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """pynvml, faked."""
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


@pytest.mark.parametrize(
    ("visible", "handle"), [(None, 0), ("1", 1), ("1,0", 1), ("GPU-8f2a", "GPU-8f2a")], ids=str
)
def test_the_card_is_the_first_that_may_be_seen_fake_nvml(
    nvml: FakeNvml, visible: str | None, handle: object
) -> None:
    card = gpu.Card({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert card.figures() == "GPU 87 %, 10.0 GiB of 24.0 GiB"
    assert nvml.asked == [handle]
    card.figures()
    assert len(nvml.asked) == 1, "the card is not asked all the time"


def test_a_card_that_is_not_there_or_says_nothing_is_passed_over_fake_nvml(nvml: FakeNvml) -> None:
    assert gpu.Card({"CUDA_VISIBLE_DEVICES": "7"}).figures() == ""
    nvml.knows = False
    card = gpu.Card({})
    assert card.figures() == card.figures() == ""
    assert len(nvml.asked) == 1


def test_without_nvidia_ml_py_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu.Card({}).figures() == ""


@pytest.mark.usefixtures("nvml")
@pytest.mark.parametrize(("device", "card"), [("cuda:0", ", GPU 87 %, 10.0 GiB of 24.0 GiB"), ("cpu", "")])
def test_a_plain_line_tells_all_fake_nvml(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    device: str,
    card: str,
) -> None:
    now = 0.0
    monkeypatch.setattr(console.time, "monotonic", lambda: now)
    log = EventLog(tmp_path / "events.jsonl", "1")
    with Watcher(log.path, "1", lambda: None) as watcher:
        log.write("train_started", update=0, max_updates=30, device=device, parameters=1, batch=4, seed=1)
        watcher.poll()
        log.write("val", update=5, metrics={"hateful_memes/roc_auc": 0.61})
        watcher.poll()
        capsys.readouterr()
        now = 20.0
        log.write("train", update=10, loss=0.5)
        watcher.poll()
    said = capsys.readouterr().err
    assert said == (
        f"training: 10 of 30 updates (33 %), 0.5 updates/s, 40 s left, AUROC 0.6100, loss 0.5000{card}\n"
    )


def test_rows_that_are_left_out_are_told_with_the_training_and_each_validation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = EventLog(tmp_path / "events.jsonl", "1")
    started = {"update": 0, "max_updates": 30, "device": "cpu", "parameters": 1, "batch": 4, "seed": 1}
    metrics = {"hateful_memes/roc_auc": 0.61}
    with Watcher(log.path, "1", lambda: None) as watcher:
        log.write("train_started", **started, data={"split": "train", "rows": 8400, "full_rows": 8500})
        for rows, full in ((433, 540), (540, 540), (540, None)):
            data = {"split": "dev_unseen", "rows": rows, "full_rows": full}
            log.write("val", update=rows, metrics=metrics, data=data)
        watcher.poll()
    _, training, *validations = capsys.readouterr().err.splitlines()
    assert training.endswith("8,400 of 8,500 rows of train")
    assert ["433 of 540 rows of dev_unseen" in line for line in validations] == [True, False, False]
    assert not any("rows of" in line for line in validations[1:])
