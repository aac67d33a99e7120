"""From which probability on a meme counts as hateful."""

from __future__ import annotations

from collections.abc import Sequence

DEFAULT = 0.5


def label(proba: float, threshold: float = DEFAULT) -> int:
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
    right = sum(gained[value] for value in values if value <= DEFAULT)
    candidates = [(right, DEFAULT)]
    right = 0
    if values[0] > 0:
        candidates.append((right, 0.0))
    for value, following in zip(values, [*values[1:], 1.0], strict=True):
        right += gained[value]
        candidates.append((right, _between(value, following)))
    return max(candidates, key=lambda candidate: (candidate[0], -abs(candidate[1] - DEFAULT)))[1]


def _between(low: float, high: float) -> float:
    middle = (low + high) / 2
    return middle if middle < high else low  # there may be no number between the two
