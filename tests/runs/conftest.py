"""What NVIDIA's driver would say, with a fake in its place."""

from __future__ import annotations

import sys

import pytest

from tests.worlds.fake_nvml import FakeNvml


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """pynvml with two GPUs, faked."""
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake
