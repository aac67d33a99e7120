"""The display of a run in a notebook: its page in a cell, and its events as a table."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from mmf_win.cli import main
from mmf_win.errors import RunNotFoundError, UsageError
from mmf_win.runs import events_dataframe, find_run
from tests.worlds.report_world import ReportWorld
from tests.worlds.tools import requires_package, split_command

pytestmark = requires_package("pandas")


@pytest.fixture
def world(tmp_path: Path) -> ReportWorld:
    """Return a save folder, and data that has not been converted."""
    return ReportWorld(tmp_path / "data", tmp_path / "сохранено")


def test_run_without_a_page_names_the_command_and_later_shows_the_page(world: ReportWorld) -> None:
    run = world.add_run()
    assert find_run(save_dir=world.save) == find_run("mmbt_grid", str(world.save)) == run
    text = run._repr_html_()
    assert "<iframe" not in text
    (command,) = re.findall("<code>mmfw (.*)</code>", text)
    assert main(split_command(html.unescape(command))) == 0
    [page] = run.reports.glob("*.html")
    shown = re.search('srcdoc="([^"]*)"', run._repr_html_())
    assert shown and html.unescape(shown[1]) == page.read_text(encoding="utf-8")


def test_events_are_a_table_of_one_kind(world: ReportWorld) -> None:
    run = world.add_run()
    table = events_dataframe(run)
    assert {"t", "update", "loss"} <= set(table.columns) and "kind" not in table.columns
    assert str(table["t"].dt.tz) == "UTC"
    assert "metrics.auroc" in events_dataframe(run, "val").columns
    with pytest.raises(UsageError, match="no events of kind 'trian'") as error:
        events_dataframe(run, "trian")
    assert "train" in str(error.value.hint)
    with pytest.raises(RunNotFoundError):
        find_run("another", world.save)
