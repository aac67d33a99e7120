"""Fills the templates and writes the page."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from mmf_win import __version__
from mmf_win.files import replacing


def write_page(template: str, output: Path, **values: Any) -> Path:
    """Write a page, complete or not at all.

    Everything that comes from runs and datasets is escaped, and a content security policy forbids the page to
    load anything, so that neither a meme's text nor a run's name can make it do something.

    Args:
        template: the file's name in ``templates/``.
        output: the page; its folder is made.
        **values: what the template shows.
    """
    environment = Environment(
        loader=PackageLoader("mmf_win.results.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["score"] = _score
    made = datetime.now().strftime("%Y-%m-%d %H:%M")
    page = environment.get_template(template).render(version=__version__, made=made, **values)
    output.parent.mkdir(parents=True, exist_ok=True)
    with replacing(output.resolve()) as temporary:  # a link stays one
        temporary.write_text(page, encoding="utf-8", errors="xmlcharrefreplace", newline="\n")
    return output


def _score(value: float | None, digits: int = 4, sign: bool = False) -> str:
    """A metric, or that there is none; a real minus sign before negative ones."""
    if value is None:
        return "undefined"
    return f"{value:{'+' if sign else ''}.{digits}f}".replace("-", "−")
