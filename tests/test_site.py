"""The site of the documentation, built and opened in a real Chromium."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.worlds.browser import launch_browser, requires_browser

ROOT = Path(__file__).parents[1]
_WIDER_THAN_ITS_PLACE = """() => [document.scrollingElement, ...document.querySelectorAll("article *")]
  .filter(e => e === document.scrollingElement || ["auto", "scroll"].includes(getComputedStyle(e).overflowX))
  .filter(e => e.scrollWidth > e.clientWidth)
  .map(e => e.textContent.trim().slice(0, 60))"""


@pytest.mark.wide
@requires_browser("mkdocs", "material")
def test_no_page_and_nothing_on_it_scrolls_sideways_on_a_small_laptop(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    wide = {}
    with launch_browser() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        for file in tmp_path.rglob("*.html"):
            page.goto(file.as_uri())
            wide[file.parent.name] = page.evaluate(_WIDER_THAN_ITS_PLACE)
    assert len(wide) > 25
    assert {name: found for name, found in wide.items() if found} == {}
