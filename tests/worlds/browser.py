"""Chromium, if it is installed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from shutil import which
from typing import Any

import pytest

_CHROMIUM = which("chromium") or which("chromium-browser") or which("google-chrome")
_ARGUMENTS = [
    "--no-sandbox",  # CI runs as root, for which the sandbox does not work
    *("--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--no-first-run",
]
_REASON_SUFFIX = " on Windows, where the pages are not tested" if sys.platform == "win32" else ""


def requires_browser(*modules: str) -> pytest.MarkDecorator:
    """Skip tests if Chromium, Playwright or one of the modules is not installed."""
    missing = [] if _CHROMIUM else ["chromium"]
    missing += [name for name in ("playwright", *modules) if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed{_REASON_SUFFIX}: {', '.join(missing)}")


@contextmanager
def launch_browser() -> Iterator[Any]:
    """Yield Playwright's browser, without a window and without background network traffic."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_CHROMIUM, args=_ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()
