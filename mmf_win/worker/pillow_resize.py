"""Image resizing, cropping and normalization inside a model, bit-identical to Pillow.

Pillow resizes along the width, rounds to bytes and does the same along the height. Its weights are
fixed-point numbers of 22 bits (``src/libImaging/Resample.c``), so sums are exact in float64 and both passes
are matrix products. The matrices are computed from the size of each image; a batch may therefore contain
images of different sizes, padded at the right and at the bottom, where all weights are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import PIL
import torch
from torch import Tensor, nn

from mmf_win.errors import UsageError

_FIXED_POINT_ONE = 2.0**22  # Pillow's PRECISION_BITS for 8-bit images
_SUPPORTED_TRANSFORMS = ("Resize", "CenterCrop", "ToTensor", "GrayScaleTo3Channels", "Normalize")


def _bilinear(x: Tensor) -> Tensor:
    return (1 - x.abs()).clamp(min=0)


def _bicubic(x: Tensor) -> Tensor:
    """Return Keys' cubic kernel with a = -0.5, in Pillow's order of operations."""
    x = x.abs()
    far = (((x - 5) * x + 8) * x - 4) * -0.5
    return torch.where(x < 1, (1.5 * x - 2.5) * x * x + 1, torch.where(x < 2, far, 0.0))


_KERNELS = {"bilinear": (_bilinear, 1.0), "bicubic": (_bicubic, 2.0)}  # function and radius


class PillowResize(nn.Module):
    """Module that applies torchvision's transforms to RGB images given as bytes.

    Args:
        steps: Any of Resize, CenterCrop, ToTensor, GrayScaleTo3Channels and Normalize, in this order. The
            results must all have the same size.

    Raises:
        UsageError: The transforms cannot be exported.
    """

    def __init__(self, steps: Sequence[Any]) -> None:
        super().__init__()
        step_by_name = {type(step).__name__: step for step in steps}
        if [type(step).__name__ for step in steps] != [name for name in _SUPPORTED_TRANSFORMS if name in step_by_name]:
            supported = ", ".join(_SUPPORTED_TRANSFORMS)
            names = ", ".join(step_by_name)
            raise UsageError(f"cannot export image transforms {names} (supported in this order: {supported})")
        resize, crop, normalize = (step_by_name.get(name) for name in ("Resize", "CenterCrop", "Normalize"))
        size = [] if resize is None else resize.size
        self._resize_size = [size] if isinstance(size, int) else list(size)
        self._crop_size = self._resize_size if crop is None else list(crop.size)
        mode = "bilinear" if resize is None else resize.interpolation.value
        if len(self._crop_size) != 2 or getattr(resize, "max_size", None) or mode not in _KERNELS:
            raise UsageError(f"cannot export image transforms {steps}")
        self._kernel, self._radius = _KERNELS[mode]
        # Pillow 13 resizes the height first if it loses more than twice as many pixels as the width.
        self._height_may_be_first = int(PIL.__version__.partition(".")[0]) >= 13
        self._white = 255 if "ToTensor" in step_by_name else 1
        mean_and_std = (0.0, 1.0) if normalize is None else (normalize.mean, normalize.std)
        self._mean, self._std = (torch.as_tensor(part).reshape(-1, 1, 1) for part in mean_and_std)

    def forward(self, image: Tensor, size: Tensor) -> Tensor:
        """Transform a batch of images.

        Args:
            image: Padded images, uint8 [batch, height, width, 3].
            size: Height and width of each image, int64 [batch, 2].

        Returns:
            Normalized images, float32 [batch, 3, height, width].
        """
        if len(self._resize_size) == 2:
            resized = torch.zeros_like(size) + torch.tensor(self._resize_size)
        else:  # Resize gives the length of the shorter side; without Resize, sizes stay
            resized = size * self._resize_size[0] // size.amin(1, keepdim=True) if self._resize_size else size
        down, across = (
            self._compute_weights(size[:, axis], resized[:, axis], length, image.shape[axis + 1])[:, None]
            for axis, length in enumerate(self._crop_size)
        )
        # Round after transposing: onnxruntime < 1.26 has no float64 product with a transposed operand.
        down, across = _round_half_away(down), _round_half_away(across.transpose(2, 3))
        source = image.permute(0, 3, 1, 2).double()
        pixels = _to_bytes(down @ _to_bytes(source @ across))
        if self._height_may_be_first:
            height, width = (size - resized).unbind(1)
            height_first = ((height > 0) & (height > 2 * width))[:, None, None, None]
            pixels = torch.where(height_first, _to_bytes(_to_bytes(down @ source) @ across), pixels)
        return (pixels.float() / self._white - self._mean) / self._std

    def _compute_weights(self, size: Tensor, resized: Tensor, output_length: int, padded_length: Any) -> Tensor:
        """Compute the weight of each padded input pixel for each output pixel along one axis.

        CenterCrop takes the middle pixels of the resized image and adds black pixels if there are too few.

        Args:
            size: Pixels of each image on this axis, int64 [batch].
            resized: Pixels after resizing, int64 [batch].
            output_length: Pixels after cropping.
            padded_length: Pixels of the padded input.

        Returns:
            Weights, float64 [batch, output_length, padded_length].
        """
        surplus = resized - output_length
        # torchvision rounds half of a surplus to even and half of a deficit down.
        first = torch.where(surplus < 0, -(-surplus // 2), torch.round(surplus.double() / 2).long())
        position = (first[:, None] + torch.arange(output_length))[..., None]
        size, resized = size[:, None, None].double(), resized[:, None, None].double()
        stretch = (size / resized).clamp(min=1.0)
        center, support = (position.double() + 0.5) * (size / resized), self._radius * stretch
        pixel = torch.arange(padded_length).double()
        begin, end = torch.floor(center - support + 0.5), torch.floor(center + support + 0.5)
        inside = (pixel >= begin) & (pixel < end) & (pixel < size) & (position >= 0) & (position < resized)
        weights = torch.where(inside, self._kernel((pixel - center + 0.5) * (1.0 / stretch)), 0.0)
        total = weights.sum(-1, keepdim=True)
        return weights / torch.where(total == 0, 1.0, total) * _FIXED_POINT_ONE


def _round_half_away(weights: Tensor) -> Tensor:
    """Round weights to integers, halves away from 0."""
    return torch.where(weights < 0, torch.ceil(weights - 0.5), torch.floor(weights + 0.5))


def _to_bytes(sums: Tensor) -> Tensor:
    """Convert sums of bytes and fixed-point weights to bytes, stored as float64."""
    return torch.floor(sums / _FIXED_POINT_ONE + 0.5).clamp(0.0, 255.0)
