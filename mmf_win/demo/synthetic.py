"""Small synthetic dataset in the exact format of Hateful Memes, for the demo.

The words and the picture together decide whether a meme is mean. "Look how many people love you" is kind
with a crowd and mean with an empty desert; "look how many people hate you" is the opposite. Like the benign
confounders of the real dataset, each caption occurs with both pictures, and each picture with both
captions::

                       a crowd    a desert
    ... love you          0          1
    ... hate you          1          0

Words or pictures alone therefore carry no information about the label. As people disagree about real memes,
the labels of one in ten such groups of four are inverted, so the best possible AUROC is about 0.9.
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
# Pairs of a kind and a mean verb; two captions may differ in this word only.
VERBS = (("love", "hate"), ("like", "mock"), ("miss", "avoid"), ("trust", "fear"))
ENDINGS = ("you", "you today", "your jokes", "your songs", "your cooking")

#: Number of memes per split of the challenge's second phase: multiples of 4, at most 1,920 in total.
SPLIT_SIZES = {"train": 400, "dev_seen": 40, "dev_unseen": 80, "test_seen": 40, "test_unseen": 160}
#: Share of the groups of four in each split whose labels are inverted.
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
    """Content of a picture: a crowd or an empty desert. Equal values produce equal pixels."""

    crowded: bool
    width: int
    height: int
    seed: int

    @classmethod
    def random(cls, random: Random, *, crowded: bool) -> Picture:
        """Return a picture of random size and scene."""
        return cls(crowded, random.randrange(160, 260), random.randrange(140, 240), random.getrandbits(32))


@dataclass(frozen=True)
class Meme:
    """One meme; the label is 1 if it is mean, apart from label noise."""

    id: int
    text: str
    picture: Picture
    label: int

    @property
    def stem(self) -> str:
        """File name of the image without its suffix, also the key of its features: ``01234``."""
        return f"{self.id:05d}"

    @property
    def image_path(self) -> str:
        """Image path in the annotations: ``img/01234.png``."""
        return f"img/{self.stem}.png"

    @cached_property
    def png(self) -> bytes:
        """Content of the image file, drawn on first use."""
        return draw_meme(self.picture, self.text)


def generate_memes(seed: int) -> dict[str, list[Meme]]:
    """Generate the memes of each split, in random order and reproducibly.

    No caption occurs in two groups, so memorized words do not help on a test split.

    Args:
        seed: The same seed produces the same memes.

    Returns:
        Split → memes.
    """
    random = Random(seed)
    wordings = list(itertools.product(OPENINGS, CROWDS, VERBS, ENDINGS))
    random.shuffle(wordings)
    # Some ids have four digits, so that file names need a leading zero.
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
    """Yield name and content of each file in the dataset's archive, all in one folder."""
    yield f"{_ARCHIVE_FOLDER}/README.md", _README.encode()
    for split, memes in splits.items():
        rows = [{"id": m.stem, "img": m.image_path, "label": m.label, "text": m.text} for m in memes]
        yield f"{_ARCHIVE_FOLDER}/{split}.jsonl", b"".join(map(json_bytes, rows))
    for memes in splits.values():
        for meme in memes:
            yield f"{_ARCHIVE_FOLDER}/{meme.image_path}", meme.png


def draw_meme(picture: Picture, caption: str) -> bytes:
    """Draw a picture with a caption, and return a PNG file. Requires Pillow."""
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
    for index, line in enumerate(textwrap.wrap(caption.upper(), picture.width // _LETTER_WIDTH)):
        x = (picture.width - _LETTER_WIDTH * len(line)) // 2
        # The shadow makes the text readable on any sky.
        canvas.text((x + 1, 5 + index * _LINE_HEIGHT), line, _BLACK)
        canvas.text((x, 4 + index * _LINE_HEIGHT), line, _WHITE)
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
