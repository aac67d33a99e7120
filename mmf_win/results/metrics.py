"""How good predictions are, and how sure that is.

The interval of the accuracy is Wilson's score interval (E. B. Wilson, *Probable Inference*, JASA 22, 1927).
The others are percentile intervals of a bootstrap: rows are drawn with replacement, whatever their class, and
draws in which a metric is undefined are left out (B. Efron and R. Tibshirani, *An Introduction to the
Bootstrap*, 1993, chapter 13). Where the draws give one value, they do not tell how sure it is, and there is
no interval.

To draw rows is to weight them by how often they were drawn, so all draws are scored at once by each metric's
weighted form. The value is that of weight one everywhere. scikit-learn gives the same numbers, but scores one
draw at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Weighted = Callable[[Floats], Floats]

SAMPLES = 2000
"""Draws of the bootstrap."""

CALIBRATION_BINS = 15
"""Bins of the expected calibration error, as in Guo et al. 2017."""

_CELLS = 1 << 22  # of a block of draws: 32 MiB of weights
_SAME = 1e-12  # apart by rounding alone
_Z = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class Score:
    """One metric.

    Attributes:
        value: on the rows as they are; None where the labels leave it undefined.
        low, high: the ends of its interval of 95 %; None with the value, and where the draws give one value.
            The calibration error of a drawn set is on average larger than the set's own, so its interval may
            lie above its value.
    """

    value: float | None
    low: float | None = None
    high: float | None = None


def measure(
    labels: Sequence[int],
    probas: Sequence[float],
    *,
    threshold: float = 0.5,
    calibrated: bool = True,
    samples: int = SAMPLES,
    seed: int = 0,
) -> dict[str, Score]:
    """Score predictions.

    Args:
        labels: 0 or 1 for each row; at least one row.
        probas: the probability of 1 for each row, 0 to 1.
        threshold: a probability above it is a 1, as MMF breaks the tie of 0.5.
        calibrated: whether the probabilities are meant as such; if not, only their order and side count.
        samples: draws of the bootstrap; 0 for no intervals.
        seed: of the draws, so that the same rows give the same intervals.

    Returns:
        By the name of the metric:

        - ``auroc``: area under the ROC curve; undefined for one class only.
        - ``accuracy``: share of the rows whose label was found.
        - ``average_precision``: of the hateful class; undefined without any.
        - ``f1``: of the hateful class; undefined where it is neither there nor predicted.
        - ``brier``: mean squared error of the probability; undefined for what is none, such as ranks.
        - ``calibration_error``: expected calibration error, see :func:`calibration`; undefined as well.
    """
    y, p = _arrays(labels, probas)
    scorers = _scorers(y, p, threshold)
    drawn: dict[str, list[Floats]] = {name: [] for name in scorers}
    with np.errstate(invalid="ignore"):  # what is undefined is NaN
        values = {name: _on_all_rows(scorer, y) for name, scorer in scorers.items()}
        for weights in _draws(len(y), samples, seed):
            for name, scorer in scorers.items():
                drawn[name].append(scorer(weights))
    undefined = set() if calibrated else {"brier", "calibration_error"}
    undefined |= {name for name, value in values.items() if np.isnan(value)}
    ends = {name: _ends(draws) for name, draws in drawn.items() if samples}
    if samples:
        ends["accuracy"] = _wilson(values["accuracy"], len(y))
    return {
        name: Score(None) if name in undefined else Score(value, *ends.get(name, ()))
        for name, value in values.items()
    }


@dataclass(frozen=True)
class AurocDifference:
    """How much better one prediction of the same rows is than another.

    Attributes:
        value: the metric of the first less that of the second.
        low, high: the ends of the bootstrap interval of 95 %; None where the draws give one value.
        p: two-sided p-value of no difference: twice the smaller share of draws on one side of zero.
    """

    value: float
    low: float | None
    high: float | None
    p: float


def auroc_difference(
    labels: Sequence[int],
    first: Sequence[float],
    second: Sequence[float],
    *,
    samples: int = SAMPLES,
    seed: int = 0,
) -> AurocDifference | None:
    """Compare the AUROC of two predictions by a paired bootstrap: both are scored on the same draws.

    Args:
        labels: 0 or 1 for each row.
        first: the probability of 1 for each row.
        second: the same, by another model.
        samples: draws of the bootstrap.
        seed: of the draws.

    Returns:
        None where there is one class only.
    """
    y, p = _arrays(labels, first)
    _, q = _arrays(labels, second)
    if not 0 < y.sum() < len(y):
        return None
    scorers = _auroc(y, p), _auroc(y, q)
    with np.errstate(invalid="ignore"):
        drawn = [scorers[0](weights) - scorers[1](weights) for weights in _draws(len(y), samples, seed)]
    known = _defined(drawn)
    # One is added to both counts: a p-value of 0 cannot be shown by any number of draws.
    tail = (min(np.sum(known <= 0), np.sum(known >= 0)) + 1) / (len(known) + 1)
    value = _on_all_rows(scorers[0], y) - _on_all_rows(scorers[1], y)
    low, high = _ends(drawn) or (None, None)
    return AurocDifference(value, low, high, p=float(min(1.0, 2 * tail)))


def _arrays(labels: Sequence[int], probas: Sequence[float]) -> tuple[npt.NDArray[np.int64], Floats]:
    y, p = np.asarray(labels, dtype=np.int64), np.asarray(probas, dtype=np.float64)
    if y.shape != p.shape or y.ndim != 1 or not len(y):
        raise ValueError(f"labels and probabilities of one length are needed, not {y.shape} and {p.shape}")
    if not np.isin(y, (0, 1)).all():
        raise ValueError("labels must be 0 or 1")
    return y, p


def _scorers(y: npt.NDArray[np.int64], p: Floats, threshold: float) -> dict[str, Weighted]:
    return {
        "auroc": _auroc(y, p),
        "accuracy": _mean(((p > threshold) == y).astype(np.float64)),
        "average_precision": _average_precision(y, p),
        "f1": _f1(y, p > threshold),
        "brier": _mean((p - y) ** 2),
        "calibration_error": calibration(y, p),
    }


def _on_all_rows(scorer: Weighted, y: npt.NDArray[np.int64]) -> float:
    return float(scorer(np.ones((1, len(y))))[0])


def _defined(drawn: Sequence[Floats]) -> Floats:
    values = np.concatenate(drawn)
    return values[~np.isnan(values)]


def _ends(drawn: Sequence[Floats]) -> tuple[float, float] | tuple[()]:
    """The ends of the percentile interval; none where the draws give one value, or are undefined."""
    known = _defined(drawn)
    if not len(known) or np.ptp(known) <= _SAME:
        return ()
    low, high = np.quantile(known, (0.025, 0.975))
    return float(low), float(high)


def _wilson(share: float, rows: int) -> tuple[float, float]:
    """The ends of Wilson's score interval of a share of the rows."""
    squared = _Z * _Z / rows
    middle = share + squared / 2
    half = _Z * ((share * (1 - share) + squared / 4) / rows) ** 0.5
    low, high = ((middle + side) / (1 + squared) for side in (-half, half))
    return max(0.0, low), min(1.0, high)  # rounding leaves 0 and 1 by a hair


