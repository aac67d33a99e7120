"""Plots of the pages: Matplotlib figures as SVG that takes colours and fonts from the page."""

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

from mmf_win.results.metrics import MetricEstimate, calibration_bins, cumulative_counts
from mmf_win.results.report.curves import TrainingCurves

# Matplotlib needs colours. Each of these is a placeholder that a CSS variable replaces in the SVG.
#: Roles with easily distinguishable colours, in order.
SERIES_ROLES = tuple(f"series-{n}" for n in range(1, 9))

_ROLES = ("ink", "muted", "rule", "hateful", "benign", "accent", *SERIES_ROLES)
#: Placeholder colour of each role.
ROLE_COLOURS = {role: f"#{0xC0DE00 + n:06x}" for n, role in enumerate(_ROLES)}

# About the width of a phone, so that text is not scaled down there.
_PLOT_SIZE_INCHES = (3.5, 2.5)

# Left, bottom, width and height as fractions. They are fixed because a tight layout takes twice as long.
_AXES_RECT = (0.15, 0.17, 0.83, 0.78)
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "mmfw",
    "font.size": 8.5,
    "axes.edgecolor": ROLE_COLOURS["rule"],
    "axes.labelcolor": ROLE_COLOURS["muted"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": ROLE_COLOURS["rule"],
    "grid.linewidth": 0.6,
    "xtick.color": ROLE_COLOURS["rule"],
    "ytick.color": ROLE_COLOURS["rule"],
    "xtick.labelcolor": ROLE_COLOURS["muted"],
    "ytick.labelcolor": ROLE_COLOURS["muted"],
    "text.color": ROLE_COLOURS["ink"],
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}

_MAX_LINE_POINTS = 400  # more points are not visible
_HISTOGRAM_BINS = 25
_MAX_TURNED_LABELS = 20  # rotated tick labels that fit next to each other
_MAX_STRAIGHT_LABEL_CHARS = 40  # characters of all tick labels that fit without rotation
_MAX_LABEL_CHARS = 14
_DASHED_LINE: dict[str, Any] = {"linewidth": 1, "linestyle": (0, (4, 3))}

Points = Sequence[tuple[float, float]]


class Plot(NamedTuple):
    """A plot of the page.

    Attributes:
        name: Element ID on the page; prefix of the IDs in the drawing.
        title: Heading of the plot.
        caption: Sentence below the plot. With the title, it is also the drawing's text alternative.
        legend: Colour role by label.
        svg: Drawing.
    """

    name: str
    title: str
    caption: str
    legend: Mapping[str, str]
    svg: str


class Plots(list[Plot]):
    """Plots in drawing order."""

    @contextmanager
    def add_plot(self, name: str, title: str, caption: str, legend: Mapping[str, str] | None = None) -> Iterator[Axes]:
        """Provide axes to draw on, and append the plot when the block ends.

        Args:
            name: As in :class:`Plot`.
            title: As in :class:`Plot`.
            caption: As in :class:`Plot`.
            legend: As in :class:`Plot`.

        Yields:
            The axes.
        """
        with matplotlib.rc_context(_STYLE):
            figure = Figure(figsize=_PLOT_SIZE_INCHES)
            yield figure.add_axes(_AXES_RECT)
            buffer = io.StringIO()
            figure.savefig(buffer, format="svg")
        svg = _to_themed_svg(buffer.getvalue(), name, f"{title}: {caption}")
        self.append(Plot(name, title, caption, legend or {}, svg))


