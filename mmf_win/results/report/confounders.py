"""Confounder pairs: two memes that share their text or their picture, and of which one alone is hateful.

The challenge was built from them, so that neither text nor picture tells the label by itself (D. Kiela et
al., *The Hateful Memes Challenge*, arXiv:2005.04790). A model that puts the hateful one of a pair higher has
looked at both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mmf_win.results.report.scored import ScoredMeme

Shared = Literal["text", "picture"]

_MOST = 20  # what more memes have in common is a phrase or a placeholder; the challenge's are twos and threes


@dataclass(frozen=True)
class Pair:
    """Two memes with something in common.

    Attributes:
        hateful, benign: by their labels.
        shared: what they have in common.
    """

    hateful: ScoredMeme
    benign: ScoredMeme
    shared: Shared

    @property
    def margin(self) -> float:
        """How much higher the hateful one was put, -1 to 1."""
        return self.hateful.proba - self.benign.proba


def pairs(memes: Sequence[ScoredMeme], pictures: Mapping[int, int]) -> list[Pair]:
    """All confounder pairs, those first that the model got most wrong.

    Args:
        memes: with their labels.
        pictures: for the ids of memes whose pictures look alike, a number that those have in common.
    """
    texts = {meme.row.id: " ".join(meme.row.text.casefold().split()) for meme in memes}
    texts = {id_: text for id_, text in texts.items() if text}
    shared: dict[Shared, Mapping[int, Hashable]] = {"text": texts, "picture": pictures}
    found = [Pair(h, b, what) for what, keys in shared.items() for h, b in _groups(memes, keys)]
    return sorted(found, key=lambda pair: (pair.margin, pair.hateful.row.id, pair.benign.row.id))


def _groups(memes: Sequence[ScoredMeme], keys: Mapping[int, Hashable]) -> list[tuple[ScoredMeme, ScoredMeme]]:
    """Every hateful meme with every benign one of the same key, which few have."""
    sides: dict[Hashable, tuple[list[ScoredMeme], list[ScoredMeme]]] = defaultdict(lambda: ([], []))
    for meme in memes:
        if meme.row.id in keys and meme.row.label is not None:
            sides[keys[meme.row.id]][meme.row.label].append(meme)
    groups = [group for group in sides.values() if sum(map(len, group)) <= _MOST]
    return [(h, b) for benign, hateful in groups for h in hateful for b in benign]
