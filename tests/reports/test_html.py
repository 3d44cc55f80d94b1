"""The report: whole, self-contained, escaped, and complete when results are not."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raytwin.reports.html import ROWS_SHOWN_MAX, render
from raytwin.scenarios.core.results import CheckRecord, Record, Result, ResultError
from tests.reports.conftest import run_all
from tests.scenarios import synthetic

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"' onload='x"
SVG = "data:image/svg+xml;"
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


def test_all_sections(found: list[Result]) -> None:
    page = Page(render(found, synthetic.GOOD))
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
    predicted = 31_000 / (1 + 1 / 9)
    rows = next(r for r in found if r.name == "scaling/local").rows
    rates = sorted(row["tasks_per_s"] for row in rows if row["nodes"] == 1)
    error = (predicted - rates[2]) / rates[2] * 100
    shown = f"{error:+.1f} %".replace("-", "−")
    assert f"{predicted:,.0f} {rates[2]:,.0f} {rates[0]:,.0f} to {rates[4]:,.0f} 5 {shown}" in text


def test_nothing_from_elsewhere(found: list[Result]) -> None:
    html = render(found, synthetic.GOOD)
    page = Page(html)
    for tag, attributes in page.tags:
        assert tag not in ("link", "script", "iframe", "object", "embed"), tag
        assert (attributes.get("src", None) or SVG).startswith(SVG)
        for name in ("href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith("#")
    assert set(re.findall(r"https?://[^\"'<> ]+", html)) == set()
    assert not re.findall(r"url\((?!#)|@import", html)
    policy = next(a for t, a in page.tags if t == "meta" and "http-equiv" in a)
    assert "default-src 'none'" in (policy["content"] or "")


def test_ids_are_unique_and_references_lead_somewhere(found: list[Result]) -> None:
    html = render(found, synthetic.GOOD)
    ids = [attributes["id"] for _, attributes in Page(html).tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    referred = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', html))
    assert {a or b for a, b in referred} <= set(ids)


def test_accessible(found: list[Result]) -> None:
    page = Page(render(found, synthetic.GOOD))
    assert [a["lang"] for t, a in page.tags if t == "html"] == ["en"]
    pictures = [a for t, a in page.tags if t == "img"]
    assert len(pictures) == 3
    for picture in pictures:
        assert len(picture["alt"] or "") > 20
    assert all("scope" in a for t, a in page.tags if t == "th")


def test_same_results_same_report(found: list[Result]) -> None:
    assert render(found, synthetic.GOOD) == render(found, synthetic.GOOD)


def test_everything_foreign_is_escaped() -> None:
    record = Record(
        "scaling", "local", {EVIL: EVIL}, 0, {EVIL: EVIL}, {EVIL: EVIL}, {EVIL: 1.0},
        [CheckRecord(EVIL, False, EVIL)], [EVIL],
    )  # fmt: skip
    rows = [{"series": EVIL, "nodes": 1, "tasks_per_s": 5.0, EVIL: EVIL}]
    rows.append({"series": "$\\frac{a", "nodes": 2, "tasks_per_s": 6.0, EVIL: None})
    page = Page(render([Result(record, rows)], synthetic.GOOD))
    assert not [t for t, _ in page.tags if t == "script"]
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


def test_worlds_are_distinguished() -> None:
    def made(backend: str, cores: int) -> Result:
        record = Record("scaling", backend, {}, 0, {}, {"cores": cores}, {}, [])
        return Result(record, [{"series": "a", "nodes": 1, "tasks_per_s": 5.0}])

    one = Page(render([made("sim", 2), made("local", 2)], synthetic.GOOD)).text
    two = Page(render([made("sim", 2), made("local", 64)], synthetic.GOOD)).text
    assert one.count("cores") == 1
    assert two.count("cores") == 2


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