def _draws(rows: int, samples: int, seed: int) -> Iterator[Floats]:
    """How often each row was drawn, for some of the draws at a time: shape (draws, rows)."""
    random = np.random.default_rng(seed)
    block = max(1, _CELLS // rows)
    for start in range(0, samples, block):
        count = min(block, samples - start)
        picked = random.integers(0, rows, (count, rows)) + np.arange(count)[:, None] * rows
        yield np.bincount(picked.ravel(), minlength=count * rows).reshape(count, rows).astype(np.float64)


def _mean(values: Floats) -> Weighted:
    return lambda weights: weights @ values / weights.sum(axis=1)


def _f1(y: npt.NDArray[np.int64], chosen: npt.NDArray[np.bool_]) -> Weighted:
    found = ((y == 1) & chosen).astype(np.float64)
    either = (y + chosen).astype(np.float64)
    return lambda weights: 2 * (weights @ found) / (weights @ either)


def calibration(y: npt.NDArray[np.int64], p: Floats, bins: int = CALIBRATION_BINS) -> Weighted:
    """The expected calibration error of the probability of the hateful class.

    The rows are put into bins of equal width by their probability; in each, the mean probability is compared
    with the share of hateful rows, and the differences are averaged, weighted by the rows in a bin
    (M. Naeini et al., *Obtaining Well Calibrated Probabilities Using Bayesian Binning*, AAAI 2015; 15 bins as
    in C. Guo et al., *On Calibration of Modern Neural Networks*, ICML 2017). That is Σ over bins of
    |Σ w (y − p)| / Σ w, with the bins' counts cancelled.
    """
    # A bin holds its upper edge, as in Guo et al.
    index = np.clip(np.ceil(p * bins).astype(np.int64) - 1, 0, bins - 1)
    gaps = np.zeros((len(y), bins))
    gaps[np.arange(len(y)), index] = y - p
    return lambda weights: np.abs(weights @ gaps).sum(axis=1) / weights.sum(axis=1)


def _auroc(y: npt.NDArray[np.int64], p: Floats) -> Weighted:
    """The share of pairs of a hateful and a benign row that are in order; a tie counts half."""
    grouped = _by_proba(y, p)

    def score(weights: Floats) -> Floats:
        hateful, benign = grouped(weights)
        below = np.cumsum(benign, axis=1) - benign / 2
        pairs = hateful.sum(axis=1) * benign.sum(axis=1)
        return np.asarray((hateful * below).sum(axis=1) / pairs)

    return score


def _average_precision(y: npt.NDArray[np.int64], p: Floats) -> Weighted:
    """The precision at each threshold, weighted by the recall that it adds."""
    grouped = _by_proba(y, -p)

    def score(weights: Floats) -> Floats:
        hateful, benign = grouped(weights)
        found = np.cumsum(hateful, axis=1)
        precision = found / np.maximum(found + np.cumsum(benign, axis=1), 1)
        return np.asarray((hateful * precision).sum(axis=1) / hateful.sum(axis=1))

    return score


def _by_proba(y: npt.NDArray[np.int64], p: Floats) -> Callable[[Floats], tuple[Floats, Floats]]:
    """Sums of the weights of hateful and of benign rows for each different probability, in rising order."""
    order = np.argsort(p, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(p[order]) > 0])
    hateful = y[order] == 1

    def sums(weights: Floats) -> tuple[Floats, Floats]:
        ordered = weights[:, order]
        return (
            np.add.reduceat(ordered * hateful, starts, axis=1),
            np.add.reduceat(ordered * ~hateful, starts, axis=1),
        )

    return sums