def draw_training(curves: TrainingCurves) -> list[Plot]:
    """Draw loss, learning rate and validation over the updates; plots without data are omitted."""
    plots = Plots()
    if losses := curves.get_series("train/loss"):
        caption = f"The training loss went from {losses[0][1]:.3g} to {losses[-1][1]:.3g}."
        validation = curves.get_series("val/loss")
        legend = {"training": "series-1", **({"validation": "series-2"} if validation else {})}
        with plots.add_plot("loss", "Loss", caption, legend) as axes:
            _draw_line(axes, curves.get_series("train/loss", superseded=True), "muted", alpha=0.5)
            _draw_line(axes, losses, "series-1")
            _draw_line(axes, validation, "series-2", dots=True)
            _format_update_axis(axes, curves)
    if (best := curves.best_validation) is not None:
        auroc = best.values["val/auroc"]
        suffix = f", on {best.coverage.split_label}" if best.coverage else ""
        caption = f"The best validation AUROC is {auroc:.4f}, at update {best.update:,}{suffix}."
        accuracies = curves.get_series("val/accuracy")
        legend = {"AUROC": "series-1", **({"accuracy": "series-2"} if accuracies else {})}
        with plots.add_plot("validation", "Validation", caption, legend) as axes:
            _draw_line(axes, accuracies, "series-2", dots=True)
            _draw_line(axes, curves.get_series("val/auroc"), "series-1", dots=True)
            axes.plot([best.update], [auroc], "o", markersize=8, markerfacecolor="none", color=ROLE_COLOURS["ink"])
            _format_update_axis(axes, curves)
    if rates := curves.get_series("train/lr"):
        peak = max(rate for _, rate in rates)
        caption = f"The learning rate rises to at most {peak:.3g}."
        with plots.add_plot("rate", "Learning rate", caption) as axes:
            _draw_line(axes, rates, "series-1")
            _format_update_axis(axes, curves)
            axes.ticklabel_format(axis="y", scilimits=(-2, 3), useMathText=False)
    return plots


def draw_resources(curves: TrainingCurves) -> list[Plot]:
    """Draw speed and GPU memory over the training time."""
    plots = Plots()
    if speeds := curves.get_series_over_time("train/updates_per_s"):
        middle = np.median([speed for _, speed in speeds])
        caption = f"Median: {middle:.3g} updates per second."
        with plots.add_plot("speed", "Updates per second", caption) as axes:
            _draw_over_time(axes, speeds)
    if memory := [(seconds, mib / 1024) for seconds, mib in curves.get_series_over_time("train/max_mem_mib")]:
        caption = f"Peak allocated GPU memory: {max(gib for _, gib in memory):.1f} GiB."
        with plots.add_plot("memory", "GPU memory in GiB", caption) as axes:
            _draw_over_time(axes, memory)
    return plots


def draw_decisions(
    labels: Sequence[int],
    probas: Sequence[float],
    metrics: Mapping[str, MetricEstimate],
    threshold: float,
    value_name: str,
) -> list[Plot]:
    """Draw ROC, precision-recall, calibration and score histogram, omitting those of undefined metrics.

    Args:
        labels: Label of each row, 0 or 1.
        probas: Probability of each row.
        metrics: Metrics by name.
        threshold: Threshold of the labels.
        value_name: ``probability`` or ``rank``.

    Returns:
        The plots.
    """
    y, p, plots = np.asarray(labels), np.asarray(probas), Plots()
    draw = {"auroc": _draw_roc, "average_precision": _draw_precision_recall, "calibration_error": _draw_calibration}
    for key, plot in draw.items():
        if (value := metrics[key].value) is not None:
            plot(plots, y, p, value)
    return [*plots, *draw_histogram(probas, threshold, value_name, labels)]


def draw_histogram(
    probas: Sequence[float], threshold: float, value_name: str, labels: Sequence[int] | None = None
) -> list[Plot]:
    """Draw the distribution of the predicted values, by class if labels are given.

    Args:
        probas: Predicted value of each row.
        threshold: Threshold of the labels.
        value_name: ``probability`` or ``rank``.
        labels: Label of each row.

    Returns:
        The plot, as a list.
    """
    by_class = " by class" if labels is not None else ""
    caption = f"Number of memes per {value_name}{by_class}. The dashed line is the threshold, {threshold:.3g}."
    legend = {} if labels is None else {"not hateful": "benign", "hateful": "hateful"}
    p, edges, plots = np.asarray(probas), [n / _HISTOGRAM_BINS for n in range(_HISTOGRAM_BINS + 1)], Plots()
    with plots.add_plot("histogram", "Scores", caption, legend) as axes:
        if labels is None:
            axes.hist(p, edges, color=ROLE_COLOURS["accent"], alpha=0.7)
        else:
            y = np.asarray(labels)
            for label, role in enumerate(legend.values()):
                axes.hist(p[y == label], edges, color=ROLE_COLOURS[role], alpha=0.55)
        axes.axvline(threshold, color=ROLE_COLOURS["ink"], **_DASHED_LINE)
        axes.grid(axis="x", visible=False)
        axes.set(xlim=(0, 1), xlabel=value_name, ylabel="memes")
    return plots


