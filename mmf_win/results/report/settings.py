"""One small plot for each setting that varies within a sweep: its values against the validation AUROC."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from mmf_win.results.report.svg import COLOURS, SIZE, Plot

_LOGARITHMIC = 50  # times the smallest number, from which on an axis is logarithmic
_LETTER = 0.07  # inches
_LONGEST = 14  # letters of a label
_MOST = 20  # categories that are all labelled
_TURNED: Any = {"rotation": 90, "rotation_mode": "anchor", "ha": "right", "va": "center"}
_COLOUR = COLOURS["accent"]
_LEFT, _WIDTH, _TOP, _FOOT = 0.17, 0.81, 0.95, 0.17  # of a plot, as shares

Runs = Sequence[tuple[Mapping[str, object], float | None]]
"""The settings of each run, and its score."""


def by_setting(runs: Runs) -> list[Plot]:
    """A dot a run and a line through the mean at each value, for each setting that varies.

    Numbers have an axis of numbers. Other values stand apart as categories, in order, as do all values of a
    setting that some runs do not have. Runs without a score are left out.
    """
    scored = [(settings, score) for settings, score in runs if score is not None]
    columns = {
        name: [_value(settings.get(name)) for settings, _ in scored]
        for name in dict.fromkeys(name for settings, _ in scored for name in settings)
    }
    varying = {name: values for name, values in columns.items() if len(set(values)) > 1}
    scores = [score for _, score in scored]
    return [_plot(f"setting-{n}", name, varying[name], scores) for n, name in enumerate(varying, 1)]


def _plot(name: str, title: str, values: Sequence[float | str], scores: Sequence[float]) -> Plot:
    distinct = sorted(set(values), key=lambda value: (isinstance(value, str), value))
    numbers = [value for value in distinct if not isinstance(value, str)]
    is_numeric = len(numbers) == len(distinct)
    is_logarithmic = is_numeric and numbers[0] > 0 and numbers[-1] >= _LOGARITHMIC * numbers[0]
    places = dict(zip(distinct, numbers if is_numeric else range(len(distinct)), strict=True))
    labels = [_label(value) for value in distinct]
    needed = _LETTER * max(map(len, labels))
    room = _room(numbers, is_logarithmic) if is_numeric else _WIDTH * SIZE[0] / len(labels)
    fits = needed + _LETTER < room
    foot = _FOOT if fits or is_numeric else 0.06 + needed / SIZE[1]
    caption = f"{len(scores)} runs at {len(distinct)} values{', on a logarithmic scale' * is_logarithmic}."
    plot = Plot(name, title, caption)
    with warnings.catch_warnings():
        # Matplotlib's font lacks letters that the page's may have. Filters are of the whole process.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        with plot.drawing((_LEFT, foot, _WIDTH, _TOP - foot)) as axes:
            if len(distinct) < len(values):
                axes.plot(list(places.values()), _means(values, scores, distinct), color=_COLOUR, alpha=0.6)
            xs = [places[value] for value in values]
            axes.plot(xs, scores, "o", color=_COLOUR, markersize=4.5, alpha=0.6, markeredgewidth=0)
            axes.set_ylabel("validation AUROC")
            if is_logarithmic:
                axes.set_xscale("log")
                axes.minorticks_off()
            if not is_numeric:
                step = 1 if fits else math.ceil(len(labels) / _MOST)
                axes.set_xlim(-0.5, len(labels) - 0.5)
                look = {} if fits else _TURNED
                axes.set_xticks(range(0, len(labels), step), labels[::step], parse_math=False, **look)
            elif fits:
                axes.set_xticks(numbers, labels)
            else:  # others of the scale
                if not is_logarithmic:
                    axes.locator_params("x", nbins=5)
                axes.xaxis.set_major_formatter("{x:g}")
    return plot


def _means(
    values: Sequence[float | str], scores: Sequence[float], distinct: Sequence[float | str]
) -> list[float]:
    pairs = list(zip(values, scores, strict=True))
    return [statistics.mean(score for value, score in pairs if value == one) for one in distinct]


def _room(numbers: Sequence[float], is_logarithmic: bool) -> float:
    """Inches between the two neighbours that are closest to each other on their axis."""
    places = list(map(math.log, numbers)) if is_logarithmic else numbers
    closest = min(after - before for before, after in pairwise(places))
    return 0.9 * _WIDTH * SIZE[0] * closest / (places[-1] - places[0])


def _value(value: object) -> float | str:
    """A finite number, also in letters, since PyYAML reads 1e-5 as a text; or the text of another value."""
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = math.nan
        if math.isfinite(number):
            return number
    return "not set" if value is None else " ".join(str(value).split())


def _label(value: float | str) -> str:
    """A label without its middle where it is long: its end may be what tells it from others."""
    text = value if isinstance(value, str) else f"{value:g}"
    return text if len(text) <= _LONGEST else f"{text[:6]}…{text[-7:]}"
