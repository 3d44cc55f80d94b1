"""The interpreter of a process: its program and its turns compute one at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import raytwin as ray
from raytwin.simulator.machine.clock import Clock
from raytwin.simulator.machine.costs import load_profile
from raytwin.simulator.machine.host import Host, SharedProcessor
from raytwin.simulator.machine.interpreter import SWITCH_S, Interpreter
from raytwin.simulator.machine.run_queues import RunQueueHost

HOSTS: tuple[Callable[[Clock], SharedProcessor], ...] = (
    lambda env: Host(env, 4), lambda env: RunQueueHost(env, 4)
)  # fmt: skip
ME = "process"


class Jobs:
    """Jobs of one process on an idle host of four cores."""

    def __init__(self, host: Callable[[Clock], SharedProcessor]) -> None:
        self.env = Clock()
        self.host = host(self.env)
        self.interpreter = Interpreter(self.env, self.host)
        self.ended_s: dict[str, float] = {}

    def request(self, name: str, cpu_s: float, then: Callable[[], None] | None = None) -> None:
        def done() -> None:
            self.ended_s[name] = self.env.now
            if then is not None:
                then()

        self.interpreter.run(cpu_s, done, ME)

    def at(self, when_s: float, call: Callable[[], None]) -> None:
        self.env.after(when_s, call)

    def end(self) -> dict[str, float]:
        while self.env._queue:
            self.env.step()
        return self.ended_s


@pytest.fixture(params=HOSTS, ids=["one queue", "run queues"])
def jobs(request: pytest.FixtureRequest) -> Jobs:
    return Jobs(request.param)


def test_jobs_of_one_process_do_not_overlap(jobs: Jobs) -> None:
    jobs.request("first", 0.002)
    jobs.request("second", 0.001)
    assert jobs.end() == pytest.approx({"first": 0.002, "second": 0.003})


def test_a_turn_takes_the_interpreter_from_a_program_that_computes_for_long(jobs: Jobs) -> None:
    jobs.request("program", 0.1)
    jobs.at(0.02, lambda: jobs.request("turn", 0.001))
    ended_s = jobs.end()
    assert ended_s["turn"] == pytest.approx(0.02 + SWITCH_S + 0.001)
    assert ended_s["program"] == pytest.approx(0.101)


def test_a_job_that_continues_keeps_the_interpreter_until_it_is_told_to_give_it_up(
    jobs: Jobs,
) -> None:
    left = 20

    def again() -> None:
        nonlocal left
        left -= 1
        if left:
            jobs.request(f"call {left}", 0.001, again)

    jobs.request("call 20", 0.001, again)
    jobs.request("turn", 0.001)
    assert SWITCH_S < jobs.end()["turn"] <= SWITCH_S + 0.002 + 1e-9
    assert jobs.ended_s["call 1"] == pytest.approx(0.021)


def test_who_waits_for_a_core_keeps_the_interpreter_and_its_place() -> None:
    jobs = Jobs(lambda env: Host(env, 1, quantum_s=0.003))
    for number in range(5):
        jobs.host.run(0.03, lambda: None, f"other {number}")
    jobs.request("program", 0.001)
    jobs.request("turn", 0.001)
    ended_s = jobs.end()
    assert ended_s["program"] == pytest.approx(5 * 0.003 + 0.001), "its turn comes once"
    assert ended_s["turn"] < 3 * 5 * 0.003


def test_a_program_that_goes_on_in_its_next_event_keeps_the_interpreter(jobs: Jobs) -> None:
    """The calling program's next job comes after the event that has ended the one before."""
    jobs.request("first", 0.001, lambda: jobs.at(0.0, lambda: jobs.request("second", 0.001)))
    jobs.request("turn", 0.001)
    assert list(jobs.end()) == ["first", "second", "turn"]


def test_who_is_paused_holds_the_interpreter(jobs: Jobs) -> None:
    jobs.request("program", 0.01)
    jobs.request("turn", 0.001)
    jobs.at(0.001, lambda: jobs.interpreter.pause(ME))
    jobs.at(0.101, lambda: jobs.interpreter.resume(ME))
    ended_s = jobs.end()
    assert min(ended_s.values()) > 0.101
    assert max(ended_s.values()) == pytest.approx(0.111)


def test_a_process_that_has_ended_runs_nothing_more(jobs: Jobs) -> None:
    jobs.request("program", 0.01)
    jobs.request("turn", 0.001)
    jobs.at(0.001, lambda: jobs.interpreter.cancel(ME))
    assert not jobs.end()
    jobs.request("reaped", 0.001)
    assert list(jobs.end()) == ["reaped"]


@given(
    st.sampled_from(HOSTS),
    st.lists(st.tuples(st.floats(0, 0.05), st.floats(1e-6, 0.02)), min_size=1, max_size=12),
)
def test_as_much_time_passes_as_the_jobs_take_together(
    host: Callable[[Clock], SharedProcessor], given_jobs: list[tuple[float, float]]
) -> None:
    jobs = Jobs(host)
    for number, (at_s, cpu_s) in enumerate(given_jobs):
        jobs.at(at_s, lambda number=number, cpu_s=cpu_s: jobs.request(str(number), cpu_s))  # type: ignore[misc]
    free_s = 0.0
    for at_s, cpu_s in sorted(given_jobs):
        free_s = max(free_s, at_s) + cpu_s  # whatever the order, it is never idle
    assert max(jobs.end().values()) == pytest.approx(free_s)
    assert len(jobs.ended_s) == len(given_jobs)


@ray.remote
def _value(number: int) -> int:
    return number


def test_a_driver_that_computes_while_results_arrive_uses_one_core(tmp_path: Path) -> None:
    slow = msgspec.to_builtins(load_profile("paper"))
    slow["driver"]["turn_s"] = 2e-4
    path = tmp_path / "profile.json"
    path.write_bytes(msgspec.json.encode(slow))
    session: Any = ray.init(backend="sim", nodes=1, cpus_per_node=4, profile=str(path))
    try:
        cluster = session.cluster
        ray.get(_value.remote(0))
        driver = next(p for name, p in cluster.processes.items() if name.startswith("driver"))
        busy_s, begun_s = driver.busy_s, ray.now()
        refs = []
        for number in range(500):
            refs.append(_value.remote(number))
            ray.compute(2e-4)
        assert ray.get(refs) == list(range(500))
        assert driver.busy_s - busy_s <= (ray.now() - begun_s) * (1 + 1e-9)
    finally:
        ray.shutdown()
