"""The plots of the pages: Matplotlib's figures as SVG that takes its colours and fonts from the page."""

from __future__ import annotations

import io
import math
import re
import statistics
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple
from xml.sax.saxutils import quoteattr

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mmf_win.results.metrics import Score, calibration_bins, found_above
from mmf_win.results.report.curves import TrainingCurves

# Matplotlib wants a colour; each of these stands for the CSS variable that takes its place.
#: Roles whose colours are easily told apart, in order.
SERIES = tuple(f"series-{n}" for n in range(1, 9))

_ROLES = ("ink", "muted", "rule", "hateful", "benign", "accent", *SERIES)
#: The roles that a colour of a plot can have.
COLOURS = {role: f"#{0xC0DE00 + n:06x}" for n, role in enumerate(_ROLES)}

# Inches of a plot; about as wide as a phone, so that letters keep their size there.
_SIZE = (3.5, 2.5)

# Left, bottom, width, height as shares; fixed, since measuring every letter first takes twice as long.
_AREA = (0.15, 0.17, 0.83, 0.78)
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "mmfw",
    "font.size": 8.5,
    "axes.edgecolor": COLOURS["rule"],
    "axes.labelcolor": COLOURS["muted"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": COLOURS["rule"],
    "grid.linewidth": 0.6,
    "xtick.color": COLOURS["rule"],
    "ytick.color": COLOURS["rule"],
    "xtick.labelcolor": COLOURS["muted"],
    "ytick.labelcolor": COLOURS["muted"],
    "text.color": COLOURS["ink"],
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}

_MOST = 400  # points of a line; more cannot be seen
_BARS = 25
_LABELS = 20  # that have room beside each other where they are turned
_LETTERS = 40  # of labels that are not
_LONGEST = 14  # letters of a label
_BROKEN: dict[str, Any] = {"linewidth": 1, "linestyle": (0, (4, 3))}

Points = Sequence[tuple[float, float]]


class Plot(NamedTuple):
    """A plot of the page.

    Attributes:
        name: of the element on the page; the ids in the drawing begin with it.
        caption: below it, in a sentence; with the title, also the drawing's text alternative.
        legend: what its colours mean: label → the role of the colour.
        svg: the drawing.
    """

    name: str
    title: str
    caption: str
    legend: Mapping[str, str]
    svg: str


class Plots(list[Plot]):
    """Plots in the order in which they were drawn."""

    @contextmanager
    def drawing(
        self, name: str, title: str, caption: str, legend: Mapping[str, str] | None = None
    ) -> Iterator[Axes]:
        """Axes to draw one on, which is among the plots afterwards; the arguments are as in :class:`Plot`."""
        with matplotlib.rc_context(_STYLE):
            figure = Figure(figsize=_SIZE)
            yield figure.add_axes(_AREA)
            buffer = io.StringIO()
            figure.savefig(buffer, format="svg")
        svg = _themed(buffer.getvalue(), name, f"{title}: {caption}")
        self.append(Plot(name, title, caption, legend or {}, svg))


def training(curves: TrainingCurves) -> list[Plot]:
    """Loss, learning rate and validation over the updates; those of which nothing is known are left out."""
    plots = Plots()
    if losses := curves.series("train/loss"):
        caption = f"The training loss went from {losses[0][1]:.3g} to {losses[-1][1]:.3g}."
        validation = curves.series("val/loss")
        legend = {"training": "series-1", **({"validation": "series-2"} if validation else {})}
        with plots.drawing("loss", "Loss", caption, legend) as axes:
            _line(axes, curves.series("train/loss", undone=True), "muted", alpha=0.5)
            _line(axes, losses, "series-1")
            _line(axes, validation, "series-2", dots=True)
            _over_updates(axes, curves)
    if (top := curves.best_validation) is not None:
        best = top.values["val/auroc"]
        on = f", on {top.data.split_label}" if top.data else ""
        caption = f"The best validation AUROC is {best:.4f}, at update {top.update:,}{on}."
        accuracies = curves.series("val/accuracy")
        legend = {"AUROC": "series-1", **({"accuracy": "series-2"} if accuracies else {})}
        with plots.drawing("validation", "Validation", caption, legend) as axes:
            _line(axes, accuracies, "series-2", dots=True)
            _line(axes, curves.series("val/auroc"), "series-1", dots=True)
            axes.plot([top.update], [best], "o", markersize=8, markerfacecolor="none", color=COLOURS["ink"])
            _over_updates(axes, curves)
    if rates := curves.series("train/lr"):
        peak = max(rate for _, rate in rates)
        caption = f"The learning rate rises to at most {peak:.3g}."
        with plots.drawing("rate", "Learning rate", caption) as axes:
            _line(axes, rates, "series-1")
            _over_updates(axes, curves)
            axes.ticklabel_format(axis="y", scilimits=(-2, 3), useMathText=False)
    return plots


