"""Groups of runs that differ only in their seed, and statistics over them."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

_T = TypeVar("_T")


def group_by_config(items: Iterable[tuple[_T, Hashable, Hashable]]) -> list[list[_T]]:
    """Group runs or tasks that differ only in their seed, in input order.

    Args:
        items: For each run or task, the item, its configuration without the seed, and its seed. A seed
            occurs once per group; ``None`` if it is unknown or irrelevant.

    Returns:
        The groups.
    """
    groups: dict[tuple[Hashable, int], list[_T]] = {}
    counts: Counter[tuple[Hashable, Hashable]] = Counter()
    for item, config, seed in items:
        repeat = 0 if seed is None else counts[config, seed]
        counts[config, seed] += 1
        groups.setdefault((config, repeat), []).append(item)
    return list(groups.values())


def mean_and_std(values: Sequence[float]) -> tuple[float | None, float | None, int]:
    """Return the mean, the standard deviation and the number of values.

    Returns:
        Mean (``None`` without values), sample standard deviation (``None`` below two values), and count.
    """
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return (statistics.mean(values) if values else None, deviation, len(values))
