from itertools import product
from random import Random

import pytest

from mmf_win.results.threshold import best_accuracy, label


def right(labels: list[int], probas: list[float], threshold: float) -> int:
    return sum(label(p, threshold) == truth for p, truth in zip(probas, labels, strict=True))


def test_at_exactly_the_threshold_a_meme_is_benign() -> None:
    assert [label(p, 0.5) for p in (0.49, 0.5, 0.51)] == [0, 0, 1]


def test_the_threshold_lies_between_the_classes() -> None:
    assert best_accuracy([0, 0, 1, 1], [0.6, 0.7, 0.8, 0.9]) == pytest.approx(0.75)


def test_one_half_stays_where_nothing_is_better() -> None:
    assert best_accuracy([0, 1], [0.1, 0.95]) == 0.5


def test_one_class_alone_gets_a_threshold_at_its_end() -> None:
    assert best_accuracy([1, 1], [0.1, 0.2]) == 0.0
    assert best_accuracy([0, 0], [0.9, 1.0]) == 1.0


def test_neighbours_without_a_number_between_them_are_told_apart() -> None:
    low, high = 0.7, 0.7000000000000001
    assert right([0, 1], [low, high], best_accuracy([0, 1], [low, high])) == 2


@pytest.mark.parametrize("seed", range(20))
def test_no_threshold_does_better(seed: int) -> None:
    random = Random(seed)
    values = [0.0, 0.2, 0.2, 0.4, 0.5, 0.6, 0.8, 1.0]
    probas = [random.choice(values) for _ in range(9)]
    labels = [random.randint(0, 1) for _ in probas]
    every = sorted({0.0, 1.0, *values, *((a + b) / 2 for a, b in product(values, values))})
    assert right(labels, probas, best_accuracy(labels, probas)) == max(
        right(labels, probas, t) for t in every
    )
