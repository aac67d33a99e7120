"""What the machine has to offer."""

from __future__ import annotations

import sys

import pytest

from mmf_win.doctor import machine
from tests.worlds.fake_nvml import FakeNvml


def test_the_machine_has_processors_and_memory() -> None:
    found = machine.survey_machine()
    assert found.cpus >= 1
    assert found.memory is not None and found.memory > 1 << 28


def test_gpus_are_found_fake_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    assert [gpu.name for gpu in machine.survey_machine().gpus] == ["NVIDIA 0", "NVIDIA 1"]
