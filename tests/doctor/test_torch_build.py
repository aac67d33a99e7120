"""Which build of PyTorch suits a machine."""

from __future__ import annotations

import sys

import pytest

from mmf_win.doctor.torch_build import suited
from mmf_win.paths import constraints_file
from tests.worlds.fake_nvml import FakeNvml


@pytest.mark.parametrize(
    ("cuda", "best", "build", "why"),
    [
        (13020, (9, 0), "cu130", "CUDA 13.2"),
        (13000, (7, 5), "cu130", "CUDA 13.0"),
        (13000, (12, 0), "cu130", "CUDA 13.0"),
        (13000, (6, 1), "cu126", "CUDA 13.0"),
        (12020, (8, 6), "cu126", "CUDA 12.2"),
        (12080, (12, 0), "cpu", "with driver 580 or newer the build for CUDA 13.0 would"),
        (11080, (8, 6), "cpu", "with driver 580 or newer the build for CUDA 13.0 would"),
        (11040, (6, 1), "cpu", "with driver 525 or newer the build for CUDA 12.6 would"),
        (12080, (3, 7), "cpu", "no code for this GPU"),
    ],
)
def test_the_build_is_the_newest_that_the_driver_and_the_best_gpu_run_fake_nvml(
    monkeypatch: pytest.MonkeyPatch, cuda: int, best: tuple[int, int], build: str, why: str
) -> None:
    nvml = FakeNvml()
    nvml.cuda, nvml.capability = cuda, [(3, 5), best]
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = suited("linux")
    assert found.name == build and why in found.why
    assert found.pip[-4:-2] == ("--extra-index-url", f"https://download.pytorch.org/whl/{build}")
    assert all(wanted.endswith(f"+{build}") for wanted in found.pip[-2:])


def test_the_versions_are_those_of_the_constraints_fake_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    nvml.free = []  # no GPU
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = suited("win32")
    assert found.name == "cpu"
    pins = constraints_file().read_text(encoding="utf-8").splitlines()
    assert {wanted.partition("+")[0] for wanted in found.pip[-2:]} <= set(pins)
    assert found.pip[:4] == ("pip", "install", "-c", str(constraints_file()))


def test_macos_has_one_build_which_is_on_pypi() -> None:
    found = suited("darwin")
    assert not any("+" in word or "index" in word for word in found.pip)
