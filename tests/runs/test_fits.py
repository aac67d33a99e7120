"""What is remembered of micro-batches that fitted."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmf_win.cli import main
from mmf_win.runs import fits


def test_what_fitted_is_remembered_and_shown_until_the_whole_batch_does(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fits.load() == {}
    fits.remember("mmbt on a GPU", 8)
    fits.remember("vilbert on a GPU", 4)
    assert fits.load() == {"mmbt on a GPU": 8, "vilbert on a GPU": 4}
    main(["doctor"])
    assert "mmbt on a GPU" in capsys.readouterr().out
    fits.remember("mmbt on a GPU", None)
    assert fits.load() == {"vilbert on a GPU": 4}


@pytest.mark.parametrize("content", ["{half a", "[1]", '{"a": "many"}', '{"a": -1}'])
def test_a_file_that_is_no_memory_holds_nothing_and_is_replaced(home: Path, content: str) -> None:
    home.mkdir()
    fits.file().write_text(content, encoding="utf-8")
    assert fits.load() == {}
    fits.remember("a", 2)
    assert fits.load() == {"a": 2}


def test_only_the_newest_are_kept(home: Path) -> None:
    for number in range(203):
        fits.remember(f"kind {number}", 1)
    assert list(fits.load()) == [f"kind {number}" for number in range(3, 203)]
