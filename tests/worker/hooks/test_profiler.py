"""What a profile makes of the events of a trace."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from mmf_win.worker.hooks import profiler  # noqa: E402

pytestmark = pytest.mark.torch


def test_a_gpu_is_busy_while_a_kernel_runs() -> None:
    cuda, cpu = torch.autograd.DeviceType.CUDA, torch.autograd.DeviceType.CPU
    spans = [(cuda, 20, False), (cpu, 1000, False), (cuda, 30, False), (cuda, 500, True)]
    events = [
        SimpleNamespace(
            device_type=device,
            time_range=SimpleNamespace(elapsed_us=lambda us=us: us),
            is_user_annotation=named,
        )
        for device, us, named in spans
    ]
    assert profiler._busy(events, 100e-6) == pytest.approx(0.5)
    assert profiler._busy(events, 40e-6) == 1
    assert profiler._busy(events[1:2], 100e-6) is None, "torch cannot see it here"
