"""Predictions are paired with measurements, and the error is signed."""

from __future__ import annotations

import pytest

from raytwin.reports.fidelity import Ranking, judge
from raytwin.scenarios.core.results import Record, Result, ResultError
from raytwin.scenarios.core.scenario import Compare, Row

COMPARE = Compare(("nodes",), "rate", predicted={"series": "host"}, aim_percent=10)


def result(backend: str, rows: list[Row]) -> Result:
    return Result(Record("s", backend, {}, 0, {}, {}, {}, []), rows)


def test_pairs_errors_and_what_is_left() -> None:
    found = judge(
        COMPARE,
        [
            result("sim", [
                {"series": "host", "nodes": 1, "rate": 110},
                {"series": "host", "nodes": 2, "rate": 50},
                {"series": "paper", "nodes": 4, "rate": 1e6},
            ]),
            result("local", [
                {"nodes": 1, "rate": 100}, {"nodes": 1, "rate": 90}, {"nodes": 1, "rate": 300},
                {"nodes": 2, "rate": 100},
                {"nodes": 4, "rate": 7},
            ]),
        ],
    )  # fmt: skip
    first, second = found.pairs
    assert (first.key, first.predicted, first.measured) == ((1,), 110, 100)
    assert (first.low, first.high, first.repeats) == (90, 300, 3)
    assert first.error == pytest.approx(0.10)
    assert second.error == pytest.approx(-0.50)
    assert found.unpaired == ((4,),)
    assert found.typical == pytest.approx(0.30)
    assert found.worst == pytest.approx(0.50)
    assert [pair.good for pair in found.pairs] == [True, False]
    assert found.good is False


def test_local_rows_predict_nothing() -> None:
    rows: list[Row] = [{"series": "host", "nodes": 1, "rate": 1}]
    assert judge(COMPARE, [result("local", rows)]).pairs == ()


def test_nothing_measured_is_no_error_of_zero() -> None:
    rows: list[Row] = [{"series": "host", "nodes": 1, "rate": 0}]
    found = judge(COMPARE, [result("sim", rows), result("local", rows)])
    assert found.pairs[0].error is None
    assert found.typical is None
    assert found.good is None


@pytest.mark.parametrize(
    ("rates", "noise", "aim", "good"),
    [
        # One repeat each, 8 % apart; two runs of a repeat say nothing of how far clusters differ.
        ([(0, 96.0), (1, 104.0)], 0.08, 0.16, True),
        ([(0, 98.0), (1, 102.0)], 0.04, 0.10, False),
        ([(0, 80.0), (0, 120.0)], None, 0.10, False),
        ([(0, 80.0), (0, 120.0), (1, 94.0), (1, 106.0)], 0.0, 0.10, False),
        ([(0, 90.0), (1, 100.0), (2, 110.0)], 0.10, 0.20, True),
        ([(None, 80.0), (None, 120.0)], None, 0.10, False),
    ],
)
def test_no_aim_is_finer_than_twice_what_repeats_differ_by(
    rates: list[tuple[int | None, float]], noise: float | None, aim: float, good: bool
) -> None:
    found = judge(
        COMPARE,
        [
            result("sim", [{"series": "host", "nodes": 1, "rate": 112, "repeat": 0}]),
            result("local", [{"nodes": 1, "rate": rate, "repeat": n} for n, rate in rates]),
        ],
    )
    (pair,) = found.pairs
    assert pair.measured == 100 and pair.repeats == len(rates)
    assert pair.noise == (noise if noise is None else pytest.approx(noise))
    assert pair.aim == pytest.approx(aim)
    assert pair.good is good and found.good is good and found.noise == pair.noise


def test_text_where_a_number_must_be() -> None:
    rows: list[Row] = [{"series": "host", "nodes": 1, "rate": "x"}]
    with pytest.raises(ResultError, match="'rate'"):
        judge(COMPARE, [result("sim", rows)])


def test_a_prediction_may_rank_what_it_is_off_by() -> None:
    compare = Compare(("policy", "load"), "wait", ranks="policy")

    def rows(**waits: float) -> list[Row]:
        return [
            {"policy": name.partition("_")[0], "load": name.partition("_")[2], "wait": wait}
            for name, wait in waits.items()
        ]

    measured = rows(a_even=10, b_even=20, c_even=20.5, a_odd=3, b_odd=1)
    predicted = rows(a_even=100, b_even=150, c_even=90, a_odd=30, b_odd=10)
    ranking = judge(compare, [result("sim", predicted), result("local", measured)]).ranking
    # a before b in both loads, and not a before c; b and c are as good.
    assert ranking == Ranking(agreeing=2, compared=3, close=1)
    assert judge(COMPARE, [result("sim", [])]).ranking is None
