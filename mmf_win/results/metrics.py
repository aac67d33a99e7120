"""How good predictions are, and how sure that is.

The values come from scikit-learn, but for the expected calibration error, which it does not have. The
intervals are percentile intervals of a stratified bootstrap: rows are drawn with replacement within each
class, so that every draw has both (B. Efron and R. Tibshirani, *An Introduction to the Bootstrap*, 1993,
chapter 13; stratified as in X. Robin et al., *pROC*, BMC Bioinformatics 12:77, 2011). To draw rows is to
weight them by how often they were drawn, so all draws are scored at once by each metric's weighted form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn import metrics as sklearn

Floats = npt.NDArray[np.float64]
Weighted = Callable[[Floats], Floats]

SAMPLES = 2000
"""Draws of the bootstrap, as many as pROC makes by default."""

CALIBRATION_BINS = 15
"""Bins of the expected calibration error, as in Guo et al. 2017."""

_CELLS = 1 << 22  # of a block of draws: 32 MiB of weights


@dataclass(frozen=True)
class Score:
    """One metric.

    Attributes:
        value: on the rows as they are; None where the labels leave it undefined.
        low, high: the ends of its bootstrap interval of 95 %; None with the value. The calibration error
            of a drawn set is on average larger than the set's own, so its interval may lie above its value.
    """

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Metrics:
    """The scores of one set of predictions.

    Attributes:
        rows: how many predictions.
        hateful: how many of them are labelled 1.
        threshold: a probability above it counts as hateful, for ``accuracy`` and ``f1``.
        auroc: area under the ROC curve; undefined for one class only.
        accuracy: share of the rows whose label was found.
        average_precision: of the hateful class; undefined without any.
        f1: of the hateful class; undefined where it is neither there nor predicted.
        brier: mean squared error of the probability; undefined for what is none, such as ranks.
        calibration_error: expected calibration error, see :func:`calibration_error`; undefined as well.
    """

    rows: int
    hateful: int
    threshold: float
    auroc: Score
    accuracy: Score
    average_precision: Score
    f1: Score
    brier: Score
    calibration_error: Score

    def as_json(self) -> dict[str, Any]:
        """For ``metrics.json``."""
        return asdict(self)


def measure(
    labels: Sequence[int],
    probas: Sequence[float],
    *,
    threshold: float = 0.5,
    calibrated: bool = True,
    samples: int = SAMPLES,
    seed: int = 0,
) -> Metrics:
    """Score predictions.

    Args:
        labels: 0 or 1 for each row; at least one row.
        probas: the probability of 1 for each row, 0 to 1.
        threshold: a probability above it is a 1, as MMF breaks the tie of 0.5.
        calibrated: whether the probabilities are meant as such; if not, only their order and side count.
        samples: draws of the bootstrap; 0 for no intervals.
        seed: of the draws, so that the same rows give the same intervals.
    """
    y, p = _arrays(labels, probas)
    chosen = (p > threshold).astype(np.int64)
    both = 0 < y.sum() < len(y)
    f1_defined = bool(y.any() or chosen.any())
    values = {
        "auroc": float(sklearn.roc_auc_score(y, p)) if both else None,
        "accuracy": float(sklearn.accuracy_score(y, chosen)),
        "average_precision": float(sklearn.average_precision_score(y, p)) if y.any() else None,
        "f1": float(sklearn.f1_score(y, chosen)) if f1_defined else None,
        "brier": float(np.mean((p - y) ** 2)) if calibrated else None,
        "calibration_error": calibration_error(labels, probas) if calibrated else None,
    }
    intervals = _intervals(y, p, threshold, samples, seed) if samples else {}
    scores = {
        name: Score(value, *intervals.get(name, ())) if value is not None else Score(None)
        for name, value in values.items()
    }
    return Metrics(rows=len(y), hateful=int(y.sum()), threshold=threshold, **scores)


def calibration_error(labels: Sequence[int], probas: Sequence[float], bins: int = CALIBRATION_BINS) -> float:
    """The expected calibration error of the probability of the hateful class.

    The rows are put into bins of equal width by their probability; in each, the mean probability is compared
    with the share of hateful rows, and the differences are averaged, weighted by the rows in a bin
    (M. Naeini et al., *Obtaining Well Calibrated Probabilities Using Bayesian Binning*, AAAI 2015; 15 bins as
    in C. Guo et al., *On Calibration of Modern Neural Networks*, ICML 2017).

    Args:
        labels: 0 or 1 for each row.
        probas: the probability of 1 for each row, 0 to 1.
        bins: how many.
    """
    y, p = _arrays(labels, probas)
    return float(_calibration(y, p, bins)(np.ones((1, len(y))))[0])


@dataclass(frozen=True)
class AurocDifference:
    """How much better one prediction of the same rows is than another.

    Attributes:
        value: the metric of the first less that of the second.
        low, high: the ends of the bootstrap interval of 95 %.
        p: two-sided p-value of no difference: twice the smaller share of draws on one side of zero.
    """

    value: float
    low: float
    high: float
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
    parts = [scorers[0](w) - scorers[1](w) for w in _draws(y, samples, seed)]
    drawn = np.concatenate(parts)
    # One is added to both counts: a p-value of 0 cannot be shown by any number of draws.
    tail = (min(np.sum(drawn <= 0), np.sum(drawn >= 0)) + 1) / (samples + 1)
    value = float(sklearn.roc_auc_score(y, p) - sklearn.roc_auc_score(y, q))
    return AurocDifference(value, *_ends(drawn), p=float(min(1.0, 2 * tail)))


def _arrays(labels: Sequence[int], probas: Sequence[float]) -> tuple[npt.NDArray[np.int64], Floats]:
    y, p = np.asarray(labels, dtype=np.int64), np.asarray(probas, dtype=np.float64)
    if y.shape != p.shape or y.ndim != 1 or not len(y):
        raise ValueError(f"labels and probabilities of one length are needed, not {y.shape} and {p.shape}")
    if not np.isin(y, (0, 1)).all():
        raise ValueError("labels must be 0 or 1")
    return y, p


def _intervals(
    y: npt.NDArray[np.int64], p: Floats, threshold: float, samples: int, seed: int
) -> dict[str, tuple[float, float]]:
    scorers = _scorers(y, p, threshold)
    drawn: dict[str, list[Floats]] = {name: [] for name in scorers}
    with np.errstate(invalid="ignore"):  # what is undefined is NaN, and left out with its value
        for weights in _draws(y, samples, seed):
            for name, scorer in scorers.items():
                drawn[name].append(scorer(weights))
    return {name: _ends(np.concatenate(parts)) for name, parts in drawn.items()}


def _scorers(y: npt.NDArray[np.int64], p: Floats, threshold: float) -> dict[str, Weighted]:
    return {
        "auroc": _auroc(y, p),
        "accuracy": _mean(((p > threshold) == y).astype(np.float64)),
        "average_precision": _average_precision(y, p),
        "f1": _f1(y, p > threshold),
        "brier": _mean((p - y) ** 2),
        "calibration_error": _calibration(y, p, CALIBRATION_BINS),
    }


def _ends(drawn: Floats) -> tuple[float, float]:
    known = drawn[~np.isnan(drawn)]
    low, high = np.quantile(known, (0.025, 0.975)) if len(known) else (np.nan, np.nan)
    return float(low), float(high)


def _draws(y: npt.NDArray[np.int64], samples: int, seed: int) -> Iterator[Floats]:
    """How often each row was drawn, for some of the draws at a time: shape (draws, rows)."""
    random = np.random.default_rng(seed)
    classes = [np.flatnonzero(y == label) for label in (0, 1) if (y == label).any()]
    block = max(1, _CELLS // len(y))
    for start in range(0, samples, block):
        count = min(block, samples - start)
        offsets = np.arange(count)[:, None] * len(y)
        picked = [random.choice(rows, (count, len(rows))) + offsets for rows in classes]
        drawn = np.bincount(np.concatenate(picked, axis=1).ravel(), minlength=count * len(y))
        yield drawn.reshape(count, len(y)).astype(np.float64)


def _mean(values: Floats) -> Weighted:
    return lambda weights: weights @ values / weights.sum(axis=1)


def _f1(y: npt.NDArray[np.int64], chosen: npt.NDArray[np.bool_]) -> Weighted:
    found = ((y == 1) & chosen).astype(np.float64)
    either = (y + chosen).astype(np.float64)
    return lambda weights: 2 * (weights @ found) / (weights @ either)


def _calibration(y: npt.NDArray[np.int64], p: Floats, bins: int) -> Weighted:
    """Σ over bins of |Σ w (y − p)| / Σ w, which is the definition with the bins' counts cancelled."""
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
