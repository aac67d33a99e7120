"""Metrics of predictions and their confidence intervals.

Two metrics have 95 % intervals. That of the accuracy is Wilson's score interval (E. B. Wilson, *Probable
Inference*, JASA 22, 1927). That of the AUROC, and the paired comparison of two AUROCs, use the method of
DeLong (E. DeLong et al., *Comparing the Areas under Two or More Correlated Receiver Operating Characteristic
Curves*, Biometrics 44, 1988), with the pairs counted by sorting as in X. Sun and W. Xu, *Fast Implementation
of DeLong's Algorithm*, IEEE Signal Processing Letters 21, 2014.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_BIN_COUNT = 15
_Z = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class MetricEstimate:
    """A metric, or the difference of two, with its 95 % interval.

    Attributes:
        value: The metric; ``None`` if the labels leave it undefined.
        low: Lower end of the interval. It is ``None`` if the metric is undefined or has no interval, and if
            the variance of the AUROC is 0 or, with one meme of a class, cannot be estimated.
        high: Upper end of the interval, ``None`` as for ``low``.
        p: For a difference with an interval, the two-sided p-value of no difference.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    p: float | None = None


def compute_metrics(
    labels: Sequence[int], probas: Sequence[float], *, threshold: float = 0.5, are_probabilities: bool = True
) -> dict[str, MetricEstimate]:
    """Score predictions.

    Args:
        labels: Label of each row, 0 or 1; at least one row.
        probas: Predicted probability of label 1 for each row, 0 to 1.
        threshold: Rows with a probability above it are predicted as 1. As in MMF, a tie is a 0.
        are_probabilities: Whether the values are probabilities. If not, only their order and their side of
            the threshold are scored.

    Returns:
        Estimates by metric name:

        - ``auroc``: area under the ROC curve; undefined if there is only one class.
        - ``accuracy``: share of correctly labelled rows.
        - ``average_precision``: of the hateful class; undefined without hateful rows.
        - ``f1``: of the hateful class; undefined if it is neither labelled nor predicted.
        - ``brier``: mean squared error of the probability; undefined for ranks.
        - ``calibration_error``: expected calibration error (M. Naeini et al., *Obtaining Well Calibrated
          Probabilities Using Bayesian Binning*, AAAI 2015); undefined for ranks.
    """
    y, p = np.asarray(labels), np.asarray(probas)
    predicted = p > threshold
    hateful = int(y.sum())
    accuracy = float((predicted == y).mean())
    true_positives, positives_sum = int((predicted & (y == 1)).sum()), int(predicted.sum()) + hateful
    # Σ over bins of |Σ (y − p)| / rows: the definition, with the counts of the bins cancelled out.
    calibration_error = float(np.abs(np.bincount(calibration_bins(p), y - p)).sum() / len(y))
    return {
        "auroc": _auroc(y, p) if 0 < hateful < len(y) else MetricEstimate(None),
        "accuracy": MetricEstimate(accuracy, *_wilson_interval(accuracy, len(y))),
        "average_precision": MetricEstimate(_average_precision(y, p) if hateful else None),
        "f1": MetricEstimate(2 * true_positives / positives_sum if positives_sum else None),
        "brier": MetricEstimate(float(((p - y) ** 2).mean()) if are_probabilities else None),
        "calibration_error": MetricEstimate(calibration_error if are_probabilities else None),
    }


def auroc_difference(labels: Sequence[int], first: Sequence[float], second: Sequence[float]) -> MetricEstimate:
    """Return the AUROC of the first prediction minus that of the second, with DeLong's test.

    The difference is undefined if there is only one class.

    Args:
        labels: Label of each row, 0 or 1.
        first: Probabilities of the first model.
        second: Probabilities of the second model, in the same order.
    """
    y, p, q = np.asarray(labels), np.asarray(first), np.asarray(second)
    if not 0 < y.sum() < len(y):
        return MetricEstimate(None)
    value, error = _delong_estimate(*(a - b for a, b in zip(_placements(y, p), _placements(y, q), strict=True)))
    if not error:
        return MetricEstimate(value)
    low, high = max(-1.0, value - _Z * error), min(1.0, value + _Z * error)
    return MetricEstimate(value, low, high, p=math.erfc(abs(value) / error / math.sqrt(2)))


