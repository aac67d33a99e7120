"""What a profile makes of the times of updates, and of the events of a trace."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from mmf_win.worker.hooks import profiler  # noqa: E402
from mmf_win.worker.hooks.clock import Lap  # noqa: E402

pytestmark = pytest.mark.torch


def lap(seconds: float) -> Lap:
    """An update whose pass took so long."""
    found = Lap()
    found.seconds.update(transfer=0.5, forward=seconds - 1.5, backward=1.0, data=100.0)
    return found


@pytest.mark.parametrize(
    ("pairs", "cost"),
    [
        ([(5, 4)], 1),
        ([(5, 4), (9, 4), (5, 4), (7, 4), (90, 4)], 1),  # other programs made some of them slower
        ([(4, 5)], 0),
        ([(20, 4)], 4),  # no more than a pass
    ],
)
def test_a_pass_costs_what_a_second_one_adds(pairs: list[tuple[int, int]], cost: float) -> None:
    laps = [lap(seconds) for pair in pairs for seconds in pair]
    assert profiler._a_pass(laps) == pytest.approx(cost)


def test_a_gpu_is_busy_while_any_kernel_runs() -> None:
    cuda, cpu = torch.autograd.DeviceType.CUDA, torch.autograd.DeviceType.CPU
    spans = [(cuda, 0, 10), (cuda, 5, 20), (cuda, 6, 8), (cpu, 0, 1000), (cuda, 100, 130)]
    events = [
        SimpleNamespace(
            device_type=device, time_range=SimpleNamespace(start=start, end=end), is_user_annotation=named
        )
        for device, start, end, named in [*((*span, False) for span in spans), (cuda, 0, 500, True)]
    ]
    assert profiler._busy(events, 100e-6) == pytest.approx(0.5)
    assert profiler._busy(events, 40e-6) == 1
    assert profiler._busy(events[3:4], 100e-6) is None, "torch cannot see it here"


def test_the_peak_of_the_memory_is_at_least_what_python_and_torch_need() -> None:
    peak = profiler.peak_memory()
    assert peak is not None and 50 << 20 < peak < 1 << 40