def resources(curves: TrainingCurves) -> list[Plot]:
    """Speed and GPU memory over the time spent in training."""
    plots = Plots()
    if speeds := curves.over_time("train/updates_per_s"):
        middle = np.median([speed for _, speed in speeds])
        caption = f"{middle:.3g} updates a second in the median."
        with plots.drawing("speed", "Updates a second", caption) as axes:
            _over_time(axes, speeds)
    if memory := [(seconds, mib / 1024) for seconds, mib in curves.over_time("train/max_mem_mib")]:
        caption = f"At most {max(gib for _, gib in memory):.1f} GiB of the GPU's memory were allocated."
        with plots.drawing("memory", "GPU memory in GiB", caption) as axes:
            _over_time(axes, memory)
    return plots


def decisions(
    labels: Sequence[int], probas: Sequence[float], metrics: Mapping[str, Score], threshold: float, name: str
) -> list[Plot]:
    """ROC, precision and recall, calibration and scores by class, as far as the ``metrics`` are defined."""
    y, p, plots = np.asarray(labels), np.asarray(probas), Plots()
    draw = {"auroc": _roc, "average_precision": _precision_recall, "calibration_error": _calibration}
    for key, plot in draw.items():
        if (value := metrics[key].value) is not None:
            plot(plots, y, p, value)
    return [*plots, *histogram(probas, threshold, name, labels)]


def histogram(
    probas: Sequence[float], threshold: float, name: str, labels: Sequence[int] | None = None
) -> list[Plot]:
    """How the probabilities, or what has the ``name``, are spread, by class where labels are known."""
    by = " by class" if labels is not None else ""
    caption = f"How many memes got which {name}{by}. The broken line is the threshold, {threshold:.3g}."
    legend = {} if labels is None else {"not hateful": "benign", "hateful": "hateful"}
    p, edges, plots = np.asarray(probas), [n / _BARS for n in range(_BARS + 1)], Plots()
    with plots.drawing("histogram", "Scores", caption, legend) as axes:
        if labels is None:
            axes.hist(p, edges, color=COLOURS["accent"], alpha=0.7)
        else:
            y = np.asarray(labels)
            for label, role in enumerate(legend.values()):
                axes.hist(p[y == label], edges, color=COLOURS[role], alpha=0.55)
        axes.axvline(threshold, color=COLOURS["ink"], **_BROKEN)
        axes.grid(axis="x", visible=False)
        axes.set(xlim=(0, 1), xlabel=name, ylabel="memes")
    return plots


def overlaid(runs: Sequence[tuple[TrainingCurves, str]]) -> list[Plot]:
    """The same curves of several runs, each in the colour of its role; some runs may have no points."""
    plots = Plots()
    drawn = (("validation", "Validation AUROC", "val/auroc"), ("loss", "Training loss", "train/loss"))
    for name, title, series in drawn:
        lines = [(points, role) for curves, role in runs if (points := curves.series(series))]
        amount = f"{len(lines)} of {len(runs)}" if len(lines) < len(runs) else f"{len(runs)}"
        if lines:
            with plots.drawing(name, title, f"{amount} runs over their updates, one line per run.") as axes:
                for points, role in lines:
                    _line(axes, points, role, alpha=0.85, dots=True)
                axes.set_xlabel("update")
    return plots


