"""The plot of a sweep's settings, and the page of a sweep."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
pages = pytest.importorskip("mmf_win.results.report.pages")
comparison = pytest.importorskip("mmf_win.results.report.comparison")

from mmf_win.files import json_bytes  # noqa: E402
from mmf_win.results.report.parallel import parallel  # noqa: E402
from tests.worlds import report_world  # noqa: E402
from tests.worlds.browser import chromium, requires_browser  # noqa: E402
from tests.worlds.report_world import World, text_of  # noqa: E402

LONG = {"optimizer.params.lr": 1e-5, "training.max_grad_l2_norm": 1, "модель": "概念", "start": "elsewhere/a"}


def plotted(values: list[Any], scores: list[float | None] | None = None, axis: str = "lr") -> Any:
    """The plot of one setting; without scores, the runs are the better the later they come."""
    reached = scores or [n / 100 for n in range(len(values))]
    rows = [{axis: value, "AUROC": score} for value, score in zip(values, reached, strict=True)]
    return parallel("settings", "Settings", [axis], rows, "AUROC")


def letters(plot: Any) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", plot.svg)


def heights(plot: Any) -> dict[str, float]:
    """How far below the top each label stands."""
    found = re.findall(r'<text[^>]* y="([\d.]+)"[^>]*>([^<]*)</text>', plot.svg)
    assert found
    return {text: float(y) for y, text in found}


def lines(plot: Any, role: str) -> int:
    """How many lines of at least two points have a colour."""
    drawn = re.findall(r'<path d="([^"]*)"[^>]*style="([^"]*)"', plot.svg)
    return sum(f"stroke: var(--{role})" in style and "L" in path for path, style in drawn)


def test_numbers_stand_at_their_values() -> None:
    at = heights(plotted([16, 32, 64]))
    assert at["32"] - at["64"] == pytest.approx(2 * (at["16"] - at["32"]), rel=0.01)


def test_a_scale_is_logarithmic_where_numbers_are_fifty_times_as_large_as_others() -> None:
    plot = plotted([1e-5, 1e-4, 1e-3])
    at = heights(plot)
    assert at["0.0001"] - at["0.001"] == pytest.approx(at["1e-05"] - at["0.0001"], rel=0.01)
    assert "The scale of lr is logarithmic." in plot.caption
    for linear in ([0, 1, 1000], [1, 2, 49], [-1000, 1, 2]):
        assert "logarithmic" not in plotted(linear).caption


def test_numbers_in_letters_are_numbers() -> None:
    assert heights(plotted(["1e-5", 1e-4, "1e-3"])) == heights(plotted([1e-5, 1e-4, 1e-3]))


def test_other_values_stand_apart_in_alphabetical_order() -> None:
    at = heights(plotted(["b", "c", "a", True]))
    assert at["True"] > at["a"] > at["b"] > at["c"]
    assert at["a"] - at["b"] == pytest.approx(at["b"] - at["c"], abs=3)  # letters are of several heights


@pytest.mark.parametrize("values", [[16, None, 64], ["a", None, "b"], [[1, 2], None, [3]]])
def test_what_is_missing_stands_at_the_foot(values: list[Any]) -> None:
    at = heights(plotted(values))
    assert at["–"] > max(height for label, height in at.items() if label in map(str, values))


def test_of_many_numbers_some_of_the_scale_are_named() -> None:
    assert {"10", "20", "30", "40"} <= set(letters(plotted(list(range(10, 41)), axis="updates")))


@pytest.mark.parametrize("values", [[1, 1.001, 1.002, 10], [f"{n:02}x" for n in range(60)]])
def test_labels_do_not_touch(values: list[Any]) -> None:
    at = sorted(y for text, y in heights(plotted(values)).items() if text in {str(value) for value in values})
    assert len(at) > 1 and all(b - a > 9 for a, b in pairwise(at))


@pytest.mark.parametrize(
    "value", [1, "a", None, float("nan"), 10**400, "", "$x^", "<b>&", "\N{SNOWMAN}" * 30]
)
def test_any_value_can_be_drawn(value: object) -> None:
    assert lines(plotted([value, value]), "accent") + lines(plotted([value, value]), "muted") == 2


def test_the_best_quarter_has_a_colour_and_a_run_without_a_score_no_line() -> None:
    plot = plotted([16, 32, 64, 128] * 3, [0.5 + n / 100 for n in range(8)] + [None] * 4)
    assert (lines(plot, "accent"), lines(plot, "muted")) == (2, 6)
    assert plot.legend == {"the best 2": "accent", "the other runs": "muted"}
    assert "8 runs, one line each. The best AUROC, 0.5700, came with lr 128." in plot.caption
    assert "left out: 4." in plot.caption


def test_it_is_as_wide_as_a_phone_unless_its_letters_need_more() -> None:
    rows = [{"lr": 1e-5, "batch_size": 32, "seed": n, "AUROC": n} for n in range(3)]
    assert parallel("a", "A", ["lr", "batch_size", "seed"], rows, "AUROC").size[0] == pytest.approx(3.5)
    assert parallel("a", "A", [f"a_longer_name_{n}" for n in range(9)], rows, "AUROC").size[0] > 6


def sweep(world: World, count: int, predicted: int) -> tuple[list[Any], dict[Path, Mapping[str, object]]]:
    """Runs of which each is better than the one before, and their settings."""
    runs, settings = [], {}
    for n in range(count):
        run = world.run(f"task{n:02}", overrides=[f"optimizer.params.lr={n}e-6"])
        events = report_world.attempt("1", 0, 120, "ok", seed=1)
        for event in events:
            if event["kind"] == "val":
                event["metrics"]["hateful_memes/roc_auc"] += n / 1000
        run.events.write_bytes(b"".join(map(json_bytes, events)))
        if n < predicted:
            world.predict(run)
        runs.append(run)
        settings[run.path] = {**LONG, "optimizer.params.lr": (n + 1) * 1e-6, "freeze": n % 2 == 0}
    return runs, settings


def test_of_many_runs_the_best_by_validation_are_shown_and_compared(user_dir: Path) -> None:
    world = report_world.make(user_dir, drawn=False)
    runs, settings = sweep(world, 12, predicted=10)
    about = comparison.of_runs(
        [(run, pages._scored(run, report_world.SPLIT, None)) for run in runs], None, settings
    )
    contrasted = {run.id for c in about["contrasts"] for run in (c.first.run, c.second.run)}
    assert contrasted == {run.id for run in runs[2:10]}, "of those with predictions"
    assert len(about["contrasts"]) == 8 * 7 / 2
    assert len(about["colours"]) == 8 and about["plots"][0].caption.startswith("8 runs")
    page = text_of(pages.of_runs(runs, world.save, settings=settings).read_text(encoding="utf-8"))
    assert "Of 12 runs, these are the 8 with the best validation AUROC." in page
    assert "Of the runs that predicted test_seen, only the 8 with the best validation AUROC" in page
    assert (
        "12 runs, one line each. The best validation AUROC, 0.7110, came with optimizer.params.lr 1.2e-05"
        in page
    )


def test_of_few_runs_all_are_shown(user_dir: Path) -> None:
    world = report_world.make(user_dir, drawn=False)
    runs, settings = sweep(world, 3, predicted=3)
    page = text_of(pages.of_runs(runs, world.save, settings=settings).read_text(encoding="utf-8"))
    assert "3 runs, one line each" in page and "these are the" not in page and "only the" not in page
    assert "different rows" not in page


def test_without_settings_or_scores_there_is_no_such_plot(user_dir: Path) -> None:
    world = report_world.make(user_dir, drawn=False)
    runs, settings = sweep(world, 10, predicted=10)
    page = pages.of_runs(runs, world.save).read_text(encoding="utf-8")
    assert 'id="settings"' not in page and "these are the" not in page
    assert page.count('data-name="Other"') == 10 * 9 / 2
    for run in runs:
        run.events.unlink()
    assert 'id="settings"' not in pages.of_runs(runs, world.save, settings=settings).read_text(
        encoding="utf-8"
    )


def test_scores_on_different_rows_are_told(user_dir: Path) -> None:
    world = report_world.make(user_dir, drawn=False)
    runs, settings = sweep(world, 2, predicted=0)
    data = {"split": "dev_seen", "rows": 433, "full_rows": 500}
    events = report_world.attempt("1", 0, 120, "ok", validated=data)
    runs[0].events.write_bytes(b"".join(map(json_bytes, events)))
    page = text_of(pages.of_runs(runs, world.save, settings=settings).read_text(encoding="utf-8"))
    assert "The runs were validated on different rows" in page


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A sweep's page in Chromium."""
    world = report_world.make(tmp_path_factory.mktemp("sweep"), drawn=False)
    runs, settings = sweep(world, 12, predicted=2)
    page = pages.of_runs(runs, world.save, settings=settings)
    with chromium() as browser:
        tab = browser.new_page()
        tab.goto(page.as_uri())
        yield tab


