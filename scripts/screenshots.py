"""Take the screenshots in docs/ from a report about the demo's memes, which are free to use.

python scripts/screenshots.py DIR

DIR is a new or existing folder of `mmfw demo --dir DIR`. Needs Chromium and playwright.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

DOCS = Path(__file__).parents[1] / "docs"
_MARGIN = 14  # in pixels; less than the space between two cards
_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]


def main(arguments: list[str]) -> int:
    """Write docs/report-light.png, -dark.png and -phone.png."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("folder", type=Path, metavar="DIR")
    folder = parser.parse_args(arguments).folder.absolute()
    folders = ("--data-dir", str(folder / "data"), "--save-dir", str(folder / "save"))
    if not (folder / "data").is_dir():
        run_mmfw("demo", "--dir", str(folder))
    report = json.loads(run_mmfw("report", "demo", *folders, "--json"))["report"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_find_chromium(), args=_ARGUMENTS)
        camera = _Camera(browser, Path(report))
        camera.take("report-light", "light", width=1200, last="#calibration")
        camera.take("report-dark", "dark", width=1200, first="#mistakes-title", last="#false-negatives > :nth-child(8)")
        camera.take("report-phone", "light", width=360, last=".tiles")
        browser.close()
    return 0


def run_mmfw(*arguments: str) -> str:
    """Run a command and return its output."""
    command = [sys.executable, "-m", "mmf_win", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout


def _find_chromium() -> str:
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    return path or sys.exit("Chromium is not installed.")


class _Camera:
    def __init__(self, browser: Any, page: Path) -> None:
        self._browser, self._page = browser, page

    def take(self, name: str, scheme: str, *, width: int, last: str, first: str = "html") -> None:
        """Save the page from one element to another; few colours keep the file small.

        One of the hidden memes is revealed.
        """
        page = self._browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.goto(self._page.as_uri())
        page.locator("#false-negatives button.picture").nth(1).click()
        page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
        top, bottom = (page.locator(selector).bounding_box() for selector in (first, last))
        y = max(top["y"] - _MARGIN, 0)
        part = {"x": 0, "y": y, "width": width, "height": bottom["y"] + bottom["height"] + _MARGIN - y}
        with tempfile.TemporaryDirectory() as folder:
            page.screenshot(path=Path(folder, "full.png"), full_page=True, clip=part)
            with Image.open(Path(folder, "full.png")) as full:
                few = full.convert("RGB").quantize(256)
        few.save(DOCS / f"{name}.png", optimize=True)
        page.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