def draw_overlaid_curves(runs: Sequence[tuple[TrainingCurves, str]]) -> list[Plot]:
    """Draw the same curves of several runs, each in its colour; runs without points are omitted."""
    plots = Plots()
    curve_kinds = (("validation", "Validation AUROC", "val/auroc"), ("loss", "Training loss", "train/loss"))
    for name, title, series in curve_kinds:
        lines = [(points, role) for curves, role in runs if (points := curves.get_series(series))]
        amount = f"{len(lines)} of {len(runs)}" if len(lines) < len(runs) else f"{len(runs)}"
        if lines:
            with plots.add_plot(name, title, f"{amount} runs, one line per run.") as axes:
                for points, role in lines:
                    _draw_line(axes, points, role, alpha=0.85, dots=True)
                axes.set_xlabel("update")
    return plots


def draw_scores_by_setting(runs: Sequence[tuple[Mapping[str, object], float | None]]) -> list[Plot]:
    """Draw, for each setting that varies, one dot per run above its value and a line through the means.

    Args:
        runs: Settings and validation AUROC of each run; runs without an AUROC are omitted.

    Returns:
        One plot per varying setting.
    """
    scored = [(settings, score) for settings, score in runs if score is not None]
    plots = Plots()
    for name in dict.fromkeys(name for settings, _ in scored for name in settings):
        by_value: dict[float | str, list[float]] = defaultdict(list)
        for settings, score in scored:
            by_value[_number_or_text(settings.get(name))].append(score)
        if len(by_value) > 1:
            _draw_setting(plots, name, by_value)
    return plots


def _draw_setting(plots: Plots, title: str, scores: Mapping[float | str, Sequence[float]]) -> None:
    values = sorted(scores, key=lambda value: (isinstance(value, str), value))
    dots = [(place, score) for place, value in enumerate(values) for score in scores[value]]
    labels = [_shorten_label(value) for value in values]
    step = math.ceil(len(labels) / _MAX_TURNED_LABELS)
    name, caption = f"setting-{len(plots) + 1}", f"{len(dots)} runs at {len(values)} values."
    with warnings.catch_warnings():
        # Matplotlib's font may lack glyphs that the page's font has. Filters apply to the whole process.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        with plots.add_plot(name, title, caption) as axes:
            if len(values) < len(dots):
                means = [statistics.mean(scores[value]) for value in values]
                axes.plot(means, color=ROLE_COLOURS["accent"], alpha=0.6)
            xs, ys = zip(*dots, strict=True)
            axes.plot(xs, ys, "o", color=ROLE_COLOURS["accent"], markersize=4.5, alpha=0.6, mew=0)
            axes.set_xticks(range(0, len(labels), step), labels[::step], parse_math=False)
            axes.set(xlim=(-0.5, len(labels) - 0.5), ylabel="validation AUROC")
            if sum(map(len, labels)) > _MAX_STRAIGHT_LABEL_CHARS:
                axes.tick_params("x", rotation=90)
                axes.set_position((0.17, 0.47, 0.81, 0.48))


def _number_or_text(value: object) -> float | str:
    """Return a finite number if the value is one, else its text.

    Text such as ``1e-5`` counts as a number, because PyYAML reads it as text.
    """
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            if math.isfinite(number := float(value)):
                return number
    return "not set" if value is None else " ".join(str(value).split())


def _shorten_label(value: float | str) -> str:
    """Return a label, cut in the middle if it is long, because its end may distinguish it from others."""
    text = value if isinstance(value, str) else f"{value:g}"
    return text if len(text) <= _MAX_LABEL_CHARS else f"{text[:6]}…{text[-7:]}"


def _draw_roc(plots: Plots, y: npt.NDArray[Any], p: npt.NDArray[Any], auroc: float) -> None:
    caption = f"The area below it is the AUROC, {auroc:.4f}; guessing gives the diagonal."
    true_positives, selected = cumulative_counts(y, p)
    true_rate = np.append(0, true_positives) / y.sum()
    false_rate = np.append(0, selected - true_positives) / (len(y) - y.sum())
    with plots.add_plot("roc", "ROC", caption) as axes:
        axes.plot([0, 1], [0, 1], color=ROLE_COLOURS["muted"], **_DASHED_LINE)
        xs, ys = _thin_points(false_rate, true_rate)
        axes.fill_between(xs, ys, color=ROLE_COLOURS["accent"], alpha=0.1, linewidth=0)
        axes.plot(xs, ys, color=ROLE_COLOURS["accent"])
        axes.set(xlim=(0, 1), ylim=(0, 1.01), xlabel="false positive rate", ylabel="true positive rate")