@requires_browser()
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1200])
def test_it_is_shown_in_a_browser_and_nothing_overflows(shown: Any, width: int, scheme: str) -> None:
    shown.set_viewport_size({"width": width, "height": 800})
    shown.emulate_media(color_scheme=scheme)
    box = shown.locator("#settings svg").bounding_box()
    assert box["width"] > 280 and box["height"] > 200
    assert shown.evaluate("document.documentElement.scrollWidth") == width
    scroll = shown.locator("#settings .scroll")
    card, outer = shown.locator("#settings").bounding_box(), scroll.bounding_box()
    assert card["x"] >= 0 and card["x"] + card["width"] <= width
    assert outer["x"] + outer["width"] <= card["x"] + card["width"]
    assert scroll.evaluate("e => e.scrollHeight <= e.clientHeight"), "it scrolls sideways alone"
    outside = """() => {
      const all = document.querySelector("#settings svg").getBoundingClientRect();
      return [...document.querySelectorAll("#settings svg text")].filter(text => {
        const box = text.getBoundingClientRect();
        return box.left < all.left - 1 || box.right > all.right + 1 || box.bottom > all.bottom + 1;
      }).map(text => text.textContent);
    }"""
    assert shown.evaluate(outside) == []
    halo = "getComputedStyle(document.querySelector('#settings svg text')).stroke"
    surface = "getComputedStyle(document.querySelector('#settings')).backgroundColor"
    assert shown.evaluate(halo) == shown.evaluate(surface), "letters can be read above lines"
