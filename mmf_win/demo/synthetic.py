"""A small synthetic set in the exact format of Hateful Memes, for the demo.

Whether a meme is mean is decided by its words and its picture together. "Look how many people love you" is
kind above a crowd and mean above an empty desert; "look how many people hate you" is the other way round.
As the real set does with its benign confounders, this one holds each caption with both pictures and each
picture with both captions::

                       a crowd    a desert
    ... love you          0          1
    ... hate you          1          0

so words alone, or pictures alone, tell nothing at all about the label. As people disagree about real memes,
one such group of four in ten has all its labels the other way round, so the best possible AUROC is about 0.9.
"""

from __future__ import annotations

import io
import itertools
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import TYPE_CHECKING

from mmf_win.files import json_bytes

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

OPENINGS = ("look", "see", "guess", "imagine")
CROWDS = ("people", "friends", "classmates", "neighbours", "fans", "strangers")
# Kind and mean in pairs, so that swapping one for the other is all that tells two captions apart.
VERBS = (("love", "hate"), ("like", "mock"), ("miss", "avoid"), ("trust", "fear"))
ENDINGS = ("you", "you today", "your jokes", "your songs", "your cooking")

#: Memes in each split, under the names of the challenge's second phase: fours, at most 1,920 in all.
SPLIT_SIZES = {"train": 400, "dev_seen": 40, "dev_unseen": 80, "test_seen": 40, "test_unseen": 160}
#: The share of each split's groups of four that have all their labels the other way round.
LABEL_NOISE = 0.1

_ARCHIVE_FOLDER = "hateful_memes"
_README = """\
A synthetic set in the format of the Hateful Memes challenge, drawn by the demo of mmfw.
It contains no data of the challenge, and is in the public domain (CC0 1.0 Universal).
"""

_SKIES = ((140, 190, 240), (240, 170, 120), (90, 110, 170), (200, 220, 230))
_GROUNDS = ((225, 190, 130), (205, 165, 105), (190, 180, 150), (235, 210, 160))
_SKINS = ((90, 56, 37), (150, 100, 66), (200, 150, 110), (240, 200, 170))
_SHIRTS = ((200, 40, 50), (40, 80, 190), (30, 140, 80), (240, 200, 40), (120, 50, 150))
_SUN = (255, 240, 170)
_CACTUS = (60, 130, 70)
_WHITE = (255, 255, 255)
_BLACK = (0, 0, 0)

_LINE_HEIGHT = 14
_LETTER_WIDTH = 7


@dataclass(frozen=True)
class Picture:
    """What a picture shows: a crowd, or a desert where nobody is; the same values give the same pixels."""

    crowded: bool
    width: int
    height: int
    seed: int

    @classmethod
    def random(cls, random: Random, *, crowded: bool) -> Picture:
        """A picture of any size and scene."""
        return cls(crowded, random.randrange(160, 260), random.randrange(140, 240), random.getrandbits(32))


@dataclass(frozen=True)
class Meme:
    """One meme; its label is 1 when it is mean, but for the noise."""

    id: int
    text: str
    picture: Picture
    label: int

    @property
    def stem(self) -> str:
        """The image's file name without its suffix, which also names its features: ``01234``."""
        return f"{self.id:05d}"

    @property
    def image_path(self) -> str:
        """Where the image lies, as the annotations say it: ``img/01234.png``."""
        return f"img/{self.stem}.png"

    @cached_property
    def png(self) -> bytes:
        """The image file, drawn when it is first asked for."""
        return draw_meme(self.picture, self.text)


def generate_memes(seed: int) -> dict[str, list[Meme]]:
    """The memes of each split, in random order; the same seed makes the same memes.

    No caption comes back in another group, so a test never asks for words that were learnt by heart.
    """
    random = Random(seed)
    wordings = list(itertools.product(OPENINGS, CROWDS, VERBS, ENDINGS))
    random.shuffle(wordings)
    # Some of four digits, so that file names need their leading zero.
    ids = iter(random.sample(range(1_000, 100_000), sum(SPLIT_SIZES.values())))
    splits: dict[str, list[Meme]] = {}
    for split, size in SPLIT_SIZES.items():
        memes: list[Meme] = []
        groups = size // 4
        noisy = frozenset(random.sample(range(groups), round(LABEL_NOISE * groups)))
        for group in range(groups):
            crowd, desert = Picture.random(random, crowded=True), Picture.random(random, crowded=False)
            opening, who, (kind, mean), ending = wordings.pop()
            kinds = (kind, crowd, 0), (kind, desert, 1), (mean, crowd, 1), (mean, desert, 0)
            for verb, picture, label in kinds:
                text = f"{opening} how many {who} {verb} {ending}"
                memes.append(Meme(next(ids), text, picture, 1 - label if group in noisy else label))
        random.shuffle(memes)
        splits[split] = memes
    return splits


def archive_members(splits: Mapping[str, list[Meme]]) -> Iterator[tuple[str, bytes]]:
    """Name and contents of each file of the dataset's archive, all in one folder."""
    yield f"{_ARCHIVE_FOLDER}/README.md", _README.encode()
    for split, memes in splits.items():
        rows = [{"id": m.stem, "img": m.image_path, "label": m.label, "text": m.text} for m in memes]
        yield f"{_ARCHIVE_FOLDER}/{split}.jsonl", b"".join(map(json_bytes, rows))
    for memes in splits.values():
        for meme in memes:
            yield f"{_ARCHIVE_FOLDER}/{meme.image_path}", meme.png


def draw_meme(picture: Picture, caption: str) -> bytes:
    """``picture`` as a PNG file with ``caption`` written on it. Needs Pillow."""
    from PIL import Image, ImageDraw

    random = Random(picture.seed)
    image = Image.new("RGB", (picture.width, picture.height), random.choice(_SKIES))
    canvas = ImageDraw.Draw(image)
    horizon = int(picture.height * random.uniform(0.4, 0.5))
    x, radius = random.randrange(picture.width), random.randint(8, 16)
    canvas.ellipse((x - radius, 20, x + radius, 20 + 2 * radius), _SUN)
    canvas.rectangle((0, horizon, picture.width, picture.height), random.choice(_GROUNDS))
    draw_one, fewest, most = (_draw_person, 20, 30) if picture.crowded else (_draw_cactus, 1, 3)
    for _ in range(random.randint(fewest, most)):
        draw_one(canvas, random, picture, horizon)
    for n, line in enumerate(textwrap.wrap(caption.upper(), picture.width // _LETTER_WIDTH)):
        x = (picture.width - _LETTER_WIDTH * len(line)) // 2
        canvas.text(
            (x + 1, 5 + n * _LINE_HEIGHT), line, _BLACK
        )  # a shadow, so that it can be read on any sky
        canvas.text((x, 4 + n * _LINE_HEIGHT), line, _WHITE)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def _draw_person(canvas: ImageDraw, random: Random, picture: Picture, horizon: int) -> None:
    x, feet = random.randrange(picture.width), random.randrange(horizon + 20, picture.height)
    canvas.rectangle((x - 6, feet - 20, x + 6, feet), random.choice(_SHIRTS))
    canvas.ellipse((x - 6, feet - 33, x + 6, feet - 20), random.choice(_SKINS))


def _draw_cactus(canvas: ImageDraw, random: Random, picture: Picture, horizon: int) -> None:
    x, foot = random.randrange(picture.width), random.randrange(horizon + 10, picture.height)
    canvas.rectangle((x - 3, foot - 26, x + 3, foot), _CACTUS)
    canvas.rectangle((x - 10, foot - 18, x + 10, foot - 14), _CACTUS)
