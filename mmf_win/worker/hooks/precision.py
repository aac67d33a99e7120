"""Half precision: a model that calculates with 16 bits where that is exact enough, and a scaler for fp16.

MMF 1.0.0rc12 has ``training.fp16``, for GPUs alone, and 1.0.0rc10 nothing. Here both have the same, by
torch's autocast: weights, gradients, the optimizer's state and losses stay in 32 bits.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import nn

from mmf_win.compat.patch import wrap
from mmf_win.worker.hooks.observer import Observer

_HALF_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def configure_precision(observer: Observer, trainer: Any) -> tuple[str, Any]:
    """Let the model of MMF's trainer calculate with what the request wants, or if the device cannot, in fp32.

    Returned are what it calculates with, and what keeps small gradients of fp16 from becoming zero.
    """
    wanted, device = observer.request.precision, trainer.device
    if wanted is None:
        by_mmf = "fp16" if OmegaConf.select(trainer.config, "training.fp16") else "fp32"
        return by_mmf, make_grad_scaler(device, enabled=False)
    if not supports_precision(wanted, device):
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"this {device.type.upper()}"
        observer.write_event("note", text=f"{name} does not calculate in {wanted}; it goes on in fp32")
        wanted = "fp32"
    if wanted in _HALF_DTYPES:
        autocast_models(_HALF_DTYPES[wanted], type(trainer.model), device.type)
    return wanted, make_grad_scaler(device, enabled=wanted == "fp16")


def supports_precision(precision: str, device: torch.device) -> bool:
    """Whether a device calculates in ``fp32``, ``bf16`` or ``fp16`` without emulation."""
    if precision == "fp32":
        return True
    if device.type == "cuda":  # bf16 came with compute capability 8
        return precision == "fp16" or torch.cuda.get_device_capability(device) >= (8, 0)
    if device.type != "cpu":
        return False
    try:
        is_x86 = platform.machine().lower() in ("x86_64", "amd64")
        if precision == "bf16" and is_x86 and hasattr(torch.cpu, "_is_avx512_bf16_supported"):
            # Of AVX-512 without instructions for it, oneDNN says that it can, at half the speed of fp32.
            return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
        return bool(getattr(torch.ops.mkldnn, f"_is_mkldnn_{precision}_supported")())
    except (AttributeError, RuntimeError):  # a torch without oneDNN, or an older one
        return False


def autocast_models(dtype: torch.dtype, model: type[nn.Module], device: str) -> None:
    """Let the models of a class calculate in ``half``, from 32 bits to 32 bits.

    The class, since the copies of a model on several GPUs have its methods and not its attributes.
    """

    @wrap(model, "forward")
    def forward_in_half(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device, dtype=dtype):
            outputs = forward(*args, **kwargs)
        return to_float32(outputs)


def to_float32(value: Any) -> Any:
    """``value`` with 32 bits in the place of 16, in nested containers."""
    if torch.is_tensor(value):
        return value.float() if value.dtype in _HALF_DTYPES.values() else value
    if isinstance(value, Mapping):
        return {key: to_float32(entry) for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(to_float32(entry) for entry in value)
    return value


def make_grad_scaler(device: torch.device, *, enabled: bool) -> Any:
    """torch's scaler of losses."""
    if hasattr(torch.amp, "GradScaler"):  # since torch 2.3
        return torch.amp.GradScaler(device.type, enabled=enabled)
    return torch.cuda.amp.GradScaler(enabled=enabled)
