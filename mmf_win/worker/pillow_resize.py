"""Images resized, cropped and normalized inside of a model, with the very bytes that Pillow computes.

Pillow resizes along the width, rounds to bytes, and does the same along the height. The weights of a pixel
are fixed-point numbers of 22 bits (``src/libImaging/Resample.c``), so their sums are exact in float64 and
both passes are matrix products. The matrices are computed from the size of each image; thus a batch may hold
images of several sizes, padded at the right and at the bottom, where all weights are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import PIL
import torch
from torch import Tensor, nn

from mmf_win.errors import UsageError

_FIXED_POINT_ONE = 2.0**22  # Pillow's PRECISION_BITS, for images of bytes
_SUPPORTED_TRANSFORMS = ("Resize", "CenterCrop", "ToTensor", "GrayScaleTo3Channels", "Normalize")


def _bilinear(x: Tensor) -> Tensor:
    return (1 - x.abs()).clamp(min=0)


def _bicubic(x: Tensor) -> Tensor:
    """Keys' kernel with a = -0.5, in Pillow's order of operations."""
    x = x.abs()
    far = (((x - 5) * x + 8) * x - 4) * -0.5
    return torch.where(x < 1, (1.5 * x - 2.5) * x * x + 1, torch.where(x < 2, far, 0.0))


_KERNELS = {"bilinear": (_bilinear, 1.0), "bicubic": (_bicubic, 2.0)}  # and the radius of each


class PillowResize(nn.Module):
    """Does with bytes what transforms of torchvision do with images of Pillow in RGB.

    Args:
        steps: some of Resize, CenterCrop, ToTensor, GrayScaleTo3Channels and Normalize, in this order, after
            which all images are equally large. UsageError says what cannot be done.
    """

    def __init__(self, steps: Sequence[Any]) -> None:
        super().__init__()
        found = {type(step).__name__: step for step in steps}
        if [type(step).__name__ for step in steps] != [
            name for name in _SUPPORTED_TRANSFORMS if name in found
        ]:
            supported = ", ".join(_SUPPORTED_TRANSFORMS)
            raise UsageError(f"of image transforms, {supported} can be exported, not {', '.join(found)}")
        resize, crop, normalize = (found.get(name) for name in ("Resize", "CenterCrop", "Normalize"))
        size = [] if resize is None else resize.size
        self._resize_size = [size] if isinstance(size, int) else list(size)
        self._crop_size = self._resize_size if crop is None else list(crop.size)
        mode = "bilinear" if resize is None else resize.interpolation.value
        if len(self._crop_size) != 2 or getattr(resize, "max_size", None) or mode not in _KERNELS:
            raise UsageError(f"the image transforms {steps} cannot be exported")
        self._kernel, self._radius = _KERNELS[mode]
        # Pillow 13 resizes the height first where it loses more than twice as many pixels as the width.
        self._height_may_be_first = int(PIL.__version__.partition(".")[0]) >= 13
        self._white = 255 if "ToTensor" in found else 1
        about = (0.0, 1.0) if normalize is None else (normalize.mean, normalize.std)
        self._mean, self._std = (torch.as_tensor(part).reshape(-1, 1, 1) for part in about)

    def forward(self, image: Tensor, size: Tensor) -> Tensor:
        """Images uint8 [batch, height, width, 3] and their (height, width) int64 [batch, 2] → float32 CHW."""
        if len(self._resize_size) == 2:
            resized = torch.zeros_like(size) + torch.tensor(self._resize_size)
        else:  # the shorter side gets this length, or none where there is no Resize
            resized = size * self._resize_size[0] // size.amin(1, keepdim=True) if self._resize_size else size
        down, across = (
            self._compute_weights(size[:, axis], resized[:, axis], length, image.shape[axis + 1])[:, None]
            for axis, length in enumerate(self._crop_size)
        )
        # Rounded after it is transposed: onnxruntime before 1.26 has no product of float64 that transposes.
        down, across = _round_half_away(down), _round_half_away(across.transpose(2, 3))
        source = image.permute(0, 3, 1, 2).double()
        pixels = _to_bytes(down @ _to_bytes(source @ across))
        if self._height_may_be_first:
            height, width = (size - resized).unbind(1)
            height_first = ((height > 0) & (height > 2 * width))[:, None, None, None]
            pixels = torch.where(height_first, _to_bytes(_to_bytes(down @ source) @ across), pixels)
        return (pixels.float() / self._white - self._mean) / self._std

    def _compute_weights(
        self, size: Tensor, resized: Tensor, output_length: int, padded_length: Any
    ) -> Tensor:
        """What each of ``padded`` pixels adds to each of ``wanted`` ones, float64 [batch, wanted, padded].

        An image has ``size`` pixels on this axis, and ``resized`` when it is resized, of which CenterCrop
        takes those in the middle, and black ones where there are too few.
        """
        spare = resized - output_length  # torchvision rounds half of it to even, and of what is missing down
        first = torch.where(spare < 0, -(-spare // 2), torch.round(spare.double() / 2).long())
        place = (first[:, None] + torch.arange(output_length))[..., None]
        size, resized = size[:, None, None].double(), resized[:, None, None].double()
        stretch = (size / resized).clamp(min=1.0)
        center, support = (place.double() + 0.5) * (size / resized), self._radius * stretch
        pixel = torch.arange(padded_length).double()
        begin, end = torch.floor(center - support + 0.5), torch.floor(center + support + 0.5)
        inside = (pixel >= begin) & (pixel < end) & (pixel < size) & (place >= 0) & (place < resized)
        weights = torch.where(inside, self._kernel((pixel - center + 0.5) * (1.0 / stretch)), 0.0)
        total = weights.sum(-1, keepdim=True)
        return weights / torch.where(total == 0, 1.0, total) * _FIXED_POINT_ONE


def _round_half_away(weights: Tensor) -> Tensor:
    """Weights as whole numbers, halves away from 0."""
    return torch.where(weights < 0, torch.ceil(weights - 0.5), torch.floor(weights + 0.5))


def _to_bytes(sums: Tensor) -> Tensor:
    """Sums of bytes and weights as bytes, which float64 holds."""
    return torch.floor(sums / _FIXED_POINT_ONE + 0.5).clamp(0.0, 255.0)
