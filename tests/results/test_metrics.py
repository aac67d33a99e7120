"""Metrics: values computed by hand and by scikit-learn, undefined metrics, and the metrics record."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mmf_win.dataset.annotations import AnnotationRow
from mmf_win.dataset.coverage import Coverage
from mmf_win.results.report.scored_split import ScoredMeme, ScoredSplit
from tests.worlds.tools import LazyModule, requires_package

np = LazyModule("numpy")
scipy = LazyModule("scipy.stats")
sklearn = LazyModule("sklearn.metrics")
metrics = LazyModule("mmf_win.results.metrics")
saved_metrics = LazyModule("mmf_win.results.metrics_file")

pytestmark = [pytest.mark.torch, requires_package("numpy", "scipy", "sklearn")]

NAMES = ("auroc", "accuracy", "average_precision", "f1", "brier", "calibration_error")


def make_sample(rows: int, seed: int = 0, *, digits: int | None = None) -> tuple[list[int], list[float]]:
    """Return labels and correlated probabilities; few ``digits`` produce ties."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, rows)
    labels[:2] = 0, 1
    probas = np.clip(random.normal(0.35 + 0.2 * labels, 0.25), 0, 1)
    return labels.tolist(), (probas if digits is None else probas.round(digits)).tolist()


def test_metrics_match_values_computed_by_hand() -> None:
    """Three of the four pairs of a hateful and a benign meme are ranked correctly.

    The hateful memes are above 1 and 2 of the benign ones, which are below 2 and 1 of the hateful ones.
    Both components are therefore 1/2 and 1, with a variance of 1/8; the variance of the AUROC is
    1/8 / 2 + 1/8 / 2.
    """
    scores = metrics.compute_metrics([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8])
    assert (scores["auroc"].value, scores["auroc"].low) == (0.75, pytest.approx(0.75 - 1.959964 / 8**0.5))
    assert scores["auroc"].high == 1, "the upper bound must be at most 1"
    assert scores["accuracy"].value == 0.75
    assert scores["average_precision"].value == pytest.approx((1 + 2 / 3) / 2)
    assert scores["f1"].value == pytest.approx(2 / 3)
    assert scores["brier"].value == pytest.approx((0.01 + 0.16 + 0.4225 + 0.04) / 4)
    # Only the bin that ends at 0.4 (width 1/15) has two rows: 0.35, which is hateful, and 0.4.
    assert scores["calibration_error"].value == pytest.approx((0.1 + (0.65 - 0.4) + 0.2) / 4)


def test_probabilities_0_and_1_have_calibration_bins() -> None:
    for labels, error in (([0, 1], 0), ([1, 0], 1)):
        assert metrics.compute_metrics(labels, [0.0, 1.0])["calibration_error"].value == error


@pytest.mark.parametrize("digits", [None, 1, 0], ids=["no ties", "ties", "zeros and ones"])
@pytest.mark.parametrize("rows", [2, 3, 10, 257])
def test_values_agree_with_scikit_learn(rows: int, digits: int | None) -> None:
    labels, probas = make_sample(rows, seed=rows, digits=digits)
    scores = metrics.compute_metrics(labels, probas)
    decisions = [int(p > 0.5) for p in probas]
    expected = {
        "auroc": sklearn.roc_auc_score(labels, probas),
        "accuracy": sklearn.accuracy_score(labels, decisions),
        "average_precision": sklearn.average_precision_score(labels, probas),
        "f1": sklearn.f1_score(labels, decisions),
        "brier": sklearn.brier_score_loss(labels, probas),
    }
    assert {name: scores[name].value for name in expected} == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("digits", [None, 1, 0], ids=["no ties", "ties", "zeros and ones"])