def by_setting(runs: Sequence[tuple[Mapping[str, object], float | None]]) -> list[Plot]:
    """For each setting that varies its values, in order, and above them a dot a run and a line of the means.

    ``runs`` has the settings of each, and its validation AUROC; one without that is left out.
    """
    scored = [(settings, score) for settings, score in runs if score is not None]
    plots = Plots()
    for name in dict.fromkeys(name for settings, _ in scored for name in settings):
        by_value: dict[float | str, list[float]] = defaultdict(list)
        for settings, score in scored:
            by_value[_number(settings.get(name))].append(score)
        if len(by_value) > 1:
            _setting(plots, name, by_value)
    return plots


def _setting(plots: Plots, title: str, scores: Mapping[float | str, Sequence[float]]) -> None:
    values = sorted(scores, key=lambda value: (isinstance(value, str), value))
    dots = [(place, score) for place, value in enumerate(values) for score in scores[value]]
    labels = [_label(value) for value in values]
    step = math.ceil(len(labels) / _LABELS)
    name, caption = f"setting-{len(plots) + 1}", f"{len(dots)} runs at {len(values)} values."
    with warnings.catch_warnings():
        # Matplotlib's font lacks letters that the page's may have. Filters are of the whole process.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        with plots.drawing(name, title, caption) as axes:
            if len(values) < len(dots):
                means = [statistics.mean(scores[value]) for value in values]
                axes.plot(means, color=COLOURS["accent"], alpha=0.6)
            xs, ys = zip(*dots, strict=True)
            axes.plot(xs, ys, "o", color=COLOURS["accent"], markersize=4.5, alpha=0.6, mew=0)
            axes.set_xticks(range(0, len(labels), step), labels[::step], parse_math=False)
            axes.set(xlim=(-0.5, len(labels) - 0.5), ylabel="validation AUROC")
            if sum(map(len, labels)) > _LETTERS:
                axes.tick_params("x", rotation=90)
                axes.set_position((0.17, 0.47, 0.81, 0.48))


def _number(value: object) -> float | str:
    """A finite number, also in letters, since PyYAML reads 1e-5 as a text; or the text of another value."""
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            if math.isfinite(number := float(value)):
                return number
    return "not set" if value is None else " ".join(str(value).split())


def _label(value: float | str) -> str:
    """A label without its middle where it is long: its end may be what tells it from others."""
    text = value if isinstance(value, str) else f"{value:g}"
    return text if len(text) <= _LONGEST else f"{text[:6]}…{text[-7:]}"


def _roc(plots: Plots, y: npt.NDArray[Any], p: npt.NDArray[Any], auroc: float) -> None:
    caption = f"The area below it is the AUROC, {auroc:.4f}; guessing gives the diagonal."
    found, chosen = found_above(y, p)
    true = np.append(0, found) / y.sum()
    false = np.append(0, chosen - found) / (len(y) - y.sum())
    with plots.drawing("roc", "ROC", caption) as axes:
        axes.plot([0, 1], [0, 1], color=COLOURS["muted"], **_BROKEN)
        xs, ys = _thinned(false, true)
        axes.fill_between(xs, ys, color=COLOURS["accent"], alpha=0.1, linewidth=0)
        axes.plot(xs, ys, color=COLOURS["accent"])
        axes.set(xlim=(0, 1), ylim=(0, 1.01), xlabel="false positive rate", ylabel="true positive rate")


