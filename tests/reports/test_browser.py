"""The report in real Chromium: desktop and phone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.reports.test_plots import contrast
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
    images = page.locator(".figure img").all()
    assert len(images) == 3
    for image in images:
        assert image.evaluate("e => e.complete && e.naturalWidth") > 600
        assert image.bounding_box()["height"] > 150


def test_can_be_read(page: Any) -> None:
    seen = page.evaluate(COLOURS)
    assert len(seen) >= 4
    for pair, where in seen:
        colour, ground = pair.split()
        assert contrast(colour, ground) >= 4.5, (pair, where)


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
    assert page.locator("script").count() == 0
    assert page.locator("img[src=x]").count() == 0
    context.close()
