"""Fixtures for the tests of reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worlds import report_world


@pytest.fixture
def world(user_dir: Path) -> report_world.ReportWorld:
    """Return labelled memes, in a folder whose name mixes three scripts."""
    return report_world.make(user_dir)
