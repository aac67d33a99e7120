"""Images resized, cropped and normalized inside of a model, with the very bytes that Pillow computes.

Pillow resizes along the width, rounds to bytes, and does the same along the height. The weights of a pixel are
fixed-point numbers of 22 bits (``src/libImaging/Resample.c``), so their sums are exact in float64 and both
passes are matrix products. The matrices are computed from the size of each image; thus a batch may hold
images of several sizes, padded at the right and at the bottom, where all weights are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mmf_win.errors import UsageError

_ONE = 2.0**22  # Pillow's PRECISION_BITS, for images of bytes
_STEPS = ("Resize", "CenterCrop", "ToTensor", "GrayScaleTo3Channels", "Normalize")


def _bilinear(x: Tensor) -> Tensor:
    return (1 - x.abs()).clamp(min=0)


def _bicubic(x: Tensor) -> Tensor:
    x = x.abs()  # Keys' kernel with a = -0.5, in Pillow's order of operations
    near = ((-0.5 + 2.0) * x - (-0.5 + 3.0)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * -0.5
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))


# Kernels and their radius by torchvision's name, and by Pillow's number in an older torchvision.
_LINEAR, _CUBIC = (_bilinear, 1.0), (_bicubic, 2.0)
_KERNELS: dict[Any, tuple[Callable[[Tensor], Tensor], float]] = {
    "bilinear": _LINEAR,
    2: _LINEAR,
    "bicubic": _CUBIC,
    3: _CUBIC,
}


class PillowResize(nn.Module):
    """Does with bytes what transforms of torchvision do with images of Pillow in RGB.

    Args:
        steps: Resize, CenterCrop, ToTensor, GrayScaleTo3Channels and Normalize, in this order; any may be
            missing, if what is left makes all images equally large. UsageError names what cannot be done.
    """

    def __init__(self, steps: Sequence[Any]) -> None:
        super().__init__()
        found = {type(step).__name__: step for step in steps}
        for name in found:
            if name not in _STEPS:
                raise UsageError(f"the image transform {name} cannot be exported")
        if len(found) != len(steps) or list(found) != [name for name in _STEPS if name in found]:
            raise UsageError(f"image transforms in the order {', '.join(found)} cannot be exported")
        resize, crop, normalize = (found.get(name) for name in ("Resize", "CenterCrop", "Normalize"))
        size = getattr(resize, "size", None)
        self._size = [size] if isinstance(size, int) else list(size or [])
        self._crop = None if crop is None else list(crop.size)
        if getattr(resize, "max_size", None) is not None or (self._crop is None and len(self._size) != 2):
            raise UsageError("the image transforms make images of several sizes, which cannot be exported")
        mode = getattr(resize, "interpolation", "bilinear")
        mode = getattr(mode, "value", mode)
        if mode not in _KERNELS:
            raise UsageError(f"the image transform Resize with interpolation {mode} cannot be exported")
        self._kernel, self._radius = _KERNELS[mode]
        self._is_scaled = "ToTensor" in found
        about = (0.0, 1.0) if normalize is None else (normalize.mean, normalize.std)
        self._mean, self._std = (torch.as_tensor(part).reshape(-1, 1, 1) for part in about)

    def forward(self, image: Tensor, size: Tensor) -> Tensor:
        """Images uint8 [batch, height, width, 3] and their (height, width) int64 [batch, 2] → float32 CHW."""
        short = size.amin(1, keepdim=True)
        if len(self._size) == 2:
            resized = torch.zeros_like(size) + torch.tensor(self._size)
        else:  # the shorter side gets this length, and no side any where there is no Resize
            resized = size * self._size[0] // short if self._size else size
        height, width = self._crop or self._size
        down, across = (
            self._weights(size[:, axis], resized[:, axis], length, image.shape[axis + 1])
            for axis, length in enumerate((height, width))
        )
        pixels = image.permute(0, 3, 1, 2).double()
        pixels = _rounded(pixels.flatten(1, 2) @ across.transpose(1, 2)).unflatten(1, (3, image.shape[1]))
        pixels = _rounded(down[:, None] @ pixels).float()
        return ((pixels / 255 if self._is_scaled else pixels) - self._mean) / self._std

    def _weights(self, size: Tensor, resized: Tensor, wanted: int, padded: Any) -> Tensor:
        """What each of ``padded`` pixels adds to each of ``wanted`` ones, float64 [batch, wanted, padded].

        An image has ``size`` pixels on this axis, and ``resized`` when it is resized, of which CenterCrop
        takes those in the middle, and black ones where there are too few.
        """
        spare = resized - wanted
        # As torchvision: round() of Python, half to even, and floor of a half for what is padded.
        first = torch.where(spare < 0, -(-spare // 2), torch.round(spare.double() / 2).long())
        place = first[:, None] + torch.arange(wanted)
        scale = (size.double() / resized.double())[:, None]
        stretch = scale.clamp(min=1.0)
        center, support = (place.double() + 0.5) * scale, self._radius * stretch
        start = torch.floor(center - support + 0.5).clamp(min=0.0)[..., None]
        end = torch.minimum(torch.floor(center + support + 0.5), size.double()[:, None])[..., None]
        pixel = torch.arange(padded).double()
        weights = self._kernel((pixel - center[..., None] + 0.5) * (1.0 / stretch)[..., None])
        inside = (place >= 0) & (place < resized[:, None])
        weights = torch.where((pixel >= start) & (pixel < end) & inside[..., None], weights, 0.0)
        total = weights.sum(-1, keepdim=True)
        weights = weights / torch.where(total == 0, 1.0, total) * _ONE
        return torch.where(weights < 0, torch.ceil(weights - 0.5), torch.floor(weights + 0.5))


def _rounded(sums: Tensor) -> Tensor:
    """Sums of bytes and weights as bytes, which float64 holds."""
    return torch.floor(sums / _ONE + 0.5).clamp(0.0, 255.0)
