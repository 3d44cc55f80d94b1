"""The files: same rows same bytes, whole or not at all, junk refused in one line."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from raytwin.scenarios.core import results
from raytwin.scenarios.core.results import CheckRecord, Made, Record, Result, ResultError
from raytwin.scenarios.core.scenario import Band

NUMBERS = (
    st.none() | st.integers(-(10**17), 10**17) | st.floats(allow_nan=False, allow_infinity=False)
)
TEXTS = st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1).map(
    lambda text: f"t{text}"
)
COLUMNS = st.one_of(NUMBERS, TEXTS)


def record(**changes: object) -> Record:
    fields = {
        "scenario": "scaling",
        "backend": "sim",
        "parameters": {"tasks": 10},
        "seed": 3,
        "versions": {"raytwin": "1"},
        "host": {"cores": 2},
        "metrics": {"tasks_per_s": 5.0},
        "checks": [CheckRecord("it ran", True, "yes")],
        "findings": ["it is fast"],
        "bands": [Band("time_s", 1.0, 2.5, "kill node:1", {"policy": "random"})],
        "made": Made("2026-01-02T03:04:05+00:00", "0123abc+", "raytwin run scaling", 2.5, 0.1),
    }
    return Record(**(fields | changes))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A good result."""
    return results.write(tmp_path, Result(record(), [{"n": 1, "x": 0.5}], [{"name": "e"}]))


def test_round_trip(folder: Path) -> None:
    found = results.read(folder)
    assert found.record == record()
    assert found.rows == [{"n": 1, "x": 0.5}]
    assert found.timeline == [{"name": "e"}]
    assert found.ok
    assert [each.name for each in results.read_all(folder.parent.parent)] == ["scaling/sim"]


def test_result_json_is_the_published_shape(folder: Path) -> None:
    value = json.loads((folder / "result.json").read_text())
    assert list(value) == [
        "scenario", "backend", "parameters", "seed", "versions", "host", "metrics", "checks",
        "findings", "bands", "made",
    ]  # fmt: skip
    assert value["checks"] == [{"name": "it ran", "ok": True, "detail": "yes"}]
    assert "traceEvents" in json.loads((folder / "timeline.json").read_text())


def test_results_of_versions_that_did_not_keep_how_they_were_made_are_read(folder: Path) -> None:
    path = folder / "result.json"
    value = json.loads(path.read_text())
    for name in ("made", "bands", "findings"):
        del value[name]
    path.write_text(json.dumps(value))
    assert results.read(folder).record == record(made=None, bands=[], findings=[])


def test_a_result_of_a_version_that_noted_no_prediction_is_read(folder: Path) -> None:
    path = folder / "result.json"
    value = json.loads(path.read_text())
    del value["made"]["prediction_sha256"]
    path.write_text(json.dumps(value))
    made = results.read(folder).record.made
    assert made is not None and made.prediction_sha256 is None


def test_a_result_has_the_digest_of_its_file(folder: Path) -> None:
    out = folder.parent.parent
    digest = hashlib.sha256((folder / "result.json").read_bytes()).hexdigest()
    assert results.sha256(out, "scaling", "sim") == results.read(folder).sha256 == digest
    assert results.sha256(out, "scaling", "local") == ""


def test_csv_form() -> None:
    rows = [
        {"b": True, "a": 0.1, "t": 'x,"y"'},
        {"a": np.float64(2.0), "n": np.int64(3), "b": None, "t": "é"},
    ]
    assert results.encode_rows(rows).decode() == ('b,a,t,n\ntrue,0.1,"x,""y""",\n,2.0,é,3\n')


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1),
        st.sampled_from([NUMBERS, TEXTS, st.none() | st.booleans()]),
        min_size=1,
        max_size=4,
    ).flatmap(lambda columns: st.lists(st.fixed_dictionaries(columns), min_size=1, max_size=5))
)
def test_rows_round_trip(rows: list[dict[str, object]]) -> None:
    content = results.encode_rows(rows)
    assert results.encode_rows(rows) == content
    found = results.decode_rows(content, Path("rows.csv"))
    assert found == rows
    assert results.encode_rows(found) == content


