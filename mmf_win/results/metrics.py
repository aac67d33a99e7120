"""How good predictions are, and how sure that is.

Two metrics have intervals of 95 %. That of the accuracy is Wilson's score interval (E. B. Wilson, *Probable
Inference*, JASA 22, 1927). That of the AUROC, and the paired comparison of two, are by the method of DeLong
(E. DeLong et al., *Comparing the Areas under Two or More Correlated Receiver Operating Characteristic
Curves*, Biometrics 44, 1988), with the pairs counted by sorting, as X. Sun and W. Xu do (*Fast Implementation
of DeLong's Algorithm*, IEEE Signal Processing Letters 21, 2014).
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
    """One metric, or the difference of two.

    Attributes:
        value: None where the labels leave it undefined.
        low, high: the ends of its interval of 95 %; None with the value, for a metric that has none, and
            where the variance of the AUROC is 0 or, with one meme of a class, cannot be estimated.
        p: of a difference that has an interval, the two-sided p-value of no difference.
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
        labels: 0 or 1 for each row; at least one row.
        probas: the probability of 1 for each row, 0 to 1.
        threshold: a probability above it is a 1, as MMF breaks the tie of 0.5.
        calibrated: whether the probabilities are meant as such; if not, only their order and side count.

    Returns:
        By the name of the metric:

        - ``auroc``: area under the ROC curve; undefined for one class only.
        - ``accuracy``: share of the rows whose label was found.
        - ``average_precision``: of the hateful class; undefined without any.
        - ``f1``: of the hateful class; undefined where it is neither there nor predicted.
        - ``brier``: mean squared error of the probability; undefined for what is none, such as ranks.
        - ``calibration_error``: the expected one (M. Naeini et al., *Obtaining Well Calibrated Probabilities
          Using Bayesian Binning*, AAAI 2015); undefined as well.
    """
    y, p = np.asarray(labels), np.asarray(probas)
    chosen = p > threshold
    hateful = int(y.sum())
    right = float((chosen == y).mean())
    both, either = int((chosen & (y == 1)).sum()), int(chosen.sum()) + hateful
    # Σ over bins of |Σ (y − p)| / rows, which is that of the definition with the bins' counts cancelled.
    calibration_error = float(np.abs(np.bincount(calibration_bins(p), y - p)).sum() / len(y))
    return {
        "auroc": _auroc(y, p) if 0 < hateful < len(y) else MetricEstimate(None),
        "accuracy": MetricEstimate(right, *_wilson_interval(right, len(y))),
        "average_precision": MetricEstimate(_average_precision(y, p) if hateful else None),
        "f1": MetricEstimate(2 * both / either if either else None),
        "brier": MetricEstimate(float(((p - y) ** 2).mean()) if are_probabilities else None),
        "calibration_error": MetricEstimate(calibration_error if are_probabilities else None),
    }


def auroc_difference(
    labels: Sequence[int], first: Sequence[float], second: Sequence[float]
) -> MetricEstimate:
    """The first prediction's AUROC less the second's, by DeLong's test; undefined for one class only.

    The probabilities of two models and the labels are as for :func:`compute_metrics`.
    """
    y, p, q = np.asarray(labels), np.asarray(first), np.asarray(second)
    if not 0 < y.sum() < len(y):
        return MetricEstimate(None)
    value, error = _delong_estimate(
        *(
            ours - theirs
            for ours, theirs in zip(_placement_counts(y, p), _placement_counts(y, q), strict=True)
        )
    )
    if not error:
        return MetricEstimate(value)
    low, high = max(-1.0, value - _Z * error), min(1.0, value + _Z * error)
    return MetricEstimate(value, low, high, p=math.erfc(abs(value) / error / math.sqrt(2)))


def cumulative_counts(y: IntArray, p: FloatArray) -> tuple[IntArray, IntArray]:
    """Of the rows with each probability or a higher one, how many are hateful and how many there are."""
    order = np.argsort(-p, kind="stable")
    last_of_equal_ones = np.flatnonzero(np.diff(p[order], append=-1))
    return np.cumsum(y[order])[last_of_equal_ones], last_of_equal_ones + 1


def calibration_bins(p: FloatArray) -> IntArray:
    """Which of 15 bins of equal width each probability is in; a bin holds its upper edge.

    As in C. Guo et al., *On Calibration of Modern Neural Networks*, ICML 2017.
    """
    return np.clip(np.ceil(p * _BIN_COUNT).astype(np.int64) - 1, 0, _BIN_COUNT - 1)


def _auroc(y: IntArray, p: FloatArray) -> MetricEstimate:
    value, error = _delong_estimate(*_placement_counts(y, p))
    return (
        MetricEstimate(value, max(0.0, value - _Z * error), min(1.0, value + _Z * error))
        if error
        else MetricEstimate(value)
    )


def _placement_counts(y: IntArray, p: FloatArray) -> tuple[FloatArray, FloatArray]:
    """For each hateful row, how many benign ones are below it, and for each benign one, how many hateful ones
    are above it; a tie counts half.
    """

    def count_below(rows: FloatArray, others: FloatArray) -> FloatArray:
        others = np.sort(others)
        return np.asarray((np.searchsorted(others, rows) + np.searchsorted(others, rows, "right")) / 2)

    hateful, benign = p[y == 1], p[y == 0]
    return count_below(hateful, benign), count_below(-benign, -hateful)


def _delong_estimate(hateful_counts: FloatArray, benign_counts: FloatArray) -> tuple[float, float]:
    """An AUROC or a difference of two and its standard error, 0 where that cannot be estimated.

    The arguments are what :func:`_placement_counts` counts, or a difference of such counts: whole or half
    numbers, so that no rounding hides a variance of 0.
    """
    hateful, benign = len(hateful_counts), len(benign_counts)
    value = float(hateful_counts.sum() / (hateful * benign))
    if min(hateful, benign) < 2:
        return value, 0.0
    variance = hateful_counts.var(ddof=1) / (hateful * benign**2) + benign_counts.var(ddof=1) / (
        benign * hateful**2
    )
    return value, math.sqrt(variance)


def _average_precision(y: IntArray, p: FloatArray) -> float:
    """The precision at each threshold, weighted by the recall that it adds."""
    found, chosen = cumulative_counts(y, p)
    return float((np.diff(found, prepend=0) * (found / chosen)).sum() / found[-1])


def _wilson_interval(share: float, rows: int) -> tuple[float, float]:
    """The ends of Wilson's score interval of a share of the rows."""
    squared = _Z * _Z / rows
    middle = share + squared / 2
    half = _Z * ((share * (1 - share) + squared / 4) / rows) ** 0.5
    low, high = ((middle + side) / (1 + squared) for side in (-half, half))
    return max(0.0, low), min(1.0, high)  # rounding leaves 0 and 1 by a hair