def cumulative_counts(y: IntArray, p: FloatArray) -> tuple[IntArray, IntArray]:
    """Count hateful rows and all rows at or above each distinct probability.

    Args:
        y: Labels, int64 ``[rows]``, 0 or 1.
        p: Probabilities, float64 ``[rows]``.

    Returns:
        Two int64 arrays, one entry per distinct probability, highest first.
    """
    order = np.argsort(-p, kind="stable")
    last_of_ties = np.flatnonzero(np.diff(p[order], append=-1))
    return np.cumsum(y[order])[last_of_ties], last_of_ties + 1


def calibration_bins(p: FloatArray) -> IntArray:
    """Return the index of each probability's bin; there are 15 bins of equal width, closed at the upper edge.

    The bins are those of C. Guo et al., *On Calibration of Modern Neural Networks*, ICML 2017.
    """
    return np.clip(np.ceil(p * _BIN_COUNT).astype(np.int64) - 1, 0, _BIN_COUNT - 1)


def _auroc(y: IntArray, p: FloatArray) -> MetricEstimate:
    value, error = _delong_estimate(*_placements(y, p))
    if not error:
        return MetricEstimate(value)
    return MetricEstimate(value, max(0.0, value - _Z * error), min(1.0, value + _Z * error))


def _placements(y: IntArray, p: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Count, for each row, the rows of the other class that are ranked correctly against it.

    Returns:
        For each hateful row, the number of benign rows below it; for each benign row, the number of hateful
        rows above it. A tie counts 0.5.
    """

    def count_below(rows: FloatArray, others: FloatArray) -> FloatArray:
        others = np.sort(others)
        return np.asarray((np.searchsorted(others, rows) + np.searchsorted(others, rows, "right")) / 2)

    hateful, benign = p[y == 1], p[y == 0]
    return count_below(hateful, benign), count_below(-benign, -hateful)


def _delong_estimate(hateful_counts: FloatArray, benign_counts: FloatArray) -> tuple[float, float]:
    """Return an AUROC, or a difference of two, and its standard error.

    Args:
        hateful_counts: Counts per hateful row from :func:`_placements`, or a difference of two such
            counts. They are multiples of 0.5, so rounding cannot hide a variance of 0.
        benign_counts: Counts per benign row.

    Returns:
        The value and its standard error, which is 0 if it cannot be estimated.
    """
    hateful, benign = len(hateful_counts), len(benign_counts)
    value = float(hateful_counts.sum() / (hateful * benign))
    if min(hateful, benign) < 2:
        return value, 0.0
    variance = hateful_counts.var(ddof=1) / (hateful * benign**2) + benign_counts.var(ddof=1) / (benign * hateful**2)
    return value, math.sqrt(variance)


def _average_precision(y: IntArray, p: FloatArray) -> float:
    """Return the mean of the precision at each threshold, weighted by the gain in recall."""
    true_positives, selected = cumulative_counts(y, p)
    return float((np.diff(true_positives, prepend=0) * (true_positives / selected)).sum() / true_positives[-1])


def _wilson_interval(share: float, rows: int) -> tuple[float, float]:
    """Return the ends of Wilson's score interval for a share of the rows."""
    squared = _Z * _Z / rows
    middle = share + squared / 2
    half = _Z * ((share * (1 - share) + squared / 4) / rows) ** 0.5
    low, high = ((middle + side) / (1 + squared) for side in (-half, half))
    return max(0.0, low), min(1.0, high)  # rounding can exceed 0 and 1
