"""Report pages in a real Chromium."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.worlds import report_world
from tests.worlds.browser import launch_browser, requires_browser
from tests.worlds.tools import LazyModule

pytestmark = [pytest.mark.wide, pytest.mark.torch, requires_browser(), report_world.requires_report_packages]
pages = LazyModule("mmf_win.results.report.pages")

PLOTS = (*("loss", "validation", "rate", "roc", "precision-recall", "calibration", "histogram"), *("speed", "memory"))
SCRIPT = "<script>document.title = 'taken over'</script>"

OpenPage = Callable[..., Any]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write pages of a run, of two runs and of a sweep in a folder whose name mixes three scripts."""
    world = report_world.make(tmp_path_factory.mktemp("report") / "Мои данные 数据 #1")
    path = world.dataset.annotation_file(report_world.SPLIT)
    annotations = path.read_text(encoding="utf-8").replace("look how", f"{SCRIPT}look how", 1)
    path.write_text(annotations, encoding="utf-8")
    names = ("mmbt_grid", "a_rather_long_name_of_a_run_chosen_by_the_user")
    runs = [world.add_predicted_run(name, skill=-0.5) for name in names]  # mostly wrong, to show mistakes
    tasks, settings = report_world.make_sweep_runs(world, 12, predicted_count=2)
    return {
        "run": pages.write_run_page(runs[0]),
        "compare": pages.write_comparison_page(runs, world.save),
        "sweep": pages.write_comparison_page(tasks, world.save, settings=settings),
    }


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Yield a browser for all tests."""
    with launch_browser() as running:
        yield running


@pytest.fixture
def page(browser: Any, files: dict[str, Path]) -> Iterator[OpenPage]:
    """Yield a function that opens a page; afterwards, check that it logged and requested nothing."""
    context = browser.new_context()
    messages: list[str] = []
    urls: list[str] = []

    def open_page(name: str = "run", *, width: int = 1200, scheme: str = "light") -> Any:
        shown = context.new_page()
        shown.set_viewport_size({"width": width, "height": 800})
        shown.emulate_media(color_scheme=scheme)
        shown.on("console", lambda message: messages.append(message.text))
        shown.on("pageerror", lambda error: messages.append(str(error)))
        shown.on("request", lambda request: urls.append(request.url))
        shown.goto(files[name].as_uri())
        return shown

    yield open_page
    context.close()
    assert messages == []
    outside = [url for url in urls if not url.startswith("data:")]
    assert set(outside) <= {file.as_uri() for file in files.values()}


def test_every_plot_is_drawn(page: OpenPage) -> None:
    shown = page()
    for name in PLOTS:
        drawing = shown.locator(f"#{name} svg")
        box = drawing.bounding_box()
        assert box["width"] > 250 and box["height"] > 150, name
        assert drawing.get_attribute("aria-label"), name
        lengths = drawing.locator("path").evaluate_all("paths => paths.map(p => p.getTotalLength())")
        assert sum(length > 50 for length in lengths) > 2, name
    assert shown.locator("#confusion td b").count() == 4


def test_ids_are_unique_and_references_resolve(page: OpenPage) -> None:
    shown = page()
    ids = shown.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    used = shown.evaluate("[...document.querySelectorAll('use')].map(e => e.getAttribute('xlink:href'))")
    assert used and {name.lstrip("#") for name in used} <= set(ids)


def is_blurred(button: Any) -> bool:
    look = button.locator("img").evaluate("e => getComputedStyle(e).filter")
    return look != "none" and "blur(0" not in look


def test_pictures_are_blurred_until_they_are_clicked(page: OpenPage) -> None:
    shown = page()
    buttons = shown.locator("button.picture")
    assert buttons.count() > 10
    assert all(is_blurred(button) for button in buttons.all())
    first = buttons.first
    first.click()
    assert not is_blurred(first) and first.get_attribute("aria-pressed") == "true"
    assert is_blurred(buttons.nth(1)), "other pictures must stay blurred"
    first.click()
    assert is_blurred(first)


@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_pictures_are_reached_and_shown_by_keyboard(page: OpenPage, key: str) -> None:
    shown = page()
    for _ in range(4):
        shown.keyboard.press("Tab")
        if shown.evaluate("document.activeElement.matches('button.picture')"):
            break
    focused = shown.locator("button.picture:focus")
    assert focused.count() == 1
    assert focused.evaluate("e => getComputedStyle(e).outlineStyle") == "solid"
    shown.keyboard.press(key)
    assert not is_blurred(focused)


def test_one_button_shows_and_blurs_all_pictures(page: OpenPage) -> None:
    shown = page()
    toggle = shown.locator("button.all")
    toggle.click()
    assert not any(is_blurred(button) for button in shown.locator("button.picture").all())
    assert toggle.inner_text() == "Blur all pictures"
    toggle.click()
    assert all(is_blurred(button) for button in shown.locator("button.picture").all())


@pytest.mark.parametrize("name", ["run", "compare"])
def test_colours_follow_the_dark_mode(page: OpenPage, name: str) -> None:
    looks = []
    for scheme in ("light", "dark"):
        shown = page(name, scheme=scheme)
        background = shown.evaluate("getComputedStyle(document.body).backgroundColor")
        ink = shown.evaluate("getComputedStyle(document.body).color")
        line = shown.evaluate(
            "getComputedStyle(document.querySelector('#loss svg g[id*=line2d] path[style*=series]')).stroke"
        )
        letters = shown.evaluate("getComputedStyle(document.querySelector('#loss svg text')).fill")
        looks.append((background, ink, line, letters))
    assert all(light != dark for light, dark in zip(*looks, strict=True))


@pytest.mark.parametrize("name", ["run", "compare", "sweep"])
@pytest.mark.parametrize("width", [360, 768, 1200])
def test_page_does_not_scroll_horizontally(page: OpenPage, name: str, width: int) -> None:
    shown = page(name, width=width)
    assert shown.evaluate("document.documentElement.scrollWidth") == width
    widths = shown.evaluate("[...document.querySelectorAll('main *, header *')].map(e => e.scrollWidth)")
    assert max(widths) <= shown.evaluate("innerWidth")


@pytest.mark.parametrize("name", ["run", "compare", "sweep"])
def test_page_is_accessible_to_screen_readers(page: OpenPage, name: str) -> None:
    shown = page(name)
    assert shown.evaluate("document.documentElement.lang") == "en"
    assert shown.evaluate("[...document.images].filter(i => !i.alt).length") == 0
    nameless = "[...document.querySelectorAll('button')].filter(b => !(b.ariaLabel || b.innerText).trim())"
    assert shown.evaluate(f"{nameless}.length") == 0
    levels = shown.evaluate("[...document.querySelectorAll('h1, h2, h3')].map(h => +h.tagName[1])")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert shown.evaluate("[...document.querySelectorAll('svg')].every(s => s.getAttribute('aria-label'))")


_CONTRAST = """() => {
  const parts = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const behind = e => {
    for (; e; e = e.parentElement) {
      const colour = parts(getComputedStyle(e).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const e of document.querySelectorAll("p, dt, dd, h1, h2, h3, li, blockquote, span, b, th, button")) {
    if (!e.innerText.trim() || e.closest(".confusion")) continue;
    const pair = [light(parts(getComputedStyle(e).color)), light(behind(e))].sort((a, b) => b - a);
    const ratio = (pair[0] + .05) / (pair[1] + .05);
    if (ratio < 4.5) poor.push(`${e.className} ${e.innerText.slice(0, 20)}: ${ratio.toFixed(2)}`);
  }
  return poor;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["run", "compare", "sweep"])
def test_text_contrast_meets_wcag(page: OpenPage, name: str, scheme: str) -> None:
    assert page(name, scheme=scheme).evaluate(_CONTRAST) == []


def test_script_in_a_meme_is_shown_as_text(page: OpenPage) -> None:
    shown = page()
    assert "taken over" not in shown.title()
    assert shown.get_by_text("document.title =").count() > 0
