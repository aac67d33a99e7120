"""Documentation site, built and opened in a real Chromium."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.worlds.browser import launch_browser, requires_browser

ROOT = Path(__file__).parents[1]
_FIND_OVERFLOWING_ELEMENTS = """() => [document.scrollingElement, ...document.querySelectorAll("article *")]
  .filter(e => e === document.scrollingElement || ["auto", "scroll"].includes(getComputedStyle(e).overflowX))
  .filter(e => e.scrollWidth > e.clientWidth)
  .map(e => e.textContent.trim().slice(0, 60))"""


@pytest.mark.wide
@requires_browser("mkdocs", "material")
def test_pages_do_not_scroll_horizontally_on_a_small_laptop(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    overflowing = {}
    with launch_browser() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        for file in tmp_path.rglob("*.html"):
            page.goto(file.as_uri())
            overflowing[file.parent.name] = page.evaluate(_FIND_OVERFLOWING_ELEMENTS)
    assert len(overflowing) > 25
    assert {name: elements for name, elements in overflowing.items() if elements} == {}
