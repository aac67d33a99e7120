"""A real Chromium, without a window and without a network of its own."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_ARGUMENTS = [
    "--no-sandbox",  # CI runs as root, where there is none
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


def executable() -> str | None:
    """The installed browser."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


def requires_browser() -> pytest.MarkDecorator:
    """Skip a test, saying so, where there is no Chromium or no playwright; in CI that fails it."""
    missing = [
        *([] if executable() else ["chromium"]),
        *([] if importlib.util.find_spec("playwright") else ["playwright"]),
    ]
    where = " on Windows, where the pages are not tested" if sys.platform == "win32" else ""
    return pytest.mark.skipif(bool(missing), reason=f"not installed{where}: {', '.join(missing)}")


@contextmanager
def chromium() -> Iterator[Any]:
    """A running browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), args=_ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()
