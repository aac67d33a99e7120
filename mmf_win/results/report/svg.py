"""Matplotlib figures as SVG that takes its colours and fonts from the page around it."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from xml.sax.saxutils import quoteattr

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Matplotlib wants a colour; each of these stands for the CSS variable that takes its place.
SERIES = tuple(f"series-{n}" for n in range(1, 9))
"""Roles whose colours are easily told apart, in order."""

_ROLES = ("ink", "muted", "rule", "hateful", "benign", "accent", *SERIES)
COLOURS = {role: f"#{0xC0DE00 + n:06x}" for n, role in enumerate(_ROLES)}
"""The roles that a colour of a plot can have."""

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


@dataclass
class Plot:
    """A plot of the page.

    Attributes:
        name: of the element on the page; the ids in the drawing begin with it.
        title: above it.
        caption: below it, in a sentence.
        legend: what its colours mean: label → the role of the colour.
        svg: what :meth:`drawing` drew; its text alternative is the title and the caption.
    """

    name: str
    title: str
    caption: str
    legend: dict[str, str] = field(default_factory=dict)
    svg: str = ""

    @contextmanager
    def drawing(self) -> Iterator[Axes]:
        """Axes to draw on; afterwards, :attr:`svg` is the drawing."""
        with matplotlib.rc_context(_STYLE):
            figure = Figure(figsize=_SIZE)
            yield figure.add_axes(_AREA)
            buffer = io.StringIO()
            figure.savefig(buffer, format="svg")
        self.svg = _themed(buffer.getvalue(), self.name, f"{self.title}: {self.caption}")


def _themed(drawn: str, name: str, says: str) -> str:
    """Matplotlib's SVG as an element of a page: variable colours, ids of its own, and a text alternative."""
    body = re.sub(r"<metadata>.*?</metadata>", "", drawn, flags=re.DOTALL)
    body = re.sub(r'(\bid="|href="#|url\(#)', rf"\1{name}-", body)
    for role, colour in COLOURS.items():
        body = body.replace(colour, f"var(--{role})")
    head = re.search(r'<svg[^>]*(viewBox="[^"]+")[^>]*>', body)
    assert head is not None
    return f'<svg {head[1]} role="img" aria-label={quoteattr(says)}>' + body[head.end() :]
