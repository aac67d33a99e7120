"""What is made of predicted probabilities: one prediction from several of the same memes, and labels.

Every kind of ensemble needs only the probabilities, and none changes the order of a single member.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Column = Sequence[float]

DEFAULT_THRESHOLD = 0.5

_EDGE = 1e-7  # a logit of 0 or 1 is infinite; 32-bit probabilities come no nearer to 1


def blend(kind: str, members: Sequence[Column]) -> list[float]:
    """The blended probability of each meme.

    Args:
        kind: a key of :data:`KINDS`.
        members: of each member, the probabilities of the same memes in the same order, 0 to 1.

    Raises:
        ValueError: the members do not have the same length.
    """
    columns = [KINDS[kind][0](member) for member in members]
    return [KINDS[kind][1](sum(row) / len(row)) for row in zip(*columns, strict=True)]


def ranks(column: Column) -> list[float]:
    """Where each value stands among all: 0 for the smallest, 1 for the largest, equal ones at their mean."""
    if len(column) < 2:
        return [0.5] * len(column)
    order = sorted(range(len(column)), key=column.__getitem__)
    result = [0.0] * len(column)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and column[order[end + 1]] == column[order[start]]:
            end += 1
        for position in order[start : end + 1]:
            result[position] = (start + end) / 2 / (len(column) - 1)
        start = end + 1
    return result


def logits(column: Column) -> list[float]:
    """The logarithm of the odds of each probability."""
    held = (min(max(p, _EDGE), 1 - _EDGE) for p in column)
    return [math.log(p / (1 - p)) for p in held]


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def _same(value: float) -> float:
    return value


KINDS: dict[str, tuple[Callable[[Column], Column], Callable[[float], float]]] = {
    "mean": (list, _same),
    "rank": (ranks, _same),
    "logit": (logits, _sigmoid),
}
"""name → what is done to a member before the mean is taken, and what to the mean.

``mean`` averages probabilities; ``rank`` the ranks, for members whose probabilities are not comparable – the
result is no probability then; ``logit`` the log-odds, which lets a sure member say more.
"""

NO_PROBABILITIES = frozenset({"rank"})
"""The kinds whose result is none."""


def label(proba: float, threshold: float = DEFAULT_THRESHOLD) -> int:
    """1 above ``threshold``, else 0; at exactly 0.5 MMF says 0 too."""
    return int(proba > threshold)


def best_accuracy(labels: Sequence[int], probas: Sequence[float]) -> float:
    """The threshold that labels most rows rightly.

    Candidates are 0.5, the ends, and the middle between neighbouring probabilities; of equally good ones, the
    one nearest to 0.5 is taken.

    Args:
        labels: 0 or 1 for each row; at least one row.
        probas: the probability of 1 for each row, 0 to 1.
    """
    gained: dict[float, int] = {}  # rightly labelled rows more, once the threshold has passed this value
    for proba, truth in zip(probas, labels, strict=True):
        gained[proba] = gained.get(proba, 0) + (-1 if truth else 1)
    values = sorted(gained)
    right = sum(gained[value] for value in values if value <= DEFAULT_THRESHOLD)
    candidates = [(right, DEFAULT_THRESHOLD)]
    right = 0
    if values[0] > 0:
        candidates.append((right, 0.0))
    for value, following in zip(values, [*values[1:], 1.0], strict=True):
        right += gained[value]
        candidates.append((right, _between(value, following)))
    return max(candidates, key=lambda candidate: (candidate[0], -abs(candidate[1] - DEFAULT_THRESHOLD)))[1]


def _between(low: float, high: float) -> float:
    middle = (low + high) / 2
    return middle if middle < high else low  # there may be no number between the two