@pytest.mark.parametrize("cell", [float("nan"), float("inf"), [1], {"a": 1}, b"x", object()])
def test_other_values_than_cells_are_refused(cell: object) -> None:
    with pytest.raises(ValueError, match="column 'c'"):
        results.encode_rows([{"c": cell}])


def test_refused_rows_leave_the_old_result(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ValueError):
        results.write(folder.parent.parent, Result(record(), [{"c": [1]}]))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("failing", range(3))
def test_interrupted_write_leaves_no_half(
    folder: Path, failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, calls = os.replace, iter(range(9))

    def interrupted(source: str, target: object) -> None:
        if next(calls) == failing:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        results.write(folder.parent.parent, Result(record(seed=4), [{"n": 2}]))
    names = {path.name for path in folder.iterdir()}
    assert names == {"rows.csv", "timeline.json"}
    with pytest.raises(ResultError, match=r"result\.json is missing"):
        results.read(folder)


def test_unwritable(tmp_path: Path) -> None:
    (tmp_path / "scaling").write_text("a file in the way")
    with pytest.raises(ResultError, match="cannot write"):
        results.write(tmp_path, Result(record(), []))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("result.json", b"", "result.json is not"),
        ("result.json", b"{", "result.json is not"),
        ("result.json", b"[]", "result.json is not"),
        ("result.json", b'{"a": 1}', "missing required field `scenario`"),
        ("result.json", b"\xff\xfe", "result.json is not"),
        ("result.json", b"[" * 100_000, "result.json is not"),
        ("rows.csv", b"\xff", "rows.csv is not"),
        ("rows.csv", b"a,b\n1\n", "row 2 has 1 cells, the header 2"),
        ("rows.csv", b"a,a\n1,2\n", "names a column twice"),
        ("rows.csv", b'a\n"open', "rows.csv is not"),
        ("timeline.json", b"[]", "timeline.json is not"),
    ],
)
def test_junk_is_refused_in_one_line(folder: Path, name: str, content: bytes, message: str) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(ResultError, match=message) as caught:
        results.read(folder)
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)


@pytest.mark.parametrize("name", ["result.json", "rows.csv", "timeline.json"])
def test_missing_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ResultError, match=f"{name} is missing"):
        results.read(folder)


def test_misplaced(folder: Path) -> None:
    moved = folder.rename(folder.parent / "local")
    with pytest.raises(ResultError, match="does not belong there"):
        results.read(moved)


@pytest.mark.parametrize("what", ["absent", "file", "empty", "foreign"])
def test_read_all_of_no_results(tmp_path: Path, what: str) -> None:
    place = tmp_path / "r"
    if what == "file":
        place.write_text("x")
    elif what != "absent":
        place.mkdir()
    if what == "foreign":
        (place / "photos" / "2018").mkdir(parents=True)
        (place / "photos" / "2018" / "cat.jpg").write_bytes(b"x")
    with pytest.raises(ResultError) as caught:
        results.read_all(place)
    assert str(place) in str(caught.value)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.binary(max_size=200)
    | st.text(max_size=200).map(lambda t: t.encode("utf-8", "surrogatepass"))
)
@example(content=b"a\n" + b"9" * 5000)
@example(content=b'a\n"' + b"x" * 200_000 + b'"')
@example(content=b"a\n1e999\n")
def test_fuzz_rows(content: bytes) -> None:
    try:
        rows = results.decode_rows(content, Path("rows.csv"))
    except ResultError as error:
        assert "\n" not in str(error)
    else:
        results.encode_rows(rows)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
FIELDS = list(Record.__struct_fields__)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.dictionaries(st.sampled_from(FIELDS), JSON, min_size=1, max_size=3))
def test_fuzz_result(folder: Path, changes: dict[str, object]) -> None:
    path = folder / "result.json"
    good = path.read_bytes()
    try:
        path.write_text(json.dumps(json.loads(good) | changes))
        try:
            found = results.read(folder)
        except ResultError as error:
            assert "\n" not in str(error)
        else:
            assert all(isinstance(value, float) for value in found.record.metrics.values())
            assert found.name == "scaling/sim"
    finally:
        path.write_bytes(good)
