"""Figure 9: the same writes in both worlds, small enough for a test."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from raytwin.scenarios.core.scenario import Outcome, Request
from raytwin.scenarios.figures import fig9
from raytwin.scenarios.measure import calibrate
from raytwin.simulator.cluster import simulated_cluster
from raytwin.simulator.machine.costs import load_profile


def run(backend: str, **settings: object) -> Outcome:
    return fig9.run(Request(backend, settings={**fig9.SCENARIO.settings("quick", {}), **settings}))


def test_the_paper_s_machine_gains_by_threads_where_objects_are_large() -> None:
    outcome = run("sim", sizes=(1_000, 1_000_000, 250_000_000), repeats=2)
    assert all(check.ok for check in outcome.checks), outcome.checks
    assert [check.name.split(" bytes")[0] for check in outcome.checks] == [
        "large objects are limited by memory, small ones by what each put costs",
        "the published 15 GB/s of large objects are reached",
        "the published 18,000 objects/s of small ones are reached",
        "one thread is the better choice up to 1,000",
        "8 threads are the better choice from 1,000,000",
    ]
    rate = {
        (row["size_bytes"], row["threads"]): row["gb_per_s"]
        for row in outcome.rows
        if row["what"] == "put"
    }
    assert rate[250_000_000, 8] > 1.5 * rate[250_000_000, 1]
    assert rate[1_000, 8] == pytest.approx(rate[1_000, 1])


@pytest.mark.parametrize(
    ("worse", "fails"),
    [
        # A hundred times slower at copying; and one where threads gain nothing, or cost nothing.
        ({"memory_bandwidth": 8e7, "memory_bandwidth_all": 2.2e8}, "15 GB/s"),
        ({"memory_bandwidth_all": 0.0}, "8 threads are the better choice"),
        ({"copy_thread_s": 0.0}, "one thread is the better choice"),
        ({"call_s": {"put": 1e-4}}, "18,000 objects/s"),
    ],
)
def test_another_machine_than_the_paper_s_does_not_pass(
    monkeypatch: pytest.MonkeyPatch, worse: dict[str, Any], fails: str
) -> None:
    profile = msgspec.structs.replace(load_profile("paper"), **worse)
    for module in (fig9, simulated_cluster):
        monkeypatch.setattr(module, "load_profile", lambda name: profile)
    outcome = run("sim", sizes=(1_000, 250_000, 1_000_000, 64_000_000), threads=(1, 8), repeats=1)
    assert any(fails in check.name for check in outcome.checks if not check.ok), outcome.checks


def test_a_prediction_that_misses_is_named() -> None:
    """Ten microseconds a put are an assumption, and too few for 18,000 puts a second."""
    outcome = run("sim", sizes=(1_000, 64_000_000), threads=(1, 8), repeats=1)
    (missed,) = [line for line in outcome.findings if "objects/s of small ones misses" in line]
    assert "against 18,000" in missed


def test_a_copy_takes_what_the_profile_says() -> None:
    profile = msgspec.structs.replace(
        load_profile("paper"),
        memory_bandwidth=1e9,
        memory_bandwidth_all=3e9,
        copy_thread_s=0.25,
    )
    assert profile.copy_s(3_000_000_000, 1) == 3.0
    assert profile.copy_s(3_000_000_000, 2) == 1.5 + 0.25
    assert profile.copy_s(3_000_000_000, 5) == 1.0 + 4 * 0.25
    alone = msgspec.structs.replace(profile, memory_bandwidth_all=0.0)
    assert alone.copy_s(3_000_000_000, 2) == 3.0 + 0.25
    assert profile.put_copy_s(3_000_000_000, 5) == profile.copy_s(3_000_000_000, 5)
    asleep = msgspec.structs.replace(profile, put_split_s=0.5, put_thread_s=0.125)
    assert asleep.put_copy_s(3_000_000_000, 1) == 3.0
    assert asleep.put_copy_s(3_000_000_000, 5) == 1.0 + 0.5 + 4 * 0.125
    assert asleep.copy_s(3_000_000_000, 5) == 1.0 + 4 * 0.25


@pytest.mark.parametrize("best", [1.5e9, 6e9])
def test_what_a_put_takes_by_threads_gives_the_costs_of_dividing_it(
    monkeypatch: pytest.MonkeyPatch, best: float
) -> None:
    nbytes = calibrate.SMALL_COPY_BYTES
    known = msgspec.structs.replace(
        load_profile("paper"), cached_copies={nbytes: (1e9, best)}, put_split_s=1e-4,
        put_thread_s=6e-6,
    )  # fmt: skip
    took_s = {each: 5e-5 + known.put_copy_s(nbytes, each) for each in (1, 2, 8)}
    monkeypatch.setattr(calibrate, "_puts_s", lambda nbytes, threads: took_s)
    assert calibrate._measure_puts(1e9, best) == pytest.approx(
        {"put_split_s": 1e-4, "put_thread_s": 6e-6}
    )


def test_copies_that_fit_in_caches_are_faster() -> None:
    profile = msgspec.structs.replace(
        load_profile("paper"),
        memory_bandwidth=1e9,
        memory_bandwidth_all=2e9,
        copy_thread_s=0.0,
        cached_copies={100: (4e9, 16e9), 400: (1e9, 4e9)},
    )

    def rates(nbytes: int) -> list[float]:
        return [nbytes / profile.copy_s(nbytes, threads) for threads in (1, 2, 8)]

    assert rates(50) == pytest.approx([4e9, 8e9, 16e9])
    assert rates(100) == pytest.approx([4e9, 8e9, 16e9])
    assert rates(200) == pytest.approx([2e9, 4e9, 8e9])
    assert rates(400) == pytest.approx([1e9, 2e9, 4e9])
    assert rates(401) == pytest.approx([1e9, 2e9, 2e9])


@pytest.mark.parametrize("wrong", [{2: (1e9, 1e9), 1: (1e9, 1e9)}, {1: (0.0, 1e9)}])
def test_a_profile_with_impossible_copies_is_refused(wrong: dict[int, Any]) -> None:
    with pytest.raises(ValueError, match="cached_copies"):
        msgspec.structs.replace(load_profile("paper"), cached_copies=wrong)


def test_real_processes_write_what_they_say() -> None:
    outcome = run("local", sizes=(1_000, 4_000_000), threads=(1, 2), repeats=2)
    puts = [row for row in outcome.rows if row["what"] == "put"]
    assert [(r["threads"], r["size_bytes"], r["repeat"]) for r in puts] == [
        (threads, size, repeat)
        for repeat in (0, 1)
        for threads in (1, 2)
        for size in (1_000, 4_000_000)
    ]
    for row in outcome.rows:
        assert row["gb_per_s"] == pytest.approx(row["iops"] * row["size_bytes"] / 1e9)
    assert {row["series"] for row in outcome.rows} == {fig9.HOST}
    assert outcome.metrics["memcpy_gb_per_s"] > 0


def test_a_store_that_copies_slowly_does_not_pass() -> None:
    outcome = Outcome(rows=[])
    for what, rate in (("put", 1.0), ("memcpy", 10.0)):
        for size in (1_000, 1_000_000):
            outcome.rows.append(
                {
                    "series": fig9.HOST, "what": what, "size_bytes": size, "threads": 1,
                    "gb_per_s": rate, "iops": 1.0, "repeat": 0,
                }
            )  # fmt: skip
    settings = {"sizes": (1_000, 1_000_000), "threads": (1,), "repeats": 1}
    fig9._judge(Request("local", settings=settings), outcome, fig9.HOST)
    assert [check.ok for check in outcome.checks] == [False, False]
