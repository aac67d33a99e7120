"""Half precision: 16-bit computation where it is accurate enough, and a gradient scaler for fp16.

MMF 1.0.0rc12 has ``training.fp16``, for GPUs only, and 1.0.0rc10 has nothing. Here both versions use torch's
autocast: weights, gradients, the optimizer's state and losses stay in 32 bits.
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
    """Apply the requested precision to the trainer's model, or fp32 if the device does not support it.

    Returns:
        The precision in use and the gradient scaler, which is only enabled in fp16.
    """
    precision, device = observer.request.precision, trainer.device
    if precision is None:
        mmf_precision = "fp16" if OmegaConf.select(trainer.config, "training.fp16") else "fp32"
        return mmf_precision, make_grad_scaler(device, enabled=False)
    if not supports_precision(precision, device):
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"this {device.type.upper()}"
        observer.write_event("note", text=f"{name} does not support {precision}; using fp32")
        precision = "fp32"
    if precision in _HALF_DTYPES:
        autocast_models(_HALF_DTYPES[precision], type(trainer.model), device.type)
    return precision, make_grad_scaler(device, enabled=precision == "fp16")


def supports_precision(precision: str, device: torch.device) -> bool:
    """Return whether a device supports ``fp32``, ``bf16`` or ``fp16`` without emulation."""
    if precision == "fp32":
        return True
    if device.type == "cuda":  # bf16 requires compute capability 8
        return precision == "fp16" or torch.cuda.get_device_capability(device) >= (8, 0)
    if device.type != "cpu":
        return False
    try:
        is_x86 = platform.machine().lower() in ("x86_64", "amd64")
        if precision == "bf16" and is_x86 and hasattr(torch.cpu, "_is_avx512_bf16_supported"):
            # oneDNN also reports support for AVX-512 without bf16 instructions, at half the speed of fp32.
            return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
        return bool(getattr(torch.ops.mkldnn, f"_is_mkldnn_{precision}_supported")())
    except (AttributeError, RuntimeError):  # a torch without oneDNN, or an older one
        return False


def autocast_models(dtype: torch.dtype, model: type[nn.Module], device: str) -> None:
    """Make the models of a class compute in ``dtype``, with inputs and outputs in 32 bits.

    The class is patched, because replicas of a model on several GPUs share its methods but not its
    attributes.
    """

    @wrap(model, "forward")
    def forward_in_half(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device, dtype=dtype):
            outputs = forward(*args, **kwargs)
        return to_float32(outputs)


def to_float32(value: Any) -> Any:
    """Convert 16-bit tensors in nested containers to 32 bits."""
    if torch.is_tensor(value):
        return value.float() if value.dtype in _HALF_DTYPES.values() else value
    if isinstance(value, Mapping):
        return {key: to_float32(entry) for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(to_float32(entry) for entry in value)
    return value


def make_grad_scaler(device: torch.device, *, enabled: bool) -> Any:
    """Return a gradient scaler of torch."""
    if hasattr(torch.amp, "GradScaler"):  # since torch 2.3
        return torch.amp.GradScaler(device.type, enabled=enabled)
    return torch.cuda.amp.GradScaler(enabled=enabled)
