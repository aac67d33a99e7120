"""The one way in which pictures become pixels: in training, prediction, pages and exported models.

`mmfw export` copies the functions into the ``run.py`` of a model, so they use nothing else of this module.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image


def open_image(path: Path, *, orient: bool = True) -> Image.Image:
    """Return the picture of a file in RGB, as :func:`to_rgb` makes it.

    Raises:
        Exception: Pillow's, of any class, if the file cannot be read as a picture.
    """
    from PIL import Image, PngImagePlugin

    # Text of more than 1 MiB, such as a workflow of an image generator, is no reason to refuse a picture.
    PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY
    with Image.open(path) as image:
        return to_rgb(image, orient=orient)


def to_rgb(image: Image.Image, *, orient: bool = True) -> Image.Image:
    """Return a picture of Pillow in RGB.

    Values of 16 bits lose their lower 8 as those of RGB and of grey with alpha do in Pillow, which by itself
    would clip grey ones at 255.

    Args:
        image: the picture, which may not be loaded yet.
        orient: turn the picture as its EXIF says (tag 0x0112, EXIF 2.32, section 4.6.4 A).

    Returns:
        The picture; if it was turned, ``info["orientation"]`` is the number in its EXIF, from 2 to 8.
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
    with suppress(Exception):  # EXIF that cannot be read says nothing
        orientation = image.getexif().get(0x0112, 1)
        if orient and orientation in range(2, 9):
            rgb = rgb.transpose(turns[orientation - 2])
            rgb.info["orientation"] = orientation
    return rgb