def test_curves_agree_with_scikit_learn(digits: int | None) -> None:
    labels, probas = map(np.array, make_sample(60, digits=digits))
    true_positives, selected = metrics.cumulative_counts(labels, probas)
    precision, recall, _ = sklearn.precision_recall_curve(labels, probas)
    # The last point of scikit-learn's curve has no predictions.
    assert true_positives / selected == pytest.approx(precision[-2::-1])
    assert true_positives / labels.sum() == pytest.approx(recall[-2::-1])
    false_rate, true_rate, _ = sklearn.roc_curve(labels, probas, drop_intermediate=False)
    assert true_positives / labels.sum() == pytest.approx(true_rate[1:])
    assert (selected - true_positives) / (60 - labels.sum()) == pytest.approx(false_rate[1:])


@pytest.mark.parametrize(("correct", "rows"), [(16, 30), (0, 7), (7, 7), (1, 1), (850, 1000)])
def test_accuracy_interval_agrees_with_scipy(correct: int, rows: int) -> None:
    accuracy = metrics.compute_metrics([1] * correct + [0] * (rows - correct), [0.9] * rows)["accuracy"]
    expected = scipy.binomtest(correct, rows).proportion_ci(0.95, "wilson")
    assert (accuracy.low, accuracy.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


def compute_auroc(labels: list[int], probas: list[float]) -> Any:
    return metrics.compute_metrics(labels, probas)["auroc"]


def compute_covariance(labels: list[int], *columns: list[float]) -> Any:
    """Return the covariance of several predictions' AUROCs, pair by pair as in DeLong et al."""
    hateful, benign = (np.array(columns)[:, np.array(labels) == side] for side in (1, 0))
    pairs = np.heaviside(hateful[:, :, None] - benign[:, None, :], 0.5)
    s10, s01 = (np.atleast_2d(np.cov(pairs.mean(axis=axis))) for axis in (2, 1))
    return np.asarray(s10 / pairs.shape[1] + s01 / pairs.shape[2])


@pytest.mark.parametrize("digits", [None, 1, 0], ids=["no ties", "ties", "zeros and ones"])
def test_auroc_intervals_and_differences_follow_delong(digits: int | None) -> None:
    labels, probas = make_sample(150, digits=digits)
    others = np.clip(np.array(probas) + np.random.default_rng(9).normal(0, 0.5, 150), 0, 1)
    others = (others if digits is None else others.round(digits)).tolist()
    variances = compute_covariance(labels, probas, others)
    score, difference = compute_auroc(labels, probas), metrics.auroc_difference(labels, probas, others)
    margin = scipy.norm.ppf(0.975) * variances[0, 0] ** 0.5
    assert (score.low, score.high) == pytest.approx((score.value - margin, score.value + margin))
    error = np.sqrt([1, -1] @ variances @ [1, -1])
    value = score.value - compute_auroc(labels, others).value
    expected = (value, *scipy.norm.interval(0.95, value, error), 2 * scipy.norm.sf(abs(value) / error))
    assert (difference.value, difference.low, difference.high, difference.p) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("labels", "probas"),
    [
        ([0] * 15 + [1] * 15, [0.1] * 15 + [0.9] * 15),
        ([1] * 15 + [0] * 15, [0.1] * 15 + [0.9] * 15),
        ([0, 1] * 15, [0.3] * 30),
        ([1, 0, 0, 0], [0.5, 0.1, 0.6, 0.9]),
        ([0, 1], [0.3, 0.6]),
    ],
    ids=["perfect", "reversed", "all equal", "one hateful meme", "two memes"],
)
def test_auroc_without_variance_has_no_interval(labels: list[int], probas: list[float]) -> None:
    score = compute_auroc(labels, probas)
    assert score.value == pytest.approx(sklearn.roc_auc_score(labels, probas))
    assert score.low is None and score.high is None


@pytest.mark.parametrize(
    ("labels", "undefined"),
    [([0, 0, 0], {"auroc", "average_precision", "f1"}), ([1, 1, 1], {"auroc"})],
    ids=["benign", "hateful"],
)
def test_metrics_undefined_for_one_class_are_none(labels: list[int], undefined: set[str]) -> None:
    scores = metrics.compute_metrics(labels, [0.1, 0.2, 0.3])
    assert {name for name in NAMES if scores[name].value is None} == undefined
    assert all(scores[name].low is None for name in undefined)