def _draw_precision_recall(plots: Plots, y: npt.NDArray[Any], p: npt.NDArray[Any], average_precision: float) -> None:
    share = y.mean()
    caption = f"Average precision {average_precision:.4f}; guessing gives {share:.2f}, the share of hateful memes."
    hits, selected = cumulative_counts(y, p)
    with plots.add_plot("precision-recall", "Precision and recall", caption) as axes:
        axes.axhline(share, color=ROLE_COLOURS["muted"], **_DASHED_LINE)
        axes.plot(*_thin_points(hits / y.sum(), hits / selected), color=ROLE_COLOURS["accent"])
        axes.set(xlim=(0, 1), ylim=(0, 1.01), xlabel="recall", ylabel="precision")


def _draw_calibration(plots: Plots, y: npt.NDArray[Any], p: npt.NDArray[Any], error: float) -> None:
    caption = f"Expected calibration error {error:.4f}; a dot on the diagonal is well calibrated."
    index = calibration_bins(p)
    counts = np.bincount(index)
    filled = counts > 0
    means, shares = (np.bincount(index, values)[filled] / counts[filled] for values in (p, y))
    with plots.add_plot("calibration", "Calibration", caption) as axes:
        axes.plot([0, 1], [0, 1], color=ROLE_COLOURS["muted"], **_DASHED_LINE)
        axes.plot(means, shares, color=ROLE_COLOURS["accent"], linewidth=1, alpha=0.6)
        sizes = 14 + 130 * counts[filled] / counts.sum()
        axes.scatter(means, shares, s=sizes, color=ROLE_COLOURS["accent"], linewidths=0)
        ends = (-0.03, 1.03)
        axes.set(xlim=ends, ylim=ends, xlabel="predicted probability", ylabel="share of hateful")


def _format_update_axis(axes: Axes, curves: TrainingCurves) -> None:
    """Mark the attempts, and give all plots of a training the same x axis so that they line up."""
    transform = axes.get_xaxis_transform()
    for number, attempt in enumerate(curves.attempts[1:], 2):
        axes.axvline(attempt.start_update, color=ROLE_COLOURS["ink"], linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
        axes.text(attempt.start_update, 1.0, f" {number}", transform=transform, va="top", fontsize=8)
    last = max(sample.update for sample in (*curves.samples, *curves.superseded_samples))
    axes.set(xlim=(0, 1.03 * last or 1), xlabel="update")


def _draw_over_time(axes: Axes, points: Points) -> None:
    longest = points[-1][0]
    unit, seconds = ("minutes", 60) if longest > 120 else ("seconds", 1)
    unit, seconds = ("hours", 3600) if longest > 7200 else (unit, seconds)
    _draw_line(axes, [(x / seconds, y) for x, y in points], "series-1")
    axes.set(ylim=(0, max(y for _, y in points) * 1.08 or 1), xlabel=f"{unit} of training")


def _draw_line(axes: Axes, points: Points, role: str, *, alpha: float = 1.0, dots: bool = False) -> None:
    """Draw a line, averaging neighbouring points if there are more than can be seen.

    With ``dots``, the points are marked if there are few; a single point is always marked.
    """
    if points:
        parts = np.array_split(np.array(points), min(_MAX_LINE_POINTS, len(points)))
        xs, ys = np.array([part.mean(axis=0) for part in parts]).T
        marker = "o" if len(points) == 1 or (dots and len(points) < 40) else ""
        axes.plot(xs, ys, color=ROLE_COLOURS[role], alpha=alpha, marker=marker, markersize=3.2)


def _thin_points(xs: npt.NDArray[Any], ys: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return some points of a curve, including both ends."""
    indices = np.unique(np.linspace(0, len(xs) - 1, min(_MAX_LINE_POINTS, len(xs))).astype(int))
    return xs[indices], ys[indices]


def _to_themed_svg(svg: str, name: str, alt_text: str) -> str:
    """Convert Matplotlib's SVG to a page element with CSS colours, unique IDs and a text alternative."""
    body = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    body = re.sub(r'(\bid="|href="#|url\(#)', rf"\1{name}-", body)
    for role, colour in ROLE_COLOURS.items():
        body = body.replace(colour, f"var(--{role})")
    head = re.search(r'<svg[^>]*(viewBox="[^"]+")[^>]*>', body)
    assert head is not None
    return f'<svg {head[1]} role="img" aria-label={quoteattr(alt_text)}>' + body[head.end() :]
