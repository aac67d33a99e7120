"""The plots of one run's page."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from sklearn.metrics import precision_recall_curve, roc_curve

from mmf_win.results.metrics import CALIBRATION_BINS, Metrics
from mmf_win.results.report.curves import TrainingCurves
from mmf_win.results.report.svg import COLOURS, SERIES, Key, Plot, canvas

_MOST = 400  # points of a line; more cannot be seen
_BARS = 25

Points = Sequence[tuple[float, float]]


def training(curves: TrainingCurves) -> list[Plot]:
    """Loss, learning rate and validation over the updates; those of which nothing is known are left out."""
    plots = []
    if losses := curves.series("loss"):
        ends = f"from {losses[0][1]:.3g} to {losses[-1][1]:.3g}"
        with canvas("loss", f"Training loss {ends}") as drawing:
            axes = drawing.axes
            _attempts(axes, curves)
            _line(axes, curves.lost("loss"), "muted", alpha=0.5)
            _line(axes, losses, "series-1")
            val = curves.series("val_loss")
            _line(axes, val, "series-2", marker="o" if len(val) < 40 else "")
            _over_updates(axes, curves)
        legend = (Key("series-1", "training"), *([Key("series-2", "validation")] if val else []))
        plots.append(Plot("loss", "Loss", f"The training loss went {ends}.", drawing.svg, legend))
    scores, top = curves.series("auroc"), curves.best_validation
    if top is not None:
        update, best = top.update, top.values["auroc"]
        on = f", on {top.data.brief}" if top.data else ""
        says = f"The best validation AUROC is {best:.4f}, at update {update:,}{on}."
        with canvas("validation", says) as drawing:
            axes = drawing.axes
            _attempts(axes, curves)
            accuracies = curves.series("accuracy")
            _line(axes, accuracies, "series-2", marker="o" if len(scores) < 40 else "")
            _line(axes, scores, "series-1", marker="o" if len(scores) < 40 else "")
            axes.plot([update], [best], "o", markersize=8, markerfacecolor="none", color=COLOURS["ink"])
            _over_updates(axes, curves)
        legend = (Key("series-1", "AUROC"), *([Key("series-2", "accuracy")] if accuracies else []))
        plots.append(Plot("validation", "Validation", says, drawing.svg, legend))
    if rates := curves.series("lr"):
        peak = max(rate for _, rate in rates)
        says = f"The learning rate rises to at most {peak:.3g}."
        with canvas("rate", says) as drawing:
            _attempts(drawing.axes, curves)
            _line(drawing.axes, rates, "series-1")
            _over_updates(drawing.axes, curves)
            drawing.axes.ticklabel_format(axis="y", scilimits=(-2, 3), useMathText=False)
        plots.append(Plot("rate", "Learning rate", says, drawing.svg))
    return plots


def resources(curves: TrainingCurves) -> list[Plot]:
    """Speed and GPU memory over the time spent in training."""
    plots = []
    speeds = curves.over_time("speed")
    if speeds:
        middle = float(np.median([speed for _, speed in speeds]))
        says = f"{middle:.3g} updates a second in the median."
        with canvas("speed", says) as drawing:
            _over_time(drawing.axes, speeds)
        plots.append(Plot("speed", "Updates a second", says, drawing.svg))
    memory = [(seconds, mib / 1024) for seconds, mib in curves.over_time("memory")]
    if memory:
        says = f"At most {max(gib for _, gib in memory):.1f} GiB of the GPU's memory were allocated."
        with canvas("memory", says) as drawing:
            _over_time(drawing.axes, memory)
        plots.append(Plot("memory", "GPU memory in GiB", says, drawing.svg))
    return plots


def decisions(labels: Sequence[int], probas: Sequence[float], metrics: Metrics) -> list[Plot]:
    """ROC, precision and recall, calibration and scores by class, as far as the labels allow them."""
    y, p = np.asarray(labels), np.asarray(probas)
    plots = []
    if metrics.auroc.value is not None:
        plots.append(_roc(y, p, metrics.auroc.value))
    if metrics.average_precision.value is not None:
        plots.append(_precision_recall(y, p, metrics.average_precision.value))
    if metrics.calibration_error.value is not None:
        plots.append(_calibration(y, p, metrics.calibration_error.value))
    return [*plots, histogram(probas, metrics.threshold, labels)]


def histogram(probas: Sequence[float], threshold: float, labels: Sequence[int] | None = None) -> Plot:
    """How the probabilities are spread, by class where labels are known."""
    says = "How many memes got which probability of being hateful"
    p, edges = np.asarray(probas), [n / _BARS for n in range(_BARS + 1)]
    legend: tuple[Key, ...] = ()
    with canvas("histogram", says) as drawing:
        axes = drawing.axes
        if labels is None:
            axes.hist(p, edges, color=COLOURS["accent"], alpha=0.7)
        else:
            y = np.asarray(labels)
            for label, role in ((0, "benign"), (1, "hateful")):
                axes.hist(p[y == label], edges, color=COLOURS[role], alpha=0.55)
            legend = (Key("benign", "not hateful"), Key("hateful", "hateful"))
        axes.axvline(threshold, color=COLOURS["ink"], linewidth=1, linestyle=(0, (4, 3)))
        axes.grid(axis="x", visible=False)
        axes.set(xlim=(0, 1), xlabel="predicted probability", ylabel="memes")
    by = " by class" if labels is not None else ""
    caption = f"{says}{by}. The broken line is the threshold, {threshold:.3g}."
    return Plot("histogram", "Scores", caption, drawing.svg, legend)


def series(number: int) -> str:
    """The role of the colour of the series with this number; there are eight, which then come again."""
    return f"series-{number % len(SERIES) + 1}"


def overlaid(name: str, title: str, lines: Sequence[tuple[Points, str]]) -> Plot:
    """The same curve of several runs, each in the colour of its role."""
    with canvas(name, f"{title} of {len(lines)} runs over their updates") as drawing:
        for points, role in lines:
            _line(drawing.axes, points, role, alpha=0.85, marker="o" if len(points) < 40 else "")
        drawing.axes.set_xlabel("update")
    return Plot(name, title, "One line a run.", drawing.svg)


def _roc(y: npt.NDArray[Any], p: npt.NDArray[Any], auroc: float) -> Plot:
    false, true, _ = roc_curve(y, p)
    with canvas("roc", f"ROC curve with an area of {auroc:.4f}") as drawing:
        axes = drawing.axes
        axes.plot([0, 1], [0, 1], color=COLOURS["muted"], linewidth=1, linestyle=(0, (4, 3)))
        xs, ys = _thinned(list(zip(false, true, strict=True)))
        axes.fill_between(xs, ys, color=COLOURS["accent"], alpha=0.1, linewidth=0)
        axes.plot(xs, ys, color=COLOURS["accent"])
        axes.set(xlim=(0, 1), ylim=(0, 1.01), xlabel="false positive rate", ylabel="true positive rate")
    caption = f"The area below it is the AUROC, {auroc:.4f}; guessing gives the diagonal."
    return Plot("roc", "ROC", caption, drawing.svg)


def _precision_recall(y: npt.NDArray[Any], p: npt.NDArray[Any], average: float) -> Plot:
    precision, recall, _ = precision_recall_curve(y, p)
    share = float(y.mean())
    with canvas("precision-recall", f"Precision-recall curve, average precision {average:.4f}") as drawing:
        axes = drawing.axes
        axes.axhline(share, color=COLOURS["muted"], linewidth=1, linestyle=(0, (4, 3)))
        # scikit-learn ends the curve in a point without predictions, which no threshold gives.
        xs, ys = _thinned(list(zip(recall[-2::-1], precision[-2::-1], strict=True)))
        axes.plot(xs, ys, color=COLOURS["accent"])
        axes.set(xlim=(0, 1), ylim=(0, 1.01), xlabel="recall", ylabel="precision")
    caption = f"Average precision {average:.4f}; guessing gives {share:.2f}, the share of hateful memes."
    return Plot("precision-recall", "Precision and recall", caption, drawing.svg)


def _calibration(y: npt.NDArray[Any], p: npt.NDArray[Any], error: float | None) -> Plot:
    index = np.clip(np.ceil(p * CALIBRATION_BINS).astype(int) - 1, 0, CALIBRATION_BINS - 1)
    counts = np.bincount(index, minlength=CALIBRATION_BINS)
    filled = counts > 0
    means = np.bincount(index, p, CALIBRATION_BINS)[filled] / counts[filled]
    shares = np.bincount(index, y, CALIBRATION_BINS)[filled] / counts[filled]
    with canvas("calibration", f"Calibration, expected error {error or 0:.4f}") as drawing:
        axes = drawing.axes
        axes.plot([0, 1], [0, 1], color=COLOURS["muted"], linewidth=1, linestyle=(0, (4, 3)))
        axes.plot(means, shares, color=COLOURS["accent"], linewidth=1, alpha=0.6)
        sizes = 14 + 130 * counts[filled] / counts.sum()
        axes.scatter(means, shares, s=sizes, color=COLOURS["accent"], linewidths=0)
        ends = (-0.03, 1.03)
        axes.set(xlim=ends, ylim=ends, xlabel="predicted probability", ylabel="share of hateful")
    caption = f"Expected calibration error {error or 0:.4f}; a dot on the diagonal is well calibrated."
    return Plot("calibration", "Calibration", caption, drawing.svg)


def _attempts(axes: Axes, curves: TrainingCurves) -> None:
    for attempt in curves.attempts[1:]:
        axes.axvline(attempt.update, color=COLOURS["ink"], linewidth=0.9, linestyle=(0, (2, 2)))
        where = axes.get_xaxis_transform()
        axes.text(attempt.update, 1.0, f" {attempt.number}", transform=where, va="top", fontsize=8)


def _over_updates(axes: Axes, curves: TrainingCurves) -> None:
    """The same axis for all plots of a training, so that they can be read above each other."""
    last = max(sample.update for sample in (*curves.samples, *curves.undone))
    axes.set_xlim(0, 1.03 * last or 1)
    axes.set_xlabel("update")


def _over_time(axes: Axes, points: Points) -> None:
    longest = points[-1][0]
    unit, seconds = (
        ("hours", 3600) if longest > 7200 else ("minutes", 60) if longest > 120 else ("seconds", 1)
    )
    _line(axes, [(x / seconds, y) for x, y in points], "series-1")
    axes.set_ylim(0, max(y for _, y in points) * 1.08 or 1)
    axes.set_xlabel(f"{unit} of training")


def _line(axes: Axes, points: Points, role: str, *, alpha: float = 1.0, marker: str = "") -> None:
    if points:
        xs, ys = _averaged(points)
        lonely = "o" if len(xs) == 1 else marker
        axes.plot(xs, ys, color=COLOURS[role], alpha=alpha, marker=lonely, markersize=3.2)


def _averaged(points: Points) -> tuple[list[float], list[float]]:
    """Means of neighbours, where there are more points than can be seen."""
    if len(points) <= _MOST:
        return [x for x, _ in points], [y for _, y in points]
    edges = np.linspace(0, len(points), _MOST + 1).astype(int)
    means = [np.mean(points[a:b], axis=0) for a, b in pairwise(edges)]
    return [float(x) for x, _ in means], [float(y) for _, y in means]


def _thinned(points: Points) -> tuple[list[float], list[float]]:
    """Some of the points of a curve, both ends among them."""
    chosen = np.unique(np.linspace(0, len(points) - 1, min(_MOST, len(points))).astype(int))
    return [float(points[i][0]) for i in chosen], [float(points[i][1]) for i in chosen]
