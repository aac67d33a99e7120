"""Draws the pictures of the synthetic memes: a crowd, or a desert where nobody is."""

from __future__ import annotations

import io
import textwrap
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

Colour = tuple[int, int, int]

_SKIES: tuple[Colour, ...] = ((140, 190, 240), (240, 170, 120), (90, 110, 170), (200, 220, 230))
_GROUNDS: tuple[Colour, ...] = ((225, 190, 130), (205, 165, 105), (190, 180, 150), (235, 210, 160))
_SKINS: tuple[Colour, ...] = ((90, 56, 37), (150, 100, 66), (200, 150, 110), (240, 200, 170))
_SHIRTS: tuple[Colour, ...] = ((200, 40, 50), (40, 80, 190), (30, 140, 80), (240, 200, 40), (120, 50, 150))
_SUN: Colour = (255, 240, 170)
_CACTUS: Colour = (60, 130, 70)
_WHITE: Colour = (255, 255, 255)
_BLACK: Colour = (0, 0, 0)

_LINE = 14
_LETTER = 7


@dataclass(frozen=True)
class Picture:
    """What a picture shows; the same values give the same pixels.

    Attributes:
        crowded: full of people, or empty.
        width, height: in pixels.
        seed: of everything else.
    """

    crowded: bool
    width: int
    height: int
    seed: int

    @classmethod
    def random(cls, random: Random, *, crowded: bool) -> Picture:
        """A picture of any size and scene."""
        return cls(crowded, random.randrange(160, 260), random.randrange(140, 240), random.getrandbits(32))


def draw(picture: Picture, caption: str) -> bytes:
    """``picture`` as a PNG file with ``caption`` written on it. Needs Pillow."""
    from PIL import Image, ImageDraw

    random = Random(picture.seed)
    image = Image.new("RGB", (picture.width, picture.height), random.choice(_SKIES))
    canvas = ImageDraw.Draw(image)
    horizon = int(picture.height * random.uniform(0.4, 0.5))
    _draw_sun(canvas, random, picture.width)
    canvas.rectangle((0, horizon, picture.width, picture.height), random.choice(_GROUNDS))
    draw_one, fewest, most = (_draw_person, 20, 30) if picture.crowded else (_draw_cactus, 1, 3)
    for _ in range(random.randint(fewest, most)):
        draw_one(canvas, random, picture, horizon)
    _write_caption(canvas, caption, picture.width)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def _draw_sun(canvas: ImageDraw, random: Random, width: int) -> None:
    x, radius = random.randrange(width), random.randint(8, 16)
    canvas.ellipse((x - radius, 20, x + radius, 20 + 2 * radius), _SUN)


def _draw_person(canvas: ImageDraw, random: Random, picture: Picture, horizon: int) -> None:
    x, feet = random.randrange(picture.width), random.randrange(horizon + 20, picture.height)
    canvas.rectangle((x - 6, feet - 20, x + 6, feet), random.choice(_SHIRTS))
    canvas.ellipse((x - 6, feet - 33, x + 6, feet - 20), random.choice(_SKINS))


def _draw_cactus(canvas: ImageDraw, random: Random, picture: Picture, horizon: int) -> None:
    x, foot = random.randrange(picture.width), random.randrange(horizon + 10, picture.height)
    canvas.rectangle((x - 3, foot - 26, x + 3, foot), _CACTUS)
    canvas.rectangle((x - 10, foot - 18, x + 10, foot - 14), _CACTUS)


def _write_caption(canvas: ImageDraw, caption: str, width: int) -> None:
    lines = textwrap.wrap(caption.upper(), width // _LETTER)
    for n, line in enumerate(lines):
        x = (width - _LETTER * len(line)) // 2
        canvas.text((x + 1, 5 + n * _LINE), line, _BLACK)  # a shadow, so that it can be read on any sky
        canvas.text((x, 4 + n * _LINE), line, _WHITE)
