"""What the machine has to offer."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from mmf_win.doctor import machine


def test_the_machine_has_processors_and_memory() -> None:
    found = machine.survey_machine()
    assert found.cpus >= 1
    assert found.memory is not None and found.memory > 1 << 28


@pytest.mark.skipif(sys.platform == "win32", reason="Windows would need an .exe for a fake nvidia-smi")
def test_gpus_are_read_from_a_fake_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    lines = "NVIDIA H200, 143771, 570.86\\nNVIDIA GB10, [N/A], 580.1\\nFailed to talk to the driver\\n"
    program.write_text(f"#!/bin/sh\nprintf '{lines}'\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path) + os.pathsep + os.environ["PATH"])
    assert machine.survey_machine().gpus == (
        machine.Gpu("NVIDIA H200", 143771 << 20, "570.86"),
        machine.Gpu("NVIDIA GB10", 0, "580.1"),
    )
