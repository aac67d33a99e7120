"""Scores: by hand, beside scikit-learn, and where the labels leave nothing to score."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

with suppress(ImportError):  # where the extra `train` is not installed, these tests are not run
    import numpy as np
    import numpy.typing as npt
    from scipy import stats as scipy
    from sklearn import metrics as sklearn

    from mmf_win.results import metrics

pytestmark = pytest.mark.torch

NAMES = ("auroc", "accuracy", "average_precision", "f1", "brier", "calibration_error")


def sample(rows: int, seed: int = 0, *, digits: int | None = None) -> tuple[list[int], list[float]]:
    """Labels, and probabilities that tell something about them; few ``digits`` make ties."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, rows)
    labels[:2] = 0, 1
    probas = np.clip(random.normal(0.35 + 0.2 * labels, 0.25), 0, 1)
    return labels.tolist(), (probas if digits is None else probas.round(digits)).tolist()


def test_a_case_computed_by_hand() -> None:
    """Of the four pairs of a hateful and a benign meme, three are in the right order."""
    scores = metrics.measure([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8], samples=0)
    assert scores["auroc"].value == 0.75
    assert scores["accuracy"].value == 0.75
    assert scores["average_precision"].value == pytest.approx((1 + 2 / 3) / 2)
    assert scores["f1"].value == pytest.approx(2 / 3)
    assert scores["brier"].value == pytest.approx((0.01 + 0.16 + 0.4225 + 0.04) / 4)
    # Of the bins of 1/15, only the one that ends at 0.4 holds two rows: 0.35, which is hateful, and 0.4.
    assert scores["calibration_error"].value == pytest.approx((0.1 + (0.65 - 0.4) + 0.2) / 4)


def test_calibration_compares_the_means_of_a_bin() -> None:
    error = metrics.calibration(np.array([1, 0, 1, 1]), np.array([0.91, 0.92, 0.93, 0.05]), bins=2)
    assert error(np.ones((1, 4))) == pytest.approx(3 / 4 * abs(2 / 3 - 0.92) + 1 / 4 * abs(1 - 0.05))


def test_the_edges_of_probability_have_bins() -> None:
    for labels, error in (([0, 1], 0), ([1, 0], 1)):
        assert metrics.measure(labels, [0.0, 1.0], samples=0)["calibration_error"].value == error


@pytest.mark.parametrize("digits", [None, 1, 0], ids=["no ties", "ties", "zeros and ones"])
@pytest.mark.parametrize("rows", [2, 3, 10, 257])
def test_values_agree_with_scikit_learn(rows: int, digits: int | None) -> None:
    labels, probas = sample(rows, seed=rows, digits=digits)
    scores = metrics.measure(labels, probas, samples=0)
    chosen = [int(p > 0.5) for p in probas]
    expected = {
        "auroc": sklearn.roc_auc_score(labels, probas),
        "accuracy": sklearn.accuracy_score(labels, chosen),
        "average_precision": sklearn.average_precision_score(labels, probas),
        "f1": sklearn.f1_score(labels, chosen),
        "brier": sklearn.brier_score_loss(labels, probas),
    }
    assert {name: scores[name].value for name in expected} == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("digits", [None, 1, 0], ids=["no ties", "ties", "zeros and ones"])
def test_draws_are_scored_as_scikit_learn_scores_the_rows_that_were_drawn(digits: int | None) -> None:
    labels, probas = map(np.array, sample(60, digits=digits))
    weights = next(metrics._draws(60, 25, seed=3))
    expected = []
    for counts in weights.astype(int):
        y, p = labels.repeat(counts), probas.repeat(counts)
        assert len(y) == 60
        expected.append(
            {
                "auroc": sklearn.roc_auc_score(y, p),
                "accuracy": sklearn.accuracy_score(y, p > 0.5),
                "average_precision": sklearn.average_precision_score(y, p),
                "f1": sklearn.f1_score(y, p > 0.5),
                "brier": sklearn.brier_score_loss(y, p),
                "calibration_error": metrics.measure(y, p, samples=0)["calibration_error"].value,
            }
        )
    scorers = metrics._scorers(labels, probas, 0.5)
    for name in NAMES:
        values = [scores[name] for scores in expected]
        assert scorers[name](weights) == pytest.approx(values, abs=1e-12), name


@pytest.mark.parametrize("digits", [None, 1, 0], ids=["no ties", "ties", "zeros and ones"])
def test_the_curves_of_a_page_are_those_of_scikit_learn(digits: int | None) -> None:
    from mmf_win.results.report.plots import found_above

    labels, probas = map(np.array, sample(60, digits=digits))
    found, chosen = found_above(labels, probas)
    precision, recall, _ = sklearn.precision_recall_curve(labels, probas)
    # scikit-learn ends the curve in a point without predictions.
    assert found / chosen == pytest.approx(precision[-2::-1])
    assert found / labels.sum() == pytest.approx(recall[-2::-1])
    false, true, _ = sklearn.roc_curve(labels, probas, drop_intermediate=False)
    assert found / labels.sum() == pytest.approx(true[1:])
    assert (chosen - found) / (60 - labels.sum()) == pytest.approx(false[1:])


