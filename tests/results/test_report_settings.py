"""The plots of a sweep's settings, and what is special about the page of a sweep."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
pages = pytest.importorskip("mmf_win.results.report.pages")
comparison = pytest.importorskip("mmf_win.results.report.comparison")

from mmf_win.results.report.plots import by_setting  # noqa: E402
from tests.worlds import report_world  # noqa: E402
from tests.worlds.report_world import sweep, text_of  # noqa: E402


def plotted(values: list[Any], scores: list[float | None] | None = None) -> Any:
    """The plot of one setting."""
    reached = scores or [n / 100 for n in range(len(values))]
    [plot] = by_setting([({"lr": value}, score) for value, score in zip(values, reached, strict=True)])
    return plot


def places(plot: Any) -> dict[str, float]:
    """How far from the left each label of the values stands."""
    found = re.findall(r"rotate\(-0 ([\d.]+)[^>]*>([^<]*)</text>", plot.svg.partition("matplotlib.axis_2")[0])
    return {text: float(x) for x, text in found}


def dots(plot: Any) -> list[tuple[float, float]]:
    """Where the runs stand, from the left and from the top."""
    return [
        (float(x), float(y))
        for x, y in re.findall(r'<use [^>]*x="(.*?)" y="(.*?)" style="fill: var\(--accent', plot.svg)
    ]


def line(plot: Any) -> list[tuple[float, float]]:
    """The points of the line in the colour of the runs."""
    found = re.search(r'<path d="([^"]*)"[^>]*stroke: var\(--accent\); stroke-opacity[^>]*linecap', plot.svg)
    return [(float(x), float(y)) for x, y in re.findall(r"[ML] ([\d.]+) ([\d.]+)", found[1])] if found else []


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([16, 1000, 32], ["16", "32", "1000"]),
        (["1e-5", 1e-4, 1e-3, "1e-4"], ["1e-05", "0.0001", "0.001"]),
        (["b", "c", "a", True], ["True", "a", "b", "c"]),
        ([64, None, 16], ["16", "64", "not set"]),
    ],
)
def test_values_stand_in_order_and_apart(values: list[Any], labels: list[str]) -> None:
    plot = plotted(values)
    at = places(plot)
    assert list(at) == labels
    distances = [b - a for a, b in pairwise(at.values())]
    assert distances == pytest.approx([distances[0]] * len(distances), rel=0.01)
    assert sorted({x for x, _ in dots(plot)}) == pytest.approx(list(at.values()), abs=0.1)


def test_many_labels_are_turned_and_do_not_touch() -> None:
    plot = plotted([f"{n:02} and more" for n in range(60)])
    turned = re.findall(r"translate\(([\d.]+) [^)]*\) rotate\(-90\)", plot.svg)
    assert len(turned) == 20 and all(b - a > 9 for a, b in pairwise(map(float, turned)))


@pytest.mark.parametrize(
    "value", ["a", None, float("nan"), 10**400, "", "$x^", "<b>&", [1], "\N{SNOWMAN}" * 30]
)
def test_any_value_can_be_drawn(value: object) -> None:
    assert len(dots(plotted([value, 1]))) == 2


def test_a_line_goes_through_the_mean_at_each_value() -> None:
    plot = plotted([1, 2, 2, 3], [0.5, 0.6, 0.8, 0.9])
    (_, first), (_, low), (_, high), (_, last) = dots(plot)
    assert [y for _, y in line(plot)] == pytest.approx([first, (low + high) / 2, last], abs=0.01)
    assert line(plotted([1, 2, 3])) == [], "one run a value has no mean"


def test_what_does_not_vary_and_what_has_no_score_is_left_out() -> None:
    found = by_setting([({"a": n, "b": 7, "c": n // 2}, n / 10 if n < 2 else None) for n in range(4)])
    assert [(plot.title, plot.name) for plot in found] == [("a", "setting-1")]
    assert len(dots(found[0])) == 2 and found[0].caption == "2 runs at 2 values."
    assert by_setting([({"a": n}, None) for n in range(4)]) == []


def test_of_many_runs_the_best_by_validation_are_shown_and_compared(user_dir: Path) -> None:
    world = report_world.make(user_dir, drawn=False)
    runs, settings = sweep(world, 12, predicted=10)
    about = comparison.of_runs(
        [(run, pages._scored(run, report_world.SPLIT, None)) for run in runs], None, settings
    )
    contrasted = {run.id for c in about["contrasts"] for run in (c["first"].run, c["second"].run)}
    assert contrasted == {run.id for run in runs[2:10]}, "of those with predictions"
    assert len(about["contrasts"]) == 8 * 7 / 2
    assert len(about["colours"]) == 8 and about["plots"][0].caption.startswith("8 runs")
    runs[0].events.unlink()
    page = text_of(pages.of_runs(runs, world.save, settings=settings).read_text(encoding="utf-8"))
    assert "Of 12 runs, these are the 8 with the best validation AUROC." in page
    assert "Of the runs that predicted test_seen, only the 8 with the best validation AUROC" in page
    assert "11 runs at 11 values" in page and "Left out, without a validation AUROC: 1 of 12 runs." in page


def test_of_few_runs_all_are_shown_and_of_no_sweep_there_are_no_settings(user_dir: Path) -> None:
    world = report_world.make(user_dir, drawn=False)
    runs, settings = sweep(world, 9, predicted=9)
    page = pages.of_runs(runs, world.save).read_text(encoding="utf-8")
    assert 'id="setting' not in page and "these are the" not in page
    assert page.count('data-name="Other"') == 9 * 8 / 2
    data = {"split": "dev_seen", "rows": 433, "full_rows": 500}
    for run, validated in zip(runs[:2], (None, data), strict=True):
        report_world.tell(run, report_world.attempt("1", 0, 120, "ok", validated=validated))
        page = text_of(pages.of_runs(runs[:2], world.save, settings=settings).read_text(encoding="utf-8"))
        assert "2 runs at 2 values" in page and "these are the" not in page and "only the" not in page
        assert ("The runs were validated on different rows" in page) == (validated is not None)