def test_threshold_changes_accuracy_but_not_auroc() -> None:
    labels, probas = make_sample(100)
    half, other = (metrics.compute_metrics(labels, probas, threshold=t) for t in (0.5, 0.7))
    assert half["accuracy"] != other["accuracy"]
    assert half["auroc"] == other["auroc"]


def test_auroc_difference_of_equal_and_of_random_predictions() -> None:
    labels, probas = make_sample(300)
    noise = np.random.default_rng(5).random(300).tolist()
    itself = metrics.auroc_difference(labels, probas, probas)
    assert (itself.value, itself.low, itself.high, itself.p) == (0, None, None, None)
    better = metrics.auroc_difference(labels, probas, noise)
    assert better.low > 0
    assert better.p < 0.001
    worse = metrics.auroc_difference(labels, noise, probas)
    assert worse.value == -better.value
    assert (worse.low, worse.high, worse.p) == (-better.high, -better.low, better.p)
    assert metrics.auroc_difference([1, 1], [0.1, 0.2], [0.2, 0.1]).value is None


def make_predictions(rows: Sequence[AnnotationRow], probas: Sequence[float], kind: str | None = None) -> ScoredSplit:
    """Return predictions without a file."""
    memes = tuple(ScoredMeme(row, proba, 0) for row, proba in zip(rows, probas, strict=True))
    return ScoredSplit(Path("a.csv"), "test", Path("test.jsonl"), "", memes, {"ensemble": kind}, Coverage("test", 1))


def make_score_record(labels: Sequence[int | None]) -> dict[str, Any]:
    """Return the record of predictions that rise from row to row."""
    rows = [AnnotationRow(n, f"img/{n}.png", "", label, n + 1) for n, label in enumerate(labels)]
    record = make_predictions(rows, [(n + 1) / (len(labels) + 1) for n in range(len(labels))]).score_record
    assert json.loads(json.dumps(record, allow_nan=False)) == record, "JSON has no NaN"
    return record


def test_auroc_and_accuracy_have_intervals_around_them() -> None:
    record = make_score_record([n % 3 % 2 for n in range(10_000)])
    assert (record["rows"], record["hateful"]) == (10_000, 3333)
    assert set(record["intervals"]) == {"auroc", "accuracy"}
    for name, (low, high) in record["intervals"].items():
        assert low < record[name] < high


def test_ranks_have_no_brier_score_or_calibration_error() -> None:
    rows = [AnnotationRow(n, f"img/{n}.png", "", n % 2, n + 1) for n in range(4)]
    rank_metrics, mean_metrics = (
        make_predictions(rows, [n / 3 for n in range(4)], kind).metrics for kind in ("rank", "mean")
    )
    undefined = {name for name in saved_metrics.METRIC_TITLES if rank_metrics[name].value is None}
    assert undefined == {"brier", "calibration_error"}
    assert rank_metrics["auroc"] == mean_metrics["auroc"]


@pytest.mark.parametrize("labels", [[], [None, None], [0, 1, None]])
def test_partially_labelled_rows_have_no_scores(labels: list[int | None]) -> None:
    record = make_score_record(labels)
    assert record["rows"] == len(labels)
    assert record["hateful"] is None and record["intervals"] == {}
    assert all(record[name] is None for name in saved_metrics.METRIC_TITLES)


@pytest.mark.parametrize("content", [None, b"{", b"[]", b"\xff"])
def test_unreadable_metrics_record_is_empty(tmp_path: Path, content: bytes | None) -> None:
    csv = tmp_path / "predictions.csv"
    if content is not None:
        saved_metrics.metrics_path(csv).write_bytes(content)
    assert saved_metrics.read_metrics(csv) == {}