@pytest.mark.parametrize(("right", "rows"), [(16, 30), (0, 7), (7, 7), (1, 1), (850, 1000)])
def test_the_interval_of_the_accuracy_is_wilsons_as_in_scipy(right: int, rows: int) -> None:
    accuracy = metrics.measure([1] * right + [0] * (rows - right), [0.9] * rows)["accuracy"]
    expected = scipy.binomtest(right, rows).proportion_ci(0.95, "wilson")
    assert (accuracy.low, accuracy.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_other_intervals_are_those_of_scipys_bootstrap() -> None:
    def auroc(hateful: npt.NDArray[np.bool_], probas: npt.NDArray[np.float64], axis: int) -> Any:
        """The share of ordered pairs, by ranks, of many draws at once."""
        found, benign = hateful.sum(axis), (~hateful).sum(axis)
        ranks = scipy.rankdata(probas, axis=axis)
        return ((ranks * hateful).sum(axis) - found * (found + 1) / 2) / (found * benign)

    labels, probas = map(np.array, sample(80))
    found = metrics.measure(labels, probas)["auroc"]
    drawn = scipy.bootstrap((labels == 1, probas), auroc, paired=True, method="percentile", random_state=1)
    expected = drawn.confidence_interval
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.01)


def test_predictions_of_one_class_have_intervals_with_a_width() -> None:
    scores = metrics.measure([1] * 16 + [0] * 14, [0.9] * 30)
    for name in ("accuracy", "f1"):
        assert scores[name].high - scores[name].low > 0.2, name


def test_where_every_draw_gives_the_same_there_is_no_interval() -> None:
    scores = metrics.measure([0] * 15 + [1] * 15, [0.1] * 15 + [0.9] * 15)
    assert {name for name in NAMES if scores[name].low is not None} == {"accuracy"}
    assert all(scores[name].high is None for name in NAMES if name != "accuracy")
    constant = metrics.measure([0, 1] * 11, [0.3, 0.7] * 11)["brier"]
    assert (constant.value, constant.low) == (pytest.approx(0.09), None), "sums are rounded"


def test_draws_in_which_a_metric_is_undefined_are_left_out() -> None:
    """A single hateful meme is missing in a third of the draws, which then have no AUROC."""
    labels, probas = [1, 0, 0, 0, 0], [0.5, 0.1, 0.4, 0.6, 0.9]
    scores = metrics.measure(labels, probas)
    assert 0 <= scores["auroc"].low < scores["auroc"].high <= 1
    difference = metrics.auroc_difference(labels, probas, probas[::-1])
    assert -1 <= difference.low <= difference.high <= 1
    assert 0 < difference.p <= 1


def test_the_same_rows_have_the_same_intervals() -> None:
    labels, probas = sample(50)
    first, again = (metrics.measure(labels, probas, samples=100) for _ in range(2))
    assert first == again
    assert metrics.measure(labels, probas, samples=100, seed=1) != first
    assert first["auroc"].low < first["auroc"].value < first["auroc"].high


def test_draws_made_in_several_blocks_are_as_many_as_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_CELLS", 35)
    assert [len(block) for block in metrics._draws(10, 8, seed=0)] == [3, 3, 2]


@pytest.mark.parametrize(
    ("labels", "undefined"),
    [([0, 0, 0], {"auroc", "average_precision", "f1"}), ([1, 1, 1], {"auroc"})],
    ids=["benign", "hateful"],
)
def test_what_one_class_leaves_undefined_is_none(labels: list[int], undefined: set[str]) -> None:
    scores = metrics.measure(labels, [0.1, 0.2, 0.3], samples=50)
    assert {name for name in NAMES if scores[name].value is None} == undefined
    for name in NAMES:
        ends = (scores[name].low, scores[name].high)
        assert (None in ends) == (name in {*undefined, "average_precision", "f1"}), name


def test_the_threshold_moves_accuracy_and_nothing_that_is_about_order() -> None:
    labels, probas = sample(100)
    half, other = (metrics.measure(labels, probas, threshold=t, samples=0) for t in (0.5, 0.7))
    assert half["accuracy"] != other["accuracy"]
    assert half["auroc"] == other["auroc"]


def test_a_model_is_no_better_than_itself_and_better_than_chance() -> None:
    labels, probas = sample(300)
    noise = np.random.default_rng(5).random(300).tolist()
    itself = metrics.auroc_difference(labels, probas, probas, samples=200)
    assert (itself.value, itself.low, itself.high, itself.p) == (0, None, None, 1)
    better = metrics.auroc_difference(labels, probas, noise, samples=200)
    assert better.low > 0
    assert better.p == pytest.approx(2 / 201)
    worse = metrics.auroc_difference(labels, noise, probas, samples=200)
    assert worse.value == -better.value
    assert worse.p == better.p
    assert metrics.auroc_difference([1, 1], [0.1, 0.2], [0.2, 0.1]) is None


@pytest.mark.parametrize(
    ("labels", "probas"), [([], []), ([1], [0.5, 0.5]), ([2], [0.5])], ids=["nothing", "lengths", "labels"]
)
def test_what_cannot_be_scored_is_refused(labels: list[int], probas: list[float]) -> None:
    with pytest.raises(ValueError):
        metrics.measure(labels, probas)
