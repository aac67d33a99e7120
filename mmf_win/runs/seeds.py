"""Trainings that differ in their seed alone: which belong together, and what they come to."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

_T = TypeVar("_T")


def group_by_config(trainings: Iterable[tuple[_T, Hashable, Hashable]]) -> list[list[_T]]:
    """Those that are alike together, in the order in which they come.

    Args:
        trainings: each with what its result depends on beside the seed, and the seed, which no two of a group
            have; None where it is not known, or does not matter.
    """
    groups: dict[tuple[Hashable, int], list[_T]] = {}
    counts: Counter[tuple[Hashable, Hashable]] = Counter()
    for training, config, seed in trainings:
        repeat = 0 if seed is None else counts[config, seed]
        counts[config, seed] += 1
        groups.setdefault((config, repeat), []).append(training)
    return list(groups.values())


def mean_and_std(values: Sequence[float]) -> tuple[float | None, float | None, int]:
    """Mean, standard deviation where there are two or more values, and how many there are."""
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return (statistics.mean(values) if values else None, deviation, len(values))
