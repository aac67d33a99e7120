"""What is made of predicted probabilities: one prediction from several of the same memes, and labels.

Every kind of ensemble needs only the probabilities, and none changes the order of a single member.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise

Probabilities = Sequence[float]

DEFAULT_THRESHOLD = 0.5

_LOGIT_EPSILON = 1e-7  # a logit of 0 or 1 is infinite; 32-bit probabilities come no nearer to 1


def blend(method: str, members: Sequence[Probabilities]) -> list[float]:
    """The blended probability of each meme, from those of each member for the same memes, in one order."""
    columns = [BLEND_METHODS[method][0](member) for member in members]
    return [BLEND_METHODS[method][1](sum(row) / len(row)) for row in zip(*columns, strict=True)]


def ranks(column: Probabilities) -> list[float]:
    """Where each value stands among all: 0 for the smallest, 1 for the largest, equal ones at their mean."""
    if len(column) < 2:
        return [0.5] * len(column)
    places = sorted(column)
    firsts_and_lasts = ((bisect_left(places, p), bisect_right(places, p) - 1) for p in column)
    return [(first + last) / 2 / (len(column) - 1) for first, last in firsts_and_lasts]


def logits(column: Probabilities) -> list[float]:
    """The logarithm of the odds of each probability."""
    held = (min(max(p, _LOGIT_EPSILON), 1 - _LOGIT_EPSILON) for p in column)
    return [math.log(p / (1 - p)) for p in held]


#: name → what is done to a member before the mean is taken, and what to the mean.
#:
#: ``mean`` averages probabilities; ``rank`` the ranks, for members whose probabilities are not comparable –
#: the result is no probability then; ``logit`` the log-odds, which lets a sure member say more.
BLEND_METHODS: dict[str, tuple[Callable[[Probabilities], Probabilities], Callable[[float], float]]] = {
    "mean": (list, float),
    "rank": (ranks, float),
    "logit": (logits, lambda value: 1 / (1 + math.exp(-value))),
}


def apply_threshold(proba: float, threshold: float = DEFAULT_THRESHOLD) -> int:
    """1 above ``threshold``, else 0; at exactly 0.5 MMF says 0 too."""
    return int(proba > threshold)


def best_accuracy_threshold(labels: Sequence[int], probas: Sequence[float]) -> float:
    """The threshold that labels most of the rows, of which there is at least one, correctly.

    Candidates are 0.5, the ends, and the middle between neighbouring probabilities; of equally good ones, the
    one nearest to 0.5 is taken.
    """
    benign, hateful = (
        sorted(proba for proba, truth in zip(probas, labels, strict=True) if truth == side) for side in (0, 1)
    )

    def count_correct(threshold: float) -> int:
        return bisect_right(benign, threshold) + len(hateful) - bisect_right(hateful, threshold)

    values = sorted(set(probas))
    candidates = [DEFAULT_THRESHOLD, 0.0, *(_midpoint(*pair) for pair in pairwise([*values, 1.0]))]
    return max(
        candidates, key=lambda threshold: (count_correct(threshold), -abs(threshold - DEFAULT_THRESHOLD))
    )


def _midpoint(low: float, high: float) -> float:
    middle = (low + high) / 2
    return middle if middle < high else low  # there may be no number between the two
