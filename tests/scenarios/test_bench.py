"""`raytwin bench`: rows, interleaving, large clusters, refusals."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

import raytwin
from raytwin.scenarios.bench import Effort, cases, engines, large, run, run_bench
from raytwin.scenarios.bench.engines import OURS
from raytwin.scenarios.bench.limits import LIMITS, Limits
from raytwin.scenarios.core.scenario import Silent, UsageError
from tests.requirements import require

HIGHER = cases.CASES["tasks_sync"]
LOWER = cases.FRESH["start_up"]
REQUIRED = ["name", "ours", "peers", "ratio", "unit"]


def samples(ours: list[float], ray: list[float], limit: list[float]) -> run.Samples:
    return run.Samples({OURS: ours, "ray": ray}, limit)


def have_available(monkeypatch: pytest.MonkeyPatch, nbytes: float) -> None:
    """Let the machine have so much memory to spare, whatever else it runs."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=nbytes))


# -- rows --------------------------------------------------------------------------


def test_ratio_is_the_median_of_rounds_and_not_a_ratio_of_medians() -> None:
    # Medians are 20 and 10, and the rounds' own ratios 10, 1 and 3.
    found = run.row(HIGHER, samples([10, 20, 60], [1, 20, 20], [40, 40, 99]), [OURS, "ray"])
    assert found["ours"] == 20
    assert found["peers"] == {"ray": 20}
    assert found["ratio"] == found["ratios"]["ray"] == 3
    assert found["ratio_range"] == {"ray": [1, 10]}
    assert found["range"] == {OURS: [10, 60], "ray": [1, 20]}
    assert found["limit"]["fraction"] == 0.5
    assert found["rounds"] == 3
    assert found["better"] == "higher"


def test_less_is_better_for_seconds() -> None:
    found = run.row(LOWER, samples([1, 2], [8, 8], [0.3, 0.3]), [OURS, "ray"])
    assert found["ratio"] == 6
    assert found["limit"]["fraction"] == pytest.approx(0.2)
    assert found["better"] == "lower"


def test_without_peers_there_is_no_ratio() -> None:
    found = run.row(HIGHER, run.Samples({OURS: [5.0]}, [10.0]), [OURS])
    assert found["peers"] == {}
    assert found["ratio"] is None
    assert list(found)[:5] == REQUIRED


def test_every_case_says_what_it_is() -> None:
    assert set(run.NAMES) == {
        "start_up", "idle_memory", "first_put_800mb", "tasks_sync", "tasks_1000", "task_array",
        "wait_1000",
        "put_small", "get_small", "put_1mb", "put_800mb", "actor_sync", "actor_1000",
        "create_100_actors",
    }  # fmt: skip
    assert set(run.KNOWN) - set(run.NAMES) == set(large.LARGE) == set(large.FUNCTIONS)
    for case in (*cases.CASES.values(), *cases.FRESH.values(), *large.LARGE.values()):
        assert case.about.endswith("."), case.name
        assert case.limit in LIMITS, case.name


# -- rounds ------------------------------------------------------------------------


class Fake:
    """A side, and the limits, that note what they are asked and answer 1, 2, 3, ..."""

    def __init__(self, name: str, log: list[tuple[str, str]]) -> None:
        self.name, self.log, self.count = name, log, 0

    def ask(self, what: str, **details: Any) -> float | None:
        self.log.append((self.name, what))
        self.count += 1
        return float(self.count)

    def measure(self, what: str, round_s: float = 0.0, **details: Any) -> float:
        self.ask(what)
        return float(self.count)

    def forget(self) -> None:
        self.log.append((self.name, "forget"))


def test_rounds_interleave_and_the_first_ones_only_warm_up() -> None:
    log: list[tuple[str, str]] = []
    fakes = {name: Fake(name, log) for name in (OURS, "ray")}
    effort = Effort(rounds=2, warm_up_rounds=1)
    found = run.measure_case(HIGHER, fakes, Fake("limits", log), effort, Silent())
    rounds = [name for name, what in log if what in ("round", HIGHER.limit)]
    assert rounds == [OURS, "ray", *["limits", OURS, "ray"] * 2]
    # 1 is the answer to "prepare", 2 that to the round that warms up.
    assert found.sides == {OURS: [3, 4], "ray": [3, 4]}
    assert log[-3:] == [(OURS, "finish"), ("ray", "finish"), ("limits", "forget")]


def test_what_a_peer_lacks_is_not_asked_of_it_and_the_row_says_why() -> None:
    case = cases.CASES["create_100_actors"]
    log: list[tuple[str, str]] = []
    fakes = {name: Fake(name, log) for name in (OURS, "ray", "dask")}
    found = run.measure_case(case, fakes, Fake("limits", log), Effort(rounds=9), Silent())
    assert not [what for name, what in log if name == "dask"]
    # It takes long: fewer rounds than asked for, and one to warm up.
    assert case.rounds_max is not None
    assert len(found.sides[OURS]) == len(found.limit) == case.rounds_max < 9
    assert sum(name == "ray" and what == "round" for name, what in log) == case.rounds_max + 1
    row = run.row(case, found, [OURS, "ray", "dask"])
    assert list(row["peers"]) == list(row["ratios"]) == ["ray"]
    assert list(row["left_out"]) == ["dask"]
    assert "worker" in row["left_out"]["dask"]


