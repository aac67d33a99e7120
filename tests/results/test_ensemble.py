import math

import pytest

from mmf_win.results.ensemble import KINDS, blend, logits, ranks


def test_the_mean_is_of_the_probabilities() -> None:
    assert blend("mean", [[0.2, 0.8], [0.4, 1.0]]) == pytest.approx([0.3, 0.9])


def test_ranks_go_from_0_to_1_and_equal_values_share_theirs() -> None:
    assert ranks([0.3, 0.1, 0.9]) == [0.5, 0, 1]
    assert ranks([0.5, 0.1, 0.5, 0.5, 0.9]) == [0.5, 0, 0.5, 0.5, 1]
    assert ranks([0.4, 0.4]) == [0.5, 0.5]
    assert ranks([0.7]) == [0.5]


def test_ranks_forget_how_far_apart_the_probabilities_are() -> None:
    assert blend("rank", [[0.1, 0.2, 0.3], [0.99, 0.98, 0.5]]) == [0.5, 0.5, 0.5]


def test_the_logit_mean_lets_a_sure_member_say_more() -> None:
    (blended,) = blend("logit", [[0.999], [0.4]])
    assert blended == pytest.approx(1 / (1 + math.sqrt(0.001 / 0.999 * 0.6 / 0.4)))
    assert blended > blend("mean", [[0.999], [0.4]])[0]


def test_a_probability_of_0_or_1_has_a_finite_logit() -> None:
    assert all(map(math.isfinite, logits([0.0, 1.0])))
    assert blend("logit", [[0.0, 1.0], [1.0, 1.0]]) == pytest.approx([0.5, 1.0])


@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_changes_the_order_of_a_single_member(kind: str) -> None:
    member = [0.7, 0.1, 0.5, 0.9, 0.11]
    blended = blend(kind, [member])
    assert sorted(range(5), key=blended.__getitem__) == sorted(range(5), key=member.__getitem__)
    assert all(0 <= value <= 1 for value in blended)


def test_members_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError):
        blend("mean", [[0.1], [0.1, 0.2]])
