"""Matplotlib figures as SVG that takes its colours and fonts from the page around it."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Matplotlib wants a colour; each of these stands for the CSS variable that takes its place.
SERIES = tuple(f"series-{n}" for n in range(1, 9))
"""Roles whose colours are easily told apart, in order."""

_ROLES = ("ink", "muted", "rule", "hateful", "benign", "accent", *SERIES)
COLOURS = {role: f"#{0xC0DE00 + n:06x}" for n, role in enumerate(_ROLES)}
"""The roles that a colour of a plot can have."""

_SIZE = (3.5, 2.5)  # inches; about as wide as a phone, so that letters keep their size there
# Left, bottom, width, height as shares; fixed, since measuring every letter first takes twice as long.
_AREA = (0.15, 0.17, 0.83, 0.78)
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "mmfw",
    "path.simplify": True,
    "font.size": 8.5,
    "axes.edgecolor": COLOURS["rule"],
    "axes.labelcolor": COLOURS["muted"],
    "axes.labelsize": 8.5,
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
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


@dataclass(frozen=True)
class Key:
    """One entry of a legend.

    Attributes:
        colour: the role of its colour.
        label: what it stands for.
    """

    colour: str
    label: str


@dataclass(frozen=True)
class Plot:
    """A plot that is ready for the page.

    Attributes:
        name: of the element on the page.
        title: above it.
        caption: below it, in a sentence.
        svg: the drawing; its text alternative is the title and ``says``.
        legend: what the colours mean.
    """

    name: str
    title: str
    caption: str
    svg: str
    legend: tuple[Key, ...] = ()


class Canvas:
    """What a plot is drawn on: ``axes``, and afterwards :attr:`svg`."""

    def __init__(self, name: str, says: str, size: tuple[float, float]) -> None:
        self._name, self._says = name, says
        self._figure = Figure(figsize=size)
        self.axes: Axes = self._figure.add_axes(_AREA)
        self.svg = ""

    def finish(self) -> None:
        """Write the drawing."""
        buffer = io.StringIO()
        self._figure.savefig(buffer, format="svg", metadata={"Date": None})
        self.svg = themed(buffer.getvalue(), self._name, self._says)


@contextmanager
def canvas(name: str, says: str, size: tuple[float, float] = _SIZE) -> Iterator[Canvas]:
    """Draw a plot.

    Args:
        name: tells its ids from those of other drawings on the page.
        says: what it shows, for whoever cannot see it.
        size: in inches.
    """
    with matplotlib.rc_context(_STYLE):
        drawing = Canvas(name, says, size)
        yield drawing
        drawing.finish()


def themed(drawn: str, name: str, says: str) -> str:
    """Matplotlib's SVG as an element of a page: variable colours, ids of its own, and a text alternative."""
    body = re.sub(r"<metadata>.*?</metadata>", "", drawn[drawn.index("<svg") :], flags=re.DOTALL)
    body = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', body)
    body = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', body)
    body = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", body)
    for role, colour in COLOURS.items():
        body = body.replace(colour, f"var(--{role})")
    head = re.match(r"<svg[^>]*>", body)
    assert head is not None
    view = re.search(r'viewBox="[^"]+"', head[0])
    assert view is not None
    opening = f'<svg {view[0]} role="img" aria-label="{escape(says, {chr(34): "&quot;"})}">'
    return opening + body[head.end() :]
