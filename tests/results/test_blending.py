"""Ensembles of probabilities, and thresholds."""

from __future__ import annotations

import math
from itertools import product
from random import Random

import pytest

from mmf_win.results.blending import BLEND_METHODS, apply_threshold, best_accuracy_threshold, blend, ranks

CONFIDENT = 1 / (1 + math.sqrt(0.001 / 0.999 * 0.6 / 0.4))  # 0.96; the mean of the two members is 0.7


@pytest.mark.parametrize(
    ("kind", "members", "blended"),
    [
        ("mean", [[0.2, 0.8], [0.4, 1.0]], [0.3, 0.9]),
        ("rank", [[0.1, 0.2, 0.3], [0.99, 0.98, 0.5]], [0.5, 0.5, 0.5]),
        ("logit", [[0.999], [0.4]], [CONFIDENT]),
        ("logit", [[0.0, 1.0], [1.0, 1.0]], [0.5, 1.0]),
    ],
    ids=["mean", "ranks ignore distances", "confident members weigh more", "0 and 1 have finite logits"],
)
def test_members_are_blended(kind: str, members: list[list[float]], blended: list[float]) -> None:
    assert blend(kind, members) == pytest.approx(blended)


def test_ranks_go_from_0_to_1_and_ties_share_a_rank() -> None:
    assert ranks([0.3, 0.1, 0.9]) == [0.5, 0, 1]
    assert ranks([0.5, 0.1, 0.5, 0.5, 0.9]) == [0.5, 0, 0.5, 0.5, 1]
    assert ranks([0.4, 0.4]) == [0.5, 0.5]
    assert ranks([0.7]) == [0.5]


@pytest.mark.parametrize("kind", BLEND_METHODS)
def test_blending_a_single_member_keeps_its_order(kind: str) -> None:
    member = [0.7, 0.1, 0.5, 0.9, 0.11]
    blended = blend(kind, [member])
    assert sorted(range(5), key=blended.__getitem__) == sorted(range(5), key=member.__getitem__)
    assert all(0 <= value <= 1 for value in blended)


def test_members_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError):
        blend("mean", [[0.1], [0.1, 0.2]])


def count_correct(labels: list[int], probas: list[float], threshold: float) -> int:
    return sum(apply_threshold(p, threshold) == truth for p, truth in zip(probas, labels, strict=True))


def test_probability_equal_to_threshold_is_benign() -> None:
    assert [apply_threshold(p, 0.5) for p in (0.49, 0.5, 0.51)] == [0, 0, 1]


@pytest.mark.parametrize(
    ("labels", "probas", "threshold"),
    [
        ([0, 0, 1, 1], [0.6, 0.7, 0.8, 0.9], pytest.approx(0.75)),
        ([0, 1], [0.1, 0.95], 0.5),
        ([1, 1], [0.1, 0.2], 0.0),
        ([0, 0], [0.9, 1.0], 1.0),
    ],
    ids=["between the classes", "nothing is better than one half", "only hateful", "only benign"],
)
def test_best_accuracy_threshold_separates_classes(labels: list[int], probas: list[float], threshold: float) -> None:
    assert best_accuracy_threshold(labels, probas) == threshold


def test_threshold_separates_adjacent_floats() -> None:
    low, high = 0.7, 0.7000000000000001
    assert count_correct([0, 1], [low, high], best_accuracy_threshold([0, 1], [low, high])) == 2


@pytest.mark.parametrize("seed", range(20))
def test_no_other_threshold_has_higher_accuracy(seed: int) -> None:
    random = Random(seed)
    values = [0.0, 0.2, 0.2, 0.4, 0.5, 0.6, 0.8, 1.0]
    probas = [random.choice(values) for _ in range(9)]
    labels = [random.randint(0, 1) for _ in probas]
    thresholds = sorted({0.0, 1.0, *values, *((a + b) / 2 for a, b in product(values, values))})
    assert count_correct(labels, probas, best_accuracy_threshold(labels, probas)) == max(
        count_correct(labels, probas, t) for t in thresholds
    )
