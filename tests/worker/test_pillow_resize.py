"""Images resized by matrices are identical to those of torchvision with Pillow."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from mmf_win.errors import UsageError
from tests.worlds.tools import LazyModule, requires_package

pillow_resize = LazyModule("mmf_win.worker.pillow_resize")

pytestmark = requires_package("torch")

# Runs in a subprocess, in which the patches make torchvision importable with any version of torch.
_COMPARE = """
import json, sys
from mmf_win.upstream.install import find_mmf
from mmf_win import compat
compat.install(find_mmf().root)
import numpy as np
import torch
from PIL import Image
from torchvision import transforms
from mmf_win.worker.pillow_resize import PillowResize

sizes, cases = json.loads(sys.argv[1])
random = np.random.default_rng(0)  # also for the padding
images = [random.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]
batch = random.integers(0, 256, (len(sizes), *(np.max(sizes, 0) + 3), 3), dtype=np.uint8)
for image, place in zip(images, batch):
    place[: image.shape[0], : image.shape[1]] = image
for case in cases:
    steps = [getattr(transforms, name)(**options) for name, options in case]
    expected = torch.stack([transforms.Compose(steps)(Image.fromarray(image)) for image in images])
    resized = PillowResize(steps)(torch.from_numpy(batch), torch.tensor(sizes))
    print(list(resized.shape), int((resized != expected).sum()))
"""
# Two of them lose more height than width: since Pillow 13, their height is resized first.
SIZES = [(1, 1), (1, 50), (37, 1), (40, 40), (64, 41), (61, 120), (120, 61), (41, 90), (255, 33)]
BILINEAR, BICUBIC = 2, 3
NORMALIZE = ("Normalize", {"mean": [0.468, 0.445, 0.407], "std": [0.122, 0.121, 0.144]})


def test_batch_of_different_sizes_equals_pillow() -> None:
    tensor = ("ToTensor", {})
    cases: list[list[tuple[str, dict[str, Any]]]] = [[("CenterCrop", {"size": [35, 44]}), tensor, NORMALIZE]]
    for kind in (BILINEAR, BICUBIC):
        exact_size = ("Resize", {"size": [40, 40], "interpolation": kind})
        shorter = ("Resize", {"size": 30, "interpolation": kind})
        cases.append([exact_size, ("CenterCrop", {"size": [32, 32]}), tensor, NORMALIZE])
        cases.append([("Resize", {"size": [33, 47], "interpolation": kind}), tensor])
        cases += ([shorter, ("CenterCrop", {"size": size}), tensor] for size in ([30, 27], [33, 33]))
    command = [sys.executable, "-c", _COMPARE, json.dumps([SIZES, cases])]
    results = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert results == [
        f"[9, 3, {height}, {width}] 0" for height, width in [(35, 44), *[(32, 32), (33, 47), (30, 27), (33, 33)] * 2]
    ]


def make_transform(name: str, **values: Any) -> Any:
    """Return an object with the class name and the attributes of a torchvision transform."""
    return type(name, (SimpleNamespace,), {})(**values)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([make_transform("ColorJitter"), make_transform("ToTensor")], "transforms ColorJitter, ToTensor"),
        ([make_transform("ToTensor"), make_transform("CenterCrop", size=[2, 2])], "transforms ToTensor, CenterCrop"),
        (
            [make_transform("Resize", size=9, max_size=None, interpolation=make_transform("Mode", value="bilinear"))],
            "size=9",
        ),
        (
            [make_transform("Resize", size=[9, 9], max_size=None, interpolation=make_transform("Mode", value="box"))],
            "value='box'",
        ),
        ([make_transform("ToTensor")], "ToTensor()"),
    ],
)
def test_unsupported_transforms_are_named(steps: list[Any], message: str) -> None:
    with pytest.raises(UsageError) as error:
        pillow_resize.PillowResize(steps)
    assert message in str(error.value)


@pytest.mark.parametrize(("version", "first"), [("13.0.0", (30, 20)), ("12.1.0", (20, 90))])
def test_height_is_resized_first_only_if_pillow_does_so(
    monkeypatch: pytest.MonkeyPatch, version: str, first: tuple[int, int]
) -> None:
    """Pillow does so since version 13; resizing a single axis gives the same result in each version."""
    import PIL
    import torch
    from PIL import Image

    monkeypatch.setattr(PIL, "__version__", version)
    kind = make_transform("Mode", value="bilinear")
    resize = pillow_resize.PillowResize([make_transform("Resize", size=[20, 20], max_size=None, interpolation=kind)])
    pixels = bytes(n * n % 251 for n in range(90 * 30 * 3))
    half = Image.frombytes("RGB", (30, 90), pixels).resize(first, Image.Resampling.BILINEAR)
    expected = half.resize((20, 20), Image.Resampling.BILINEAR).tobytes()
    image = torch.tensor(list(pixels), dtype=torch.uint8).reshape(1, 90, 30, 3)
    resized = resize(image, torch.tensor([[90, 30]]))[0].permute(1, 2, 0)
    assert resized.flatten().tolist() == list(expected)