def _precision_recall(plots: Plots, y: npt.NDArray[Any], p: npt.NDArray[Any], average: float) -> None:
    share = y.mean()
    caption = f"Average precision {average:.4f}; guessing gives {share:.2f}, the share of hateful memes."
    found, chosen = found_above(y, p)
    with plots.drawing("precision-recall", "Precision and recall", caption) as axes:
        axes.axhline(share, color=COLOURS["muted"], **_BROKEN)
        axes.plot(*_thinned(found / y.sum(), found / chosen), color=COLOURS["accent"])
        axes.set(xlim=(0, 1), ylim=(0, 1.01), xlabel="recall", ylabel="precision")


def _calibration(plots: Plots, y: npt.NDArray[Any], p: npt.NDArray[Any], error: float) -> None:
    caption = f"Expected calibration error {error:.4f}; a dot on the diagonal is well calibrated."
    index = calibration_bins(p)
    counts = np.bincount(index)
    filled = counts > 0
    means, shares = (np.bincount(index, values)[filled] / counts[filled] for values in (p, y))
    with plots.drawing("calibration", "Calibration", caption) as axes:
        axes.plot([0, 1], [0, 1], color=COLOURS["muted"], **_BROKEN)
        axes.plot(means, shares, color=COLOURS["accent"], linewidth=1, alpha=0.6)
        sizes = 14 + 130 * counts[filled] / counts.sum()
        axes.scatter(means, shares, s=sizes, color=COLOURS["accent"], linewidths=0)
        ends = (-0.03, 1.03)
        axes.set(xlim=ends, ylim=ends, xlabel="predicted probability", ylabel="share of hateful")


def _over_updates(axes: Axes, curves: TrainingCurves) -> None:
    """Mark the attempts, and give all plots of a training one axis, to be read above each other."""
    where = axes.get_xaxis_transform()
    for number, attempt in enumerate(curves.attempts[1:], 2):
        axes.axvline(attempt.update, color=COLOURS["ink"], linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
        axes.text(attempt.update, 1.0, f" {number}", transform=where, va="top", fontsize=8)
    last = max(sample.update for sample in (*curves.samples, *curves.undone))
    axes.set(xlim=(0, 1.03 * last or 1), xlabel="update")


def _over_time(axes: Axes, points: Points) -> None:
    longest = points[-1][0]
    unit, seconds = ("minutes", 60) if longest > 120 else ("seconds", 1)
    unit, seconds = ("hours", 3600) if longest > 7200 else (unit, seconds)
    _line(axes, [(x / seconds, y) for x, y in points], "series-1")
    axes.set(ylim=(0, max(y for _, y in points) * 1.08 or 1), xlabel=f"{unit} of training")


def _line(axes: Axes, points: Points, role: str, *, alpha: float = 1.0, dots: bool = False) -> None:
    """A line of the means of neighbours, where there are more points than can be seen.

    With ``dots``, each point has one, where there are few; a single one always has.
    """
    if points:
        parts = np.array_split(np.array(points), min(_MOST, len(points)))
        xs, ys = np.array([part.mean(axis=0) for part in parts]).T
        marker = "o" if len(points) == 1 or (dots and len(points) < 40) else ""
        axes.plot(xs, ys, color=COLOURS[role], alpha=alpha, marker=marker, markersize=3.2)


def _thinned(xs: npt.NDArray[Any], ys: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Some of the points of a curve, both ends among them."""
    chosen = np.unique(np.linspace(0, len(xs) - 1, min(_MOST, len(xs))).astype(int))
    return xs[chosen], ys[chosen]


def _themed(drawn: str, name: str, says: str) -> str:
    """Matplotlib's SVG as an element of a page: variable colours, ids of its own, and a text alternative."""
    body = re.sub(r"<metadata>.*?</metadata>", "", drawn, flags=re.DOTALL)
    body = re.sub(r'(\bid="|href="#|url\(#)', rf"\1{name}-", body)
    for role, colour in COLOURS.items():
        body = body.replace(colour, f"var(--{role})")
    head = re.search(r'<svg[^>]*(viewBox="[^"]+")[^>]*>', body)
    assert head is not None
    return f'<svg {head[1]} role="img" aria-label={quoteattr(says)}>' + body[head.end() :]
