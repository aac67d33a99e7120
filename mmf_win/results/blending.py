"""Blend the predictions of several models, and turn probabilities into labels.

Every blend method needs only the probabilities, and none changes the order of a single member.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise

Probabilities = Sequence[float]

DEFAULT_THRESHOLD = 0.5

_LOGIT_EPSILON = 1e-7  # 0 and 1 have infinite logits; a float32 below 1 is at least this far from it


def blend(method: str, members: Sequence[Probabilities]) -> list[float]:
    """Return the blended probability of each meme.

    Args:
        method: Key of :data:`BLEND_METHODS`.
        members: For each member, its probabilities for the same memes in the same order.

    Returns:
        One value per meme. For ``rank``, it is a mean rank from 0 to 1 and not a probability.
    """
    columns = [BLEND_METHODS[method][0](member) for member in members]
    return [BLEND_METHODS[method][1](sum(row) / len(row)) for row in zip(*columns, strict=True)]


def ranks(column: Probabilities) -> list[float]:
    """Return the rank of each value, from 0 (smallest) to 1 (largest); ties get their mean rank."""
    if len(column) < 2:
        return [0.5] * len(column)
    sorted_values = sorted(column)
    firsts_and_lasts = ((bisect_left(sorted_values, p), bisect_right(sorted_values, p) - 1) for p in column)
    return [(first + last) / 2 / (len(column) - 1) for first, last in firsts_and_lasts]


def logits(column: Probabilities) -> list[float]:
    """Return the log-odds of each probability."""
    clipped = (min(max(p, _LOGIT_EPSILON), 1 - _LOGIT_EPSILON) for p in column)
    return [math.log(p / (1 - p)) for p in clipped]


#: Blend methods by name: the transform of each member's values, and the transform of their mean.
#:
#: ``mean`` averages probabilities. ``rank`` averages ranks, for members whose probabilities are not
#: comparable; the result is not a probability. ``logit`` averages log-odds, which gives more weight to
#: confident members.
BLEND_METHODS: dict[str, tuple[Callable[[Probabilities], Probabilities], Callable[[float], float]]] = {
    "mean": (list, float),
    "rank": (ranks, float),
    "logit": (logits, lambda value: 1 / (1 + math.exp(-value))),
}


def apply_threshold(proba: float, threshold: float = DEFAULT_THRESHOLD) -> int:
    """Return 1 if ``proba`` is above ``threshold``, else 0. Like MMF, this returns 0 at exactly 0.5."""
    return int(proba > threshold)


def best_accuracy_threshold(labels: Sequence[int], probas: Sequence[float]) -> float:
    """Return the threshold, 0 to 1, with the highest accuracy.

    The candidates are 0.5, 0, 1 and the midpoints between neighbouring probabilities. Ties are resolved in
    favour of the threshold nearest to 0.5.

    Args:
        labels: Label of each row, 0 or 1; at least one row.
        probas: Probability of each row, 0 to 1.
    """
    benign, hateful = (sorted(p for p, label in zip(probas, labels, strict=True) if label == side) for side in (0, 1))

    def count_correct(threshold: float) -> int:
        return bisect_right(benign, threshold) + len(hateful) - bisect_right(hateful, threshold)

    values = sorted(set(probas))
    candidates = [DEFAULT_THRESHOLD, 0.0, *(_midpoint(*pair) for pair in pairwise([*values, 1.0]))]
    return max(candidates, key=lambda threshold: (count_correct(threshold), -abs(threshold - DEFAULT_THRESHOLD)))


def _midpoint(low: float, high: float) -> float:
    middle = (low + high) / 2
    return middle if middle < high else low  # neighbouring floats have no number between them
