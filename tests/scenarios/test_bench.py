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
from raytwin.scenarios.bench import cases, engines, run
from raytwin.scenarios.bench.engines import OURS
from raytwin.scenarios.bench.run import Effort, Samples, run_bench
from raytwin.scenarios.core.scenario import Silent, UsageError
from tests.requirements import require

HIGHER = cases.CASES["tasks_sync"]
LOWER = cases.FRESH["start_up"]
REQUIRED = ["name", "ours", "peers", "ratio", "unit"]


def have_available(monkeypatch: pytest.MonkeyPatch, nbytes: float) -> None:
    """Let the machine have so much memory to spare, whatever else it runs."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=nbytes))


# -- rows --------------------------------------------------------------------------


def test_ratio_is_the_median_of_rounds_and_not_a_ratio_of_medians() -> None:
    # Medians are 20 and 10, and the rounds' own ratios 10, 1 and 3.
    found = run.row(HIGHER, Samples({OURS: [10, 20, 60], "ray": [1, 20, 20]}))
    assert found["ours"] == 20
    assert found["peers"] == {"ray": 20}
    assert found["ratio"] == found["ratios"]["ray"] == 3
    assert found["ratio_range"] == {"ray": [1, 10]}
    assert found["range"] == {OURS: [10, 60], "ray": [1, 20]}
    assert found["rounds"] == 3
    assert found["better"] == "higher"


def test_less_is_better_for_seconds() -> None:
    found = run.row(LOWER, Samples({OURS: [1, 2], "ray": [8, 8]}))
    assert found["ratio"] == 6
    assert found["better"] == "lower"


def test_without_peers_there_is_no_ratio() -> None:
    found = run.row(HIGHER, Samples({OURS: [5.0]}))
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
    large = {"start_100_nodes", "memory_100_nodes", "create_2000_actors"}
    assert set(run.KNOWN) - set(run.NAMES) == large
    for case in cases.CASES.values():
        assert case.prepare.__doc__, case.name
    for fresh in cases.FRESH.values():
        assert fresh.measure.__doc__, fresh.name


# -- rounds ------------------------------------------------------------------------


class Fake:
    """A side that notes what it is asked and answers 1, 2, 3, ..."""

    def __init__(self, name: str, log: list[tuple[str, str]]) -> None:
        self.name, self.log, self.count = name, log, 0

    def ask(self, what: str, **details: Any) -> Any:
        self.log.append((self.name, what))
        self.count += 1
        return (float(self.count), 0.5) if what == "round" else None

    def start(self) -> None:
        self.ask("start")

    def measure(self, what: str, **details: Any) -> float:
        self.ask(what)
        return float(self.count)


def fakes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Have sides that only note what they are asked, and return what they note."""
    log: list[tuple[str, str]] = []

    class Side(Fake):
        def __init__(self, engine: str) -> None:
            super().__init__(engine, log)

        def __enter__(self) -> Side:
            return self

        def __exit__(self, *_: object) -> None:
            self.log.append((self.name, "end"))

    monkeypatch.setattr(run, "Conversation", Side)
    return log


def test_every_round_has_clusters_of_its_own_and_asks_ours_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = fakes(monkeypatch)
    taken = {"tasks_sync": Samples({})}
    for number in range(2):
        run.take_round(number, [HIGHER], [OURS, "ray"], taken, Effort(), Silent())
    both = [(OURS, "ray"), ("ray", OURS)]
    steps = [("start", 0), ("prepare", 0), ("round", 0), ("finish", 0), ("end", 1)]
    assert log == [(side, what) for what, order in steps for side in both[order]] * 2
    # 1 is the answer to "start", 2 that to "prepare".
    assert taken["tasks_sync"].values == {OURS: [3, 3], "ray": [3, 3]}
    assert taken["tasks_sync"].cpu_s == {OURS: [0.5, 0.5], "ray": [0.5, 0.5]}


class Loud(Silent):
    """A progress that keeps what is said."""

    def __init__(self, said: list[str]) -> None:
        self.said = said

    def say(self, text: str) -> None:
        self.said.append(text)


def test_unsupported_cases_of_a_peer_are_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = cases.CASES["create_100_actors"]
    log = fakes(monkeypatch)
    said: list[str] = []
    taken = {case.name: Samples({})}
    for number in range(9):
        run.take_round(number, [case], [OURS, "ray", "dask"], taken, Effort(), Loud(said))
    assert {what for name, what in log if name == "dask"} == {"start", "end"}
    # It takes long: fewer rounds than asked for.
    found = taken[case.name]
    assert case.rounds_max is not None
    assert len(found.values[OURS]) == len(found.values["ray"]) == case.rounds_max < 9
    row = run.row(case, found)
    assert list(row["peers"]) == list(row["ratios"]) == ["ray"]
    assert [line.partition(":")[0] for line in said] == ["create_100_actors is left out for dask"]


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


def test_cases_beyond_memory_are_skipped_with_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    large = ("put_800mb", "create_100_actors")
    have_available(monkeypatch, max(cases.CASES[name].memory_bytes for name in large) * 1.5)
    alone = [case.name for case in run.affordable(cases.CASES, Effort(), 1, Loud(said))]
    assert set(large) <= set(alone)
    assert not said
    beside = [case.name for case in run.affordable(cases.CASES, Effort(), 2, Loud(said))]
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


# -- whole clusters ----------------------------------------------------------------


@pytest.mark.parametrize("name", ["start_100_nodes", "memory_100_nodes", "create_2000_actors"])
def test_large_clusters_are_what_they_are_called(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for constant, value in (("NODES", 3), ("ACTOR_NODES", 2), ("MANY_ACTORS", 5)):
        monkeypatch.setattr(cases, constant, value)
    try:
        assert cases.FRESH[name].measure(raytwin, {}) > 0
    finally:
        raytwin.shutdown()


@pytest.mark.parametrize(
    ("name", "sides"), [("start_up", [OURS, "ray"]), ("create_2000_actors", [OURS])]
)
def test_whole_clusters_are_measured_anew_in_each_round(
    name: str, sides: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = fakes(monkeypatch)
    effort = Effort(fresh_rounds=2)
    found = run.measure_fresh(cases.FRESH[name], [OURS, "ray"], effort, Silent())
    assert found.values == {side: [1, 1] for side in sides}
    rounds = [(side, what) for what in ("start", "fresh", "fresh") for side in sides]
    assert log == [step for side, what in rounds for step in ((side, what), (side, "end"))]


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
