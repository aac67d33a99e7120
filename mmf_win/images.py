"""Image decoding, shared by training, prediction, reports and exported models.

`mmfw export` copies these functions into the ``run.py`` of a model, so they use nothing else of this module.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image


def open_image(path: Path, *, orient: bool = True) -> Image.Image:
    """Return the image in a file in RGB, converted by :func:`to_rgb`.

    Raises:
        Exception: The file cannot be decoded; Pillow raises errors of any class.
    """
    from PIL import Image, PngImagePlugin

    # Accept text chunks of more than 1 MiB, such as the workflow of an image generator.
    PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY
    with Image.open(path) as image:
        return to_rgb(image, orient=orient)


def to_rgb(image: Image.Image, *, orient: bool = True) -> Image.Image:
    """Convert a Pillow image to RGB.

    Values of 16 bits lose their lower 8 bits, as Pillow does for RGB and grey with alpha; it would clip grey
    values at 255.

    Args:
        image: The image, which need not be loaded.
        orient: Apply the EXIF orientation (tag 0x0112, EXIF 2.32, section 4.6.4 A).

    Returns:
        The RGB image; if it was transposed, ``info["orientation"]`` is its EXIF orientation (2 to 8).
    """
    from contextlib import suppress

    from PIL.Image import Transpose

    turns = [Transpose.FLIP_LEFT_RIGHT, Transpose.ROTATE_180, Transpose.FLIP_TOP_BOTTOM, Transpose.TRANSPOSE]
    turns += [Transpose.ROTATE_270, Transpose.TRANSVERSE, Transpose.ROTATE_90]
    image.load()
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        rgb = image.convert("I").point(lambda value: value / 256).convert("L").convert("RGB")
    else:
        rgb = image.convert("RGB")
    with suppress(Exception):  # ignore EXIF data that cannot be read
        orientation = image.getexif().get(0x0112, 1)
        if orient and orientation in range(2, 9):
            rgb = rgb.transpose(turns[orientation - 2])
            rgb.info["orientation"] = orientation
    return rgb
