"""The machine, Windows settings, and whether torch can use the GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from uuid import uuid4

import pytest

from mmf_win import machine
from mmf_win.doctor import survey as doctor
from mmf_win.doctor.survey import (
    TorchBuild,
    survey_environment,
    survey_torch,
    survey_windows_settings,
    torch_install_command,
    unused_gpu_error,
)
from mmf_win.paths import MmfPaths, constraints_file
from tests.worlds.fake_nvml import FakeNvml

ROCM = TorchBuild(None, rocm="6.2.41134-65d174c3e")


def test_machine_survey_has_processors_memory_and_gpus_with_fake_nvml(
    monkeypatch: pytest.MonkeyPatch, mmf_paths: MmfPaths
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    result = survey_environment(mmf_paths)["machine"]
    assert result["cpus"] >= 1 and result["memory"] > 1 << 28
    assert [gpu["name"] for gpu in result["gpus"]] == ["NVIDIA 0", "NVIDIA 1"]


@pytest.mark.skipif(sys.platform != "win32", reason="settings of Windows")
@pytest.mark.parametrize(
    ("name", "registry_value"), [("long paths", doctor._LONG_PATHS), ("developer mode", doctor._DEVELOPER_MODE)]
)
def test_disabled_setting_has_a_hint_that_enables_it(
    monkeypatch: pytest.MonkeyPatch, name: str, registry_value: tuple[str, str]
) -> None:
    assert sys.platform == "win32"
    import winreg

    test_key = rf"Software\mmfw-tests-{uuid4().hex}"  # instead of HKEY_LOCAL_MACHINE, which is shared
    with winreg.CreateKey(winreg.HKEY_CURRENT_USER, test_key) as root:
        monkeypatch.setattr(winreg, "HKEY_LOCAL_MACHINE", root)
        try:
            for number, value in ((0, "off"), (1, "on")):
                with winreg.CreateKey(root, registry_value[0]) as key:
                    winreg.SetValueEx(key, registry_value[1], 0, winreg.REG_DWORD, number)
                settings = {setting["name"]: setting for setting in survey_windows_settings()}
                assert settings[name]["value"] == value
                hint = settings[name]["hint"]
                assert hint is None if number else hint and f"{registry_value[0]} /v {registry_value[1]}" in hint
                assert int(settings["code page"]["value"] or 0) > 0
        finally:
            parts = registry_value[0].split("\\")
            for n in range(len(parts), 0, -1):
                winreg.DeleteKey(root, "\\".join(parts[:n]))
            winreg.DeleteKey(winreg.HKEY_CURRENT_USER, test_key)


@pytest.mark.skipif(sys.platform != "win32", reason="settings of Windows")
def test_settings_of_a_real_windows_are_read() -> None:
    settings = {setting["name"]: setting["value"] for setting in survey_windows_settings()}
    assert set(settings) == {"long paths", "developer mode", "code page"}
    assert {settings["long paths"], settings["developer mode"]} <= {"on", "off"}


@pytest.mark.parametrize(
    ("line", "torch", "target"),
    [
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None", TorchBuild("13.0"), "CUDA 13.0"),
        ("cuda = None", TorchBuild(None), "the CPU"),
        ("cuda = '12.6'", TorchBuild("12.6"), "CUDA 12.6"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '6.2.41134-65d174c3e'", ROCM, f"ROCm {ROCM.rocm}"),
    ],
)
def test_torch_build_is_read_without_importing_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, torch: TorchBuild, target: str
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('imported')", encoding="utf-8")
    (tmp_path / "torch" / "version.py").write_text(f"__version__ = '2'\n{line}\n", encoding="utf-8")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert survey_torch() == torch and torch.target == target


@pytest.mark.torch
def test_build_of_the_real_torch_is_read() -> None:
    import torch

    assert survey_torch() == TorchBuild(torch.version.cuda)


@pytest.mark.parametrize(
    ("torch", "driver", "best", "message"),
    [
        (None, 12040, (8, 6), None),
        (TorchBuild("13.0"), 13020, (8, 6), None),
        (TorchBuild("12.6"), 12020, (8, 6), None),
        (TorchBuild("12.6"), 13000, (8, 6), None),
        (TorchBuild("12.8"), 12080, (12, 0), None),
        (TorchBuild("13.0"), 12080, (8, 6), "for CUDA 13.0, but the NVIDIA driver supports CUDA 12.8"),
        (TorchBuild("13.0"), 13000, (6, 1), "for CUDA 13.0, which does not support the GPU"),
        (TorchBuild("12.6"), 13000, (12, 0), "for CUDA 12.6, which does not support the GPU"),
        (TorchBuild(None), 12080, (8, 6), "a GPU is available, but torch was built for the CPU"),
        (TorchBuild(None), 12080, (3, 5), None),
        (TorchBuild(None), 11040, (8, 6), None),
        (ROCM, 12080, (8, 6), "a GPU is available, but torch was built for ROCm 6.2"),
    ],
)
def test_torch_that_cannot_use_the_gpu_is_an_error_with_fake_nvml(
    monkeypatch: pytest.MonkeyPatch, torch: TorchBuild | None, driver: int, best: tuple[int, int], message: str | None
) -> None:
    nvml = FakeNvml()
    nvml.cuda_version, nvml.capability = driver, [(3, 5), best]
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    error = unused_gpu_error(torch, machine.survey_cuda())
    assert (error is None) == (message is None) and (message or "") in str(error)
    if error is not None:
        assert "mmfw setup --torch" in str(error.hint)


def test_any_torch_build_is_accepted_without_a_gpu() -> None:
    assert unused_gpu_error(TorchBuild(None), None) is None and unused_gpu_error(TorchBuild("13.0"), None) is None


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
def test_newest_supported_torch_build_is_chosen_with_fake_nvml(
    monkeypatch: pytest.MonkeyPatch, cuda: int | None, best: tuple[int, int], build: str
) -> None:
    nvml = FakeNvml()
    if cuda is None:
        nvml.free_bytes = []  # no GPU
    else:
        nvml.cuda_version, nvml.capability = cuda, [(3, 5), best]
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(sys, "platform", "linux")
    line = torch_install_command()
    assert line[:4] == ("pip", "install", "-c", str(constraints_file()))
    assert line[-4:-2] == ("--extra-index-url", f"https://download.pytorch.org/whl/{build}")
    assert all(requirement.endswith(f"+{build}") for requirement in line[-2:])
    pins = constraints_file().read_text(encoding="utf-8").splitlines()
    assert {requirement.partition("+")[0] for requirement in line[-2:]} <= set(pins)
    assert [requirement.partition("==")[0] for requirement in line[-2:]] == ["torch", "torchvision"]
    monkeypatch.setattr(sys, "platform", "darwin")  # macOS has a single build, on PyPI
    assert torch_install_command() == (*line[:4], *(requirement.partition("+")[0] for requirement in line[-2:]))


def test_missing_torch_pin_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "constraints.txt"
    file.write_text("torch>=2.6\ntorchvision==0.21.0\n", encoding="utf-8")
    monkeypatch.setattr(doctor, "constraints_file", lambda: file)
    with pytest.raises(KeyError, match="torch"):
        torch_install_command()
