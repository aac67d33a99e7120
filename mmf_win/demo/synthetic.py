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

The files have the form of the released set: five labelled splits, ids as strings of five digits, a README
beside them, and one folder around it all.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from random import Random

from mmf_win.demo.drawing import Picture, draw
from mmf_win.files import json_bytes

OPENINGS = ("look", "see", "guess", "imagine")
CROWDS = ("people", "friends", "classmates", "neighbours", "fans", "strangers")
# Kind and mean in pairs, so that swapping one for the other is all that tells two captions apart.
VERBS = (("love", "hate"), ("like", "mock"), ("miss", "avoid"), ("trust", "fear"))
ENDINGS = ("you", "you today", "your jokes", "your songs", "your cooking")

SIZES = {"train": 400, "dev_seen": 40, "dev_unseen": 80, "test_seen": 40, "test_unseen": 160}
"""Memes in each split, under the names of the challenge's second phase."""

NOISE = 0.1
"""The share of each split's groups of four that have all their labels the other way round."""

_TOP = "hateful_memes"
_README = """\
A synthetic set in the format of the Hateful Memes challenge, drawn by the demo of mmfw.
It contains no data of the challenge, and is in the public domain (CC0 1.0 Universal).
"""


@dataclass(frozen=True)
class Meme:
    """One meme.

    Attributes:
        id: a positive integer of at most five digits.
        text: the caption.
        picture: what it is written upon.
        label: 1 when it is mean, but for the noise.
    """

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
        return draw(self.picture, self.text)


def make(seed: int, sizes: Mapping[str, int] = SIZES) -> dict[str, list[Meme]]:
    """The memes of each split, in random order; the same seed makes the same memes.

    Args:
        seed: of everything random.
        sizes: memes in each split, multiples of four. No caption comes back in another group, so a test
            never asks for words that were learnt by heart; that limits them to 1,920 in all.
    """
    random = Random(seed)
    wordings = list(itertools.product(OPENINGS, CROWDS, VERBS, ENDINGS))
    random.shuffle(wordings)
    # Some of four digits, so that file names need their leading zero.
    ids = iter(random.sample(range(1_000, 100_000), sum(sizes.values())))
    splits: dict[str, list[Meme]] = {}
    for split, size in sizes.items():
        memes: list[Meme] = []
        groups = size // 4
        noisy = frozenset(random.sample(range(groups), round(NOISE * groups)))
        for group in range(groups):
            crowd, desert = Picture.random(random, crowded=True), Picture.random(random, crowded=False)
            opening, who, (kind, mean), ending = wordings.pop()
            for verb, picture, label in (
                (kind, crowd, 0),
                (kind, desert, 1),
                (mean, crowd, 1),
                (mean, desert, 0),
            ):
                text = f"{opening} how many {who} {verb} {ending}"
                memes.append(Meme(next(ids), text, picture, 1 - label if group in noisy else label))
        random.shuffle(memes)
        splits[split] = memes
    return splits


def archive_members(splits: Mapping[str, list[Meme]]) -> Iterator[tuple[str, bytes]]:
    """Name and contents of each file of the dataset's archive, all in one folder."""
    yield f"{_TOP}/README.md", _README.encode()
    for split, memes in splits.items():
        rows = [{"id": m.stem, "img": m.image_path, "label": m.label, "text": m.text} for m in memes]
        yield f"{_TOP}/{split}.jsonl", b"".join(map(json_bytes, rows))
    for memes in splits.values():
        for meme in memes:
            yield f"{_TOP}/{meme.image_path}", meme.png
