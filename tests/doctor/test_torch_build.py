"""Which build of PyTorch suits a machine."""

from __future__ import annotations

import sys

import pytest

from mmf_win.doctor.torch_build import pip_line
from mmf_win.paths import constraints_file
from tests.worlds.fake_nvml import FakeNvml


@pytest.mark.parametrize(
    ("cuda", "best", "build"),
    [
        (13020, (9, 0), "cu130"),
        (13000, (7, 5), "cu130"),
        (13000, (12, 0), "cu130"),
        (13000, (6, 1), "cu126"),
        (12020, (8, 6), "cu126"),
        (12080, (12, 0), "cpu"),
        (11080, (8, 6), "cpu"),
        (12080, (3, 7), "cpu"),
        (None, (9, 0), "cpu"),
    ],
)
def test_the_build_is_the_newest_that_the_driver_and_the_best_gpu_run_fake_nvml(
    monkeypatch: pytest.MonkeyPatch, cuda: int | None, best: tuple[int, int], build: str
) -> None:
    nvml = FakeNvml()
    if cuda is None:
        nvml.free = []  # no GPU
    else:
        nvml.cuda, nvml.capability = cuda, [(3, 5), best]
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    line = pip_line("linux")
    assert line[:4] == ("pip", "install", "-c", str(constraints_file()))
    assert line[-4:-2] == ("--extra-index-url", f"https://download.pytorch.org/whl/{build}")
    assert all(wanted.endswith(f"+{build}") for wanted in line[-2:])
    pins = constraints_file().read_text(encoding="utf-8").splitlines()
    assert {wanted.partition("+")[0] for wanted in line[-2:]} <= set(pins)


def test_macos_has_one_build_which_is_on_pypi() -> None:
    assert not any("+" in word or "index" in word for word in pip_line("darwin"))
