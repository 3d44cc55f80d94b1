"""A task that runs again needs a reason: a death before it, or a retry that its options ask for."""

from __future__ import annotations

from math import inf

import pytest

from raytwin.chaos.fuzz.oracle.history import End, History
from raytwin.chaos.fuzz.oracle.repeated_tasks import repeated_tasks
from raytwin.chaos.fuzz.oracle.sequential import Sequential
from raytwin.chaos.fuzz.programs.program import Call, Op


@pytest.mark.parametrize(("first_death_s", "wrong"), [(1.5, False), (2.5, True), (inf, True)])
def test_a_task_runs_again_only_after_a_death(first_death_s: float, wrong: bool) -> None:
    history = History()
    history.begun_s[0, "k1r3"], history.begun_s[1, "k1r3"] = [1.0], [2.0]
    assert bool(repeated_tasks(history, {"k1r3": 1}, first_death_s)) is wrong
    assert not repeated_tasks(history, {"k1r3": 2}, first_death_s)


def test_an_actor_that_the_program_has_ended_may_replay_what_runs_tasks() -> None:
    history = History(clock=lambda: 1.0)
    history.end(End.KILL, "a2r1")
    history.begun_s[0, "k1r3"] = [0.5, 1.5]
    assert not repeated_tasks(history, {"k1r3": 1}, inf)


def test_a_sequential_run_counts_the_elements_of_a_map_and_the_tries_of_a_flaky_task() -> None:
    sequential = Sequential()
    sequential.map(Op("map", call=Call(1, retries=3), count=4), [])
    sequential.call(Op("call", call=Call(2, retries=3, flaky=2)), [])
    assert sequential.runs == {"k1r3": 4, "k2r3": 3}
