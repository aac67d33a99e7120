"""Settings of many runs and what came of them, as parallel coordinates."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from mmf_win.results.report.svg import COLOURS, SIZE, Plot

_HEIGHT = 2.9  # inches, as all that follows
_LETTER = 0.068
_LINE = 0.16
_NEAREST = 0.45  # of two axes

_LONGEST = 12  # letters of a label, and of a line of an axis' name
_MOST_LABELS = 6  # of numbers; where there are more, some of the scale are named
_SCALE_LABELS = 4
_APART = 0.075  # two labels of an axis, which is 1 high
_ABOVE_MISSING = 0.14  # where numbers begin, on an axis that some runs have no value on
_LOGARITHMIC = 50  # times the smallest number, from which on a scale is logarithmic
_MISSING = "–"
_BEST: dict[str, Any] = {"color": COLOURS["accent"], "linewidth": 1.7}
_OTHER: dict[str, Any] = {"color": COLOURS["muted"], "linewidth": 1, "alpha": 0.45}


@dataclass(frozen=True)
class _Axis:
    """One of the axes, from 0 at its foot to 1.

    Attributes:
        name: in lines.
        places: of the runs.
        labels: place → what is written there.
        logarithmic: whether its scale is.
    """

    name: list[str]
    places: list[float]
    labels: dict[float, str]
    logarithmic: bool = False

    @property
    def name_width(self) -> float:
        return _LETTER * max(map(len, self.name))

    @property
    def label_width(self) -> float:
        return _LETTER * (1 + max(map(len, self.labels.values())))


def parallel(
    name: str, title: str, axes: Sequence[str], rows: Sequence[Mapping[str, object]], score: str
) -> Plot:
    """One vertical axis a setting and one line a run, the runs with the best scores in a colour.

    Numbers have a scale, other values stand in alphabetical order, and missing ones at the foot.

    Args:
        name, title: of the plot.
        axes: the settings, from left to right.
        rows: the settings of each run, and its score; at least one has a score.
        score: the key of the scores, which is the last axis. More is better.
    """
    scored = [(value, row) for row in rows if (value := _number(row.get(score))) is not None]
    scored.sort(key=lambda pair: pair[0])  # the best are drawn last
    drawn = [_axis(key, [row.get(key) for _, row in scored]) for key in (*axes, score)]
    last_of_best = scored[-max(1, round(len(scored) / 4))][0]
    first = next(n for n, (value, _) in enumerate(scored) if value >= last_of_best)
    logarithmic = [key for key, axis in zip(axes, drawn, strict=False) if axis.logarithmic]
    plot = Plot(name, title, _caption(axes, scored, score, len(rows), logarithmic), size=(0, _HEIGHT))
    plot.legend = {f"the best {len(scored) - first}": "accent"}
    if first:
        plot.legend["the other runs"] = "muted"
    xs, width = _across(drawn)
    plot.size = (width, _HEIGHT)
    foot = (0.12 + _LINE * max(len(axis.name) for axis in drawn)) / _HEIGHT
    with warnings.catch_warnings():
        # Matplotlib's font lacks letters that the page's may have. Filters are of the whole process.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        with plot.drawing((0, foot, 1, 0.96 - foot)) as canvas:
            canvas.set_axis_off()
            canvas.set(xlim=(0, width), ylim=(0, 1))
            for x in xs:
                canvas.plot([x, x], [0, 1], color=COLOURS["rule"], linewidth=1.2, clip_on=False)
            for n, places in enumerate(zip(*(axis.places for axis in drawn), strict=True)):
                look = _BEST if n >= first else _OTHER
                canvas.plot(xs, places, clip_on=False, **look)
            for x, axis in zip(xs, drawn, strict=True):
                canvas.text(x, -0.05, "\n".join(axis.name), ha="center", va="top", parse_math=False)
                side, gap = ("left", 0.05) if axis is drawn[-1] else ("right", -0.05)
                for place, label in axis.labels.items():
                    canvas.text(x + gap, place, label, ha=side, va="center", fontsize=8, parse_math=False)
    return plot


def _caption(
    axes: Sequence[str],
    scored: Sequence[tuple[float, Mapping[str, object]]],
    score: str,
    count: int,
    logarithmic: Sequence[str],
) -> str:
    value, best = scored[-1]
    settings = ", ".join(f"{key} {_cut(_text(best.get(key)))}" for key in axes)
    said = f"{len(scored)} runs, one line each. The best {score}, {value:.4f}, came with {settings}."
    if logarithmic:
        said += f" The scale of {', '.join(logarithmic)} is logarithmic."
    if left_out := count - len(scored):
        said += f" Without a {score} and left out: {left_out}."
    return said


def _across(axes: Sequence[_Axis]) -> tuple[list[float], float]:
    """Where the axes stand, and how wide it all is: as a phone, or as wide as the letters need it to be."""
    first, *_, last = axes
    left = max(first.label_width, first.name_width / 2) + 0.1
    right = max(last.label_width, last.name_width / 2) + 0.1
    gaps = [
        max(
            _NEAREST,
            after.label_width if after is not last else 0,
            (before.name_width + after.name_width) / 2 + _LETTER,
        )
        for before, after in pairwise(axes)
    ]
    stretch = max(1.0, (SIZE[0] - left - right) / sum(gaps))
    xs = list(accumulate([left, *(gap * stretch for gap in gaps)]))
    return xs, xs[-1] + right


def _axis(name: str, values: Sequence[object]) -> _Axis:
    numbers = [_number(value) for value in values]
    known = [number for number in numbers if number is not None]
    if not known or any(n is None and value is not None for n, value in zip(numbers, values, strict=True)):
        return _of_categories(name, [_text(value) for value in values])
    low, high = min(known), max(known)
    logarithmic = low > 0 and high >= _LOGARITHMIC * low
    foot = _ABOVE_MISSING if None in numbers else 0.0

    def place(number: float | None) -> float:
        if number is None:
            return 0.0
        if low == high:
            return (foot + 1) / 2
        share = (
            math.log(number / low) / math.log(high / low) if logarithmic else (number - low) / (high - low)
        )
        return foot + (1 - foot) * share

    shown, digits = sorted(set(known)), 6
    if len(shown) > _MOST_LABELS:
        digits = 3
        shares = [n / (_SCALE_LABELS - 1) for n in range(_SCALE_LABELS)]
        shown = [low * (high / low) ** s if logarithmic else low + (high - low) * s for s in shares]
    labels = {place(number): f"{number:.{digits}g}" for number in shown}
    if foot:
        labels[0.0] = _MISSING
    return _Axis(_lines(name), [place(number) for number in numbers], _apart(labels), logarithmic)


def _of_categories(name: str, values: Sequence[str]) -> _Axis:
    different = sorted(set(values), key=lambda text: (text != _MISSING, text))
    highest = len(different) - 1
    places = {text: n / highest if highest else 0.5 for n, text in enumerate(different)}
    labels = {place: _cut(text) for text, place in places.items()}
    return _Axis(_lines(name), [places[text] for text in values], _apart(labels))


def _apart(labels: Mapping[float, str]) -> dict[float, str]:
    """Those that do not touch, the highest among them."""
    kept: list[float] = []
    for place in sorted(labels, reverse=True):
        if not kept or kept[-1] - place >= _APART:
            kept.append(place)
    return {place: labels[place] for place in kept}


def _number(value: object) -> float | None:
    """A finite number, also in letters: PyYAML reads 1e-5 as a text."""
    if not isinstance(value, (int, float, str)) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _text(value: object) -> str:
    if value is None:
        return _MISSING
    return f"{value:.6g}" if isinstance(value, float) else " ".join(str(value).split())


def _cut(text: str) -> str:
    """A text without its middle where it is long: its end may be what tells it from others."""
    return text if len(text) <= _LONGEST else f"{text[:5]}…{text[-6:]}"


def _lines(name: str) -> list[str]:
    """A name in short lines, broken after dots, underscores, hyphens and spaces."""
    lines = [""]
    for part in re.findall(r"[^._\s-]+[._\s-]*|[._\s-]+", name):
        if lines[-1] and len(lines[-1]) + len(part.rstrip()) > _LONGEST:
            lines.append("")
        lines[-1] += part
    return [_cut(line) for line in lines]
