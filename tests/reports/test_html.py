"""The report: whole, self-contained, escaped, and complete when results are not."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import itertools
import json
import re
import statistics
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raytwin.reports.html import ROWS_SHOWN_MAX, render
from raytwin.reports.measurements import read_measurements
from raytwin.scenarios.core.results import CheckRecord, Made, Record, Result, ResultError
from tests.reports.conftest import run_all
from tests.scenarios import synthetic

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"' onload='x"
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Collects elements, text and ids, and sees that elements nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "script" not in self.open and "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture
def html(report: Path) -> str:
    """The report on the synthetic scenarios."""
    return report.read_text(encoding="utf-8")


def test_all_sections(html: str) -> None:
    page = Page(html)
    assert page.open == []
    for words in (
        "4 of 4", "Empty tasks per second by cluster size", "The paper ran empty tasks",
        "≥ 1.8M", "text of section 5.1", "a flat line with locality", "Error of prediction",
        "centralized flattens at 260,000 tasks/s", "every task ran", "Fidelity", "seed", "msgspec",
        "memory bytes", "policies", "bottom-up, centralized",
    ):  # fmt: skip
        assert words in page.text, words


def test_prediction_table_is_right(found: list[Result]) -> None:
    text = Page(render(found, synthetic.GOOD)).text
    predicted = 24_000 / (1 + 1 / 9)
    rows = next(r for r in found if r.name == "scaling/local").rows
    rates = sorted(row["tasks_per_s"] for row in rows if row["nodes"] == 1)
    error = (predicted - rates[2]) / rates[2] * 100
    apart = statistics.median(b - a for a, b in itertools.combinations(rates, 2))
    shown = f"{error:+.1f} % {100 * apart / rates[2]:.0f} %".replace("-", "−")
    assert f"{predicted:,.0f} {rates[2]:,.0f} {rates[0]:,.0f} to {rates[4]:,.0f} 5 {shown}" in text


def test_nothing_from_elsewhere(html: str) -> None:
    page = Page(html)
    for tag, attributes in page.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed"), tag
        assert "src" not in attributes
        for name in ("href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith("#")
    assert set(re.findall(r"https?://[^\"'<> ]+", html)) == set()
    assert not re.findall(r"url\((?!#)|@import", html)
    policy = next(a for t, a in page.tags if t == "meta" and "http-equiv" in a)
    assert "default-src 'none'" in (policy["content"] or "")
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in (policy["content"] or ""), "its own, and no other"
    assert len(script) < 10_000


def test_ids_are_unique_and_references_lead_somewhere(html: str) -> None:
    ids = [attributes["id"] for _, attributes in Page(html).tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    referred = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', html))
    assert {a or b for a, b in referred} <= set(ids)


def test_accessible(html: str) -> None:
    page = Page(html)
    assert [a["lang"] for t, a in page.tags if t == "html"] == ["en"]
    pictures = [a for t, a in page.tags if t == "svg"]
    assert len(pictures) == 4, "three figures, and predicted against measured"
    for picture in pictures:
        assert picture["role"] == "img"
        assert len(picture["aria-label"] or "") > 20
    assert all("scope" in a for t, a in page.tags if t == "th")


def test_same_results_same_report(html: str, found: list[Result]) -> None:
    assert render(found, synthetic.GOOD) == html


def test_everything_foreign_is_escaped() -> None:
    record = Record(
        "scaling", "local", {EVIL: EVIL}, 0, {EVIL: EVIL}, {EVIL: EVIL}, {EVIL: 1.0},
        [CheckRecord(EVIL, False, EVIL)], [EVIL],
    )  # fmt: skip
    rows = [{"series": EVIL, "nodes": 1, "tasks_per_s": 5.0, EVIL: EVIL}]
    rows.append({"series": "$\\frac{a", "nodes": 2, "tasks_per_s": 6.0, EVIL: None})
    page = Page(render([Result(record, rows)], synthetic.GOOD))
    assert [a for t, a in page.tags if t == "script"] == [{}], "the page's own"
    assert not [a for t, a in page.tags if t == "img" and a["src"] == "x"]
    assert not [a for _, a in page.tags if any(name.startswith("on") for name in a)]
    assert EVIL.split("<img")[0] in " ".join(page.words)


def test_backticks_are_code(found: list[Result]) -> None:
    about = "set `gcs_storage`, `<b>` is text\n\none ` alone stays"
    scenario = dataclasses.replace(synthetic.SCALING, about=about)
    page = render(found, {**synthetic.GOOD, synthetic.SCALING.name: scenario})
    assert "set <code>gcs_storage</code>, <code>&lt;b&gt;</code> is text" in page
    assert "one ` alone stays" in page


@pytest.mark.parametrize("missing", ["sim", "local"])
def test_missing_backend_says_which_command(tmp_path: Path, missing: str) -> None:
    have = "local" if missing == "sim" else "sim"
    page = Page(render(run_all(tmp_path, (have,)), synthetic.GOOD))
    assert f"raytwin run scaling --backend {missing}" in page.text
    assert "2 runs not made yet" in page.text


def test_failed_check_is_in_the_verdict() -> None:
    check = CheckRecord("one is two", False, "1 is not 2")
    record = Record("failing", "sim", {}, 0, {}, {}, {}, [check])
    text = Page(render([Result(record, [{"n": 1}])], synthetic.ALL)).text
    assert "0 of 1 checks hold" in text
    assert "FAILS one is two : 1 is not 2" in text


def test_a_scenario_of_another_version_is_refused() -> None:
    record = Record("figure99", "sim", {"a": 1}, 0, {}, {}, {"m_s": 0.5}, [])
    with pytest.raises(ResultError, match="figure99: this version of raytwin has no such"):
        render([Result(record, [{"n": 4711}])], synthetic.GOOD)


def test_long_tables_are_cut_and_say_so() -> None:
    rows = [{"n": n} for n in range(ROWS_SHOWN_MAX + 5)]
    record = Record("failing", "sim", {}, 0, {}, {}, {}, [])
    text = Page(render([Result(record, rows)], synthetic.ALL)).text
    assert f"The first {ROWS_SHOWN_MAX} of {ROWS_SHOWN_MAX + 5} rows" in text
    assert f" {ROWS_SHOWN_MAX - 1} " in text
    assert f" {ROWS_SHOWN_MAX} The" not in text


def test_every_figure_and_table_can_be_linked_to(html: str) -> None:
    page = Page(html)
    ids = {a["id"] for _, a in page.tags if "id" in a}
    assert {"scaling", "scaling-1", "scaling-1-published", "scaling-1-errors", "fidelity",
            "scaling-sim-metrics", "scaling-sim-rows", "host"} <= ids  # fmt: skip
    links = {a["href"] for t, a in page.tags if t == "a" and a.get("class") == "anchor"}
    assert "#scaling-1-errors" in links


def test_a_figure_brings_its_numbers(html: str) -> None:
    page = Page(html)
    figures = {a["id"]: a for _, a in page.tags if a.get("class") == "figure"}
    data = json.loads(figures["scaling-1"]["data-drawn"] or "")
    points = {label: points for label, _, points in data["marks"]}["published"]
    assert [point[2:4] for point in points] == [[60, 1e6], [100, 1.8e6]]
    assert (data["x"], data["y"]) == ("nodes", "tasks per second")


def test_the_top_says_when_by_what_and_how_it_was_made(found: list[Result]) -> None:
    for number, result in enumerate(found):
        load = 0.8 if result.record.backend == "local" else 0.9
        result.record.made = Made(
            f"2026-01-02T03:0{number}:05+00:00", "abcdef0123456789", "", 40.0, load
        )
        result.record.made.command = f"raytwin run {result.record.scenario} --seed 1"
    text = Page(render(found, synthetic.GOOD)).text
    top = text[: text.index("The paper ran")]
    assert f"2026-01-02 03:00 to 2026-01-02 03:0{len(found) - 1} UTC" in top
    assert "2 min 40 s in all" in top
    assert "abcdef012" in top
    names = " ".join(dict.fromkeys(result.record.scenario for result in found))
    assert f"raytwin run {names} --seed 1" in top, "one command for all"
    assert "other programs had up to 80 % of its cores" in top, "in simulation it does not matter"


def test_results_of_older_versions_do_not_say_how_they_were_made(html: str) -> None:
    text = Page(html).text
    assert "an older version of raytwin has made these results" in text
    assert "busy machine" not in text


def test_the_top_says_which_runs_were_at_another_speed_than_the_calibration(
    found: list[Result],
) -> None:
    drifts = [-0.32, -0.1, -0.5]
    for number, result in enumerate(found):
        result.record.made = Made("2026-01-02T03:04:05+00:00", "", "", 40.0, 0.0, 1e7, 0.0)
        if number < len(drifts):
            result.record.made.drift = drifts[number]
    text = " ".join(Page(render(found, synthetic.GOOD)).text.split())
    assert "In 2 of the runs on real processes the processor was 50 % slower to 32 % slower" in text
    assert f"calibrate again ({found[2].name}, {found[0].name})" in text
    for result in found:
        assert result.record.made is not None
        result.record.made.drift = 0.0
    assert "another speed" not in Page(render(found, synthetic.GOOD)).text


@pytest.mark.parametrize("spread", [1.0, 2.54])
def test_the_top_says_that_the_machine_changed_while_it_was_calibrated(
    found: list[Result], tmp_path: Path, spread: float
) -> None:
    (tmp_path / "profile.json").write_text(json.dumps({"spread": spread}))
    text = Page(render(found, synthetic.GOOD, read_measurements(tmp_path))).text
    said = "one round of the calibration took 2.5 times as long" in " ".join(text.split())
    assert said == (spread == 2.54)
    assert ("machine that changed" in text) == said


def test_no_text_is_a_dict_of_python(found: list[Result]) -> None:
    found[0].record.parameters["plan"] = {"steps": [{"at_s": 5.0, "target": "node:1"}]}
    text = Page(render(found, synthetic.GOOD)).text
    assert "steps at_s 5 s, target node:1" in text
    assert "{" not in text


def test_worlds_are_distinguished() -> None:
    def made(backend: str, cores: int) -> Result:
        record = Record("scaling", backend, {}, 0, {}, {"cores": cores}, {}, [])
        return Result(record, [{"series": "a", "nodes": 1, "tasks_per_s": 5.0}])

    one = Page(render([made("sim", 2), made("local", 2)], synthetic.GOOD)).text
    two = Page(render([made("sim", 2), made("local", 64)], synthetic.GOOD)).text
    assert one.count("cores") == 2, "at the top, and with the versions"
    assert two.count("cores") == 4


CELL = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text())


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {"nodes": CELL, "tasks_per_s": CELL, "series": CELL}, optional={"policy": CELL}
        ),
        max_size=4,
    )
)
def test_any_rows_are_drawn_or_refused(rows: list[dict[str, object]]) -> None:
    record = Record("scaling", "local", {}, 0, {}, {}, {}, [])
    try:
        html = render([Result(record, rows)], synthetic.GOOD)
    except ResultError as error:
        assert str(error).startswith("scaling/local/rows.csv")
    else:
        assert Page(html).open == []


def test_rows_of_another_scenario_are_refused() -> None:
    record = Record("scaling", "local", {}, 0, {}, {}, {}, [])
    for rows in ([], [{"a": 1}]):
        with pytest.raises(ResultError, match=r"^scaling/local/rows\.csv: no figure can be drawn"):
            render([Result(record, rows)], synthetic.GOOD)