def test_the_first_peer_that_has_the_case_gives_the_ratio() -> None:
    case = cases.CASES["create_100_actors"]
    found = run.row(case, run.Samples({OURS: [6.0]}, [10.0]), [OURS, "dask"])
    assert (found["peers"], found["ratio"]) == ({}, None)


def test_an_actor_that_does_not_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "END_TIMEOUT_S", 0.05)
    with subprocess.Popen(["sleep", "60"]) as process:
        pidfd = os.pidfd_open(process.pid)
        with pytest.raises(TimeoutError, match="an actor is alive"):
            cases.await_ends([pidfd])
        process.kill()
        process.wait()
    with pytest.raises(OSError):
        os.fstat(pidfd)


def test_ended_actors_are_waited_for() -> None:
    with subprocess.Popen(["sleep", "0.05"]) as process:
        cases.await_ends([os.pidfd_open(process.pid)])
        assert process.poll() == 0


def test_what_does_not_fit_into_memory_is_left_out_aloud(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    progress = Silent()
    monkeypatch.setattr(progress, "say", said.append)
    large = ("put_800mb", "create_100_actors")
    have_available(monkeypatch, max(cases.CASES[name].memory_bytes for name in large) * 1.5)
    alone = [case.name for case in run.affordable(cases.CASES, run.NAMES, 1, progress)]
    assert set(large) <= set(alone)
    assert not said
    beside = [case.name for case in run.affordable(cases.CASES, run.NAMES, 2, progress)]
    assert beside == [name for name in alone if name not in large]
    assert len(said) == len(large)
    assert all(any(name in line for line in said) for name in large)


def test_an_operation_is_repeated_for_the_length_of_a_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 100.0

    def operation() -> None:
        nonlocal now_s
        now_s += 0.25

    monkeypatch.setattr(cases.time, "perf_counter", lambda: now_s)
    # Five, since four end at 1.0 s: before the round does.
    assert cases.repeated_per_s(operation, 1.1) == pytest.approx(4.0)
    assert now_s == pytest.approx(101.25)


@pytest.mark.parametrize("name", LIMITS)
def test_limits_are_measured(name: str) -> None:
    with Limits() as limits:
        assert limits.measure(name, 0.01) > 0


# -- large clusters ----------------------------------------------------------------


def test_large_clusters_are_what_they_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("NODES", 3), ("ACTOR_NODES", 2), ("ACTORS", 5)):
        monkeypatch.setattr(large, name, value)
    for measure in large.FUNCTIONS.values():
        try:
            assert measure(raytwin) > 0
        finally:
            raytwin.shutdown()


def test_large_clusters_are_measured_alone_and_anew_in_each_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[tuple[str, str]] = []

    class Side(Fake):
        def __init__(self, engine: str, answer_timeout_s: float) -> None:
            super().__init__(engine, log)

        def __enter__(self) -> Side:
            return self

        def __exit__(self, *_: object) -> None:
            self.log.append((self.name, "end"))

    monkeypatch.setattr(run, "Conversation", Side)
    each = large.LARGE["create_2000_actors"]
    found = run.measure_large(each, Fake("limits", log), Effort(large_rounds=2), Silent())
    assert found.sides == {OURS: [1, 1]}
    assert log == [("limits", each.limit), (OURS, "large"), (OURS, "end")] * 2


def test_a_peer_that_a_large_cluster_is_not_measured_on_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []

    class Loud(Silent):
        def say(self, text: str) -> None:
            said.append(text)

    def measured(*_: object) -> run.Samples:
        assert said, "it is said before it takes its time"
        return run.Samples({OURS: [1.0]}, [1.0])

    have_available(monkeypatch, 2 * large.LARGE["create_2000_actors"].memory_bytes)
    monkeypatch.setattr(run, "check_peers", lambda peers: None)
    monkeypatch.setattr(run, "measure_large", measured)
    (row,) = run_bench(["ray"], None, Loud(), Effort(names=("create_2000_actors",)))
    why = "it is measured for ours alone"
    assert said[-1] == f"create_2000_actors is left out for ray: {why}"
    assert (row["left_out"], row["peers"], row["ratio"]) == ({"ray": why}, {}, None)


# -- refusals ----------------------------------------------------------------------


def test_unknown_peer() -> None:
    with pytest.raises(UsageError, match="no peer 'rya': did you mean 'ray'"):
        run_bench(["rya"], None, Silent())


def test_peer_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'raytwin\[ray\]'"):
        run_bench(["ray"], None, Silent())
    with pytest.raises(UsageError, match=r"pip install 'raytwin\[peers\]'"):
        run_bench(["dask"], None, Silent())


def test_peer_whose_store_would_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(engines, "STORE_BYTES", 1 << 60)
    require("shared memory", Path("/dev/shm").exists(), "no /dev/shm")
    with pytest.raises(UsageError, match="GB are needed"):
        run_bench(["ray"], None, Silent())


def test_unknown_case() -> None:
    with pytest.raises(UsageError, match="did you mean 'tasks_sync'"):
        run_bench([], None, Silent(), Effort(names=("task_sync",)))
