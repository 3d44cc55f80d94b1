"""The report in real Chromium: desktop and phone."""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.reports.test_plots import contrast, luminance
from tests.requirements import require

pytestmark = pytest.mark.browser

SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

COLOURS = """() => {
  const hex = c => '#' + c.match(/\\d+/g).slice(0, 3)
      .map(n => (+n).toString(16).padStart(2, '0')).join('');
  const ground = e => {
    for (; e; e = e.parentElement) {
      const c = getComputedStyle(e).backgroundColor;
      if (c.startsWith('rgb(')) return hex(c);
      if (c.startsWith('color(')) return '#' + c.match(/[\\d.]+/g).slice(0, 3)
          .map(n => Math.round(n * 255).toString(16).padStart(2, '0')).join('');
    }
    return '#ffffff';
  };
  const seen = {};
  const within = 'h1,h2,h3,h4,p,li,td,th,summary,a,code,small,span,b,button,footer';
  for (const e of document.querySelectorAll(within)) {
    if (!e.checkVisibility() || !e.textContent.trim()) continue;
    seen[hex(getComputedStyle(e).color) + ' ' + ground(e)] = e.tagName + ': ' +
        e.textContent.trim().slice(0, 40);
  }
  return Object.entries(seen);
}"""


def executable() -> str | None:
    """Return the path of a Chromium."""
    chosen = os.environ.get("RAYTWIN_CHROMIUM")
    names = (chosen,) if chosen else NAMES
    return next(filter(None, map(shutil.which, names)), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A running Chromium."""
    path = executable()
    require("browser", path is not None, "no Chromium; apt install chromium or RAYTWIN_CHROMIUM")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield running
        running.close()


@pytest.fixture(params=SIZES)
def page(request: pytest.FixtureRequest, browser: Any, report: Path, tmp_path: Path) -> Any:
    """The report, opened; complaints and requests are kept on it."""
    width, height = SIZES[request.param]
    context = browser.new_context(viewport={"width": width, "height": height})
    page = context.new_page()
    page.complaints, page.requests = [], []
    page.on("console", lambda message: page.complaints.append(message.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("request", lambda asked: page.requests.append(asked.url))
    page.goto(report.as_uri())
    page.screenshot(path=str(tmp_path / f"{request.param}.png"), full_page=True)
    yield page
    context.close()


def test_quiet_whole_and_within_its_width(page: Any) -> None:
    assert page.complaints == []
    files = [url for url in page.requests if not url.startswith("data:")]
    assert len(files) == 1
    assert files[0].startswith("file://")
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    drawings = page.locator(".figure svg").all()
    assert len(drawings) == 4
    for drawing in drawings:
        assert drawing.bounding_box()["width"] >= 640
        assert drawing.bounding_box()["height"] > 150


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_can_be_read(page: Any, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    seen = page.evaluate(COLOURS)
    assert len(seen) >= 4
    for pair, where in seen:
        colour, ground = pair.split()
        assert contrast(colour, ground) >= 4.5, (pair, where)
    lights = [luminance(pair.split()[1]) for pair, _ in seen]
    assert max(lights) < 0.1 if scheme == "dark" else min(lights) > 0.8
    panel = page.locator("#scaling-1 svg path").first.evaluate("e => getComputedStyle(e).fill")
    assert (panel == "rgb(255, 255, 255)") == (scheme == "light"), "figures follow"


def test_a_value_is_shown_where_one_points(page: Any) -> None:
    figure, tip = page.locator("#scaling-1"), page.locator("#tip")
    figure.locator("svg").scroll_into_view_if_needed()
    assert tip.is_hidden()
    data = json.loads(figure.get_attribute("data-drawn"))
    points = {label: points for label, _, points in data["marks"]}["simulated bottom-up"]
    x, y, *_ = points[0]
    # On a phone a figure is wider than the page, and scrolls in itself.
    figure.locator(".drawn").evaluate("(e, x) => { e.scrollLeft = x - 100; }", x)
    place = figure.locator("svg").evaluate(
        "(e, [x, y]) => { const p = new DOMPoint(x, y).matrixTransform(e.getScreenCTM());"
        " return [p.x, p.y]; }",
        [x, y],
    )
    page.mouse.move(*place)
    assert tip.inner_text() == "simulated bottom-up: 180K at 10"
    page.mouse.move(0, 0)
    assert tip.is_hidden()
    figure.locator("svg").focus()
    page.keyboard.press("ArrowRight")
    assert tip.is_visible()


def test_the_legend_hides_a_series_and_shows_it_again(page: Any) -> None:
    figure = page.locator("#scaling-1")
    entry = figure.locator('[data-legend="simulated bottom-up"]')
    drawn = figure.locator('[data-series="simulated bottom-up"]').first
    other = figure.locator('[data-series="published"]').first
    assert entry.get_attribute("role") == "button"
    entry.click()
    assert entry.get_attribute("aria-pressed") == "false"
    assert drawn.is_hidden()
    assert other.is_visible()
    entry.press("Enter")
    assert drawn.is_visible()


def test_a_figure_can_be_saved(page: Any, tmp_path: Path) -> None:
    files = {}
    for kind in ("CSV", "SVG"):
        with page.expect_download() as waiting:
            page.locator("#scaling-1 .tools button", has_text=kind).click()
        files[kind] = tmp_path / waiting.value.suggested_filename
        waiting.value.save_as(files[kind])
    assert [file.name for file in files.values()] == ["scaling-1.csv", "scaling-1.svg"]
    rows = list(csv.DictReader(files["CSV"].open(encoding="utf-8")))
    found = [row for row in rows if row["series"] == "published"]
    assert [(row["nodes"], row["tasks per second"]) for row in found] == [
        ("60", "1000000"), ("100", "1800000"),
    ]  # fmt: skip
    root = ElementTree.parse(files["SVG"]).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "var(--" not in files["SVG"].read_text(encoding="utf-8"), "it has its colours"
    assert page.complaints == []


def test_on_paper_nothing_is_folded_away(page: Any) -> None:
    closed = page.locator("details:not([open])")
    assert closed.count() > 0
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert closed.count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert closed.count() > 0
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator(".tools").first.is_hidden()


def test_a_link_unfolds_what_it_leads_to(page: Any) -> None:
    rows = page.locator("#scaling-sim-rows")
    assert not rows.is_visible()
    page.evaluate("location.hash = 'scaling-sim-rows'")
    rows.wait_for(state="visible")


def test_injection_does_not_run(browser: Any, tmp_path: Path) -> None:
    from raytwin.reports.html import render
    from raytwin.scenarios.core.results import Record, Result
    from tests.reports.test_html import EVIL
    from tests.scenarios import synthetic

    record = Record("scaling", "local", {EVIL: EVIL}, 0, {}, {}, {}, [], [EVIL])
    rows = [{"series": EVIL, "nodes": 1, "tasks_per_s": 5.0}]
    path = tmp_path / "evil.html"
    path.write_text(render([Result(record, rows)], synthetic.GOOD), encoding="utf-8")
    context = browser.new_context()
    page = context.new_page()
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.goto(path.as_uri())
    assert dialogs == []
    assert page.locator("script").count() == 1, "the page's own"
    assert page.locator("img[src=x]").count() == 0
    context.close()
