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

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

_BINS = 15
_Z = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class Score:
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


def measure(
    labels: Sequence[int], probas: Sequence[float], *, threshold: float = 0.5, calibrated: bool = True
) -> dict[str, Score]:
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
        "auroc": _auroc(y, p) if 0 < hateful < len(y) else Score(None),
        "accuracy": Score(right, *_wilson(right, len(y))),
        "average_precision": Score(_average_precision(y, p) if hateful else None),
        "f1": Score(2 * both / either if either else None),
        "brier": Score(float(((p - y) ** 2).mean()) if calibrated else None),
        "calibration_error": Score(calibration_error if calibrated else None),
    }


def auroc_difference(labels: Sequence[int], first: Sequence[float], second: Sequence[float]) -> Score:
    """The first prediction's AUROC less the second's, by DeLong's test; undefined for one class only.

    The probabilities of two models and the labels are as for :func:`measure`.
    """
    y, p, q = np.asarray(labels), np.asarray(first), np.asarray(second)
    if not 0 < y.sum() < len(y):
        return Score(None)
    value, error = _delong(*(ours - theirs for ours, theirs in zip(_pairs(y, p), _pairs(y, q), strict=True)))
    if not error:
        return Score(value)
    low, high = max(-1.0, value - _Z * error), min(1.0, value + _Z * error)
    return Score(value, low, high, p=math.erfc(abs(value) / error / math.sqrt(2)))


def found_above(y: Integers, p: Floats) -> tuple[Integers, Integers]:
    """Of the rows with each probability or a higher one, how many are hateful and how many there are."""
    order = np.argsort(-p, kind="stable")
    last_of_equal_ones = np.flatnonzero(np.diff(p[order], append=-1))
    return np.cumsum(y[order])[last_of_equal_ones], last_of_equal_ones + 1


def calibration_bins(p: Floats) -> Integers:
    """Which of 15 bins of equal width each probability is in; a bin holds its upper edge.

    As in C. Guo et al., *On Calibration of Modern Neural Networks*, ICML 2017.
    """
    return np.clip(np.ceil(p * _BINS).astype(np.int64) - 1, 0, _BINS - 1)


def _auroc(y: Integers, p: Floats) -> Score:
    value, error = _delong(*_pairs(y, p))
    return Score(value, max(0.0, value - _Z * error), min(1.0, value + _Z * error)) if error else Score(value)


def _pairs(y: Integers, p: Floats) -> tuple[Floats, Floats]:
    """For each hateful row, how many benign ones are below it, and for each benign one, how many hateful ones
    are above it; a tie counts half.
    """

    def below(rows: Floats, others: Floats) -> Floats:
        others = np.sort(others)
        return np.asarray((np.searchsorted(others, rows) + np.searchsorted(others, rows, "right")) / 2)

    hateful, benign = p[y == 1], p[y == 0]
    return below(hateful, benign), below(-benign, -hateful)


def _delong(of_hateful: Floats, of_benign: Floats) -> tuple[float, float]:
    """An AUROC or a difference of two and its standard error, 0 where that cannot be estimated.

    The arguments are what :func:`_pairs` counts, or a difference of such counts: whole or half numbers, so
    that no rounding hides a variance of 0.
    """
    hateful, benign = len(of_hateful), len(of_benign)
    value = float(of_hateful.sum() / (hateful * benign))
    if min(hateful, benign) < 2:
        return value, 0.0
    variance = of_hateful.var(ddof=1) / (hateful * benign**2) + of_benign.var(ddof=1) / (benign * hateful**2)
    return value, math.sqrt(variance)


def _average_precision(y: Integers, p: Floats) -> float:
    """The precision at each threshold, weighted by the recall that it adds."""
    found, chosen = found_above(y, p)
    return float((np.diff(found, prepend=0) * (found / chosen)).sum() / found[-1])


def _wilson(share: float, rows: int) -> tuple[float, float]:
    """The ends of Wilson's score interval of a share of the rows."""
    squared = _Z * _Z / rows
    middle = share + squared / 2
    half = _Z * ((share * (1 - share) + squared / 4) / rows) ** 0.5
    low, high = ((middle + side) / (1 + squared) for side in (-half, half))
    return max(0.0, low), min(1.0, high)  # rounding leaves 0 and 1 by a hair
