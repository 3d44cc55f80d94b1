"""A host whose cores have run queues: where a process that wakes runs, and what then waits."""

from __future__ import annotations

import math
import random
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raytwin.simulator.machine.clock import Clock
from raytwin.simulator.machine.run_queues import MIGRATION_S, TICK_S, RunQueueHost
from tests.simulator.recorded_network import Log, at

EPS = 1e-9


def started(cores: int) -> tuple[Clock, RunQueueHost, Log]:
    env = Clock()
    return env, RunQueueHost(env, cores), Log(env)


def ended(log: Log) -> list[tuple[object, float]]:
    return [(name, round(when, 9)) for name, when in log.entries]


def test_a_process_that_wakes_preempts_one_that_computes() -> None:
    env, host, log = started(2)
    for name in ("a", "b"):
        host.run(0.5, log.note(name), name)
    for at_s in (0.1, 0.2):
        at(env, at_s, lambda: host.run(0.001, log.note("woken"), "sleeper"))
    env.run()
    # The sleeper waits for no process, and the others get all of their CPU time.
    assert ended(log)[:2] == [("woken", 0.101), ("woken", 0.201)]
    assert sum(when for name, when in log.entries[2:]) == pytest.approx(0.5 + 0.5 + 0.002)


def test_owners_that_have_used_the_same_wait_for_one_another() -> None:
    env, host, log = started(1)
    host.run(0.0006, log.note("first"), "a")
    at(env, 0.00005, lambda: host.run(0.0006, log.note("second"), "b"))
    env.run()
    assert ended(log) == [("first", 0.0006), ("second", 0.0012)]


def test_the_core_that_an_owner_has_left_idles_while_nobody_runs_on_it() -> None:
    env, host, log = started(1)
    assert host.idled_s("a") == math.inf
    host.run(0.001, log.note("a"), "a")
    found = {}
    for at_s in (0.0005, 0.003, 0.005, 0.008):
        at(env, at_s, lambda at_s=at_s: found.update({at_s: host.idled_s("a")}))  # type: ignore[misc]
    at(env, 0.004, lambda: host.run(0.002, log.note("b"), "b"))
    env.run()
    assert found == {
        0.0005: math.inf, 0.003: pytest.approx(0.002), 0.005: pytest.approx(0.003),
        0.008: pytest.approx(0.005),
    }  # fmt: skip
    assert host.idled_s("b") == pytest.approx(env.now - 0.006)


def test_what_computes_alternates_at_ticks() -> None:
    env, host, log = started(1)
    for name in ("a", "b"):
        host.run(0.01, log.note(name), name)
    env.run()
    # a: 0-4, 8-12, 16-18 ms.
    assert ended(log) == [("a", 0.018), ("b", 0.02)]


def test_a_core_idles_while_a_process_with_warm_caches_waits_for_another() -> None:
    env, host, log = started(2)
    host.run(0.0001, log.note("woken"), "a")
    at(env, 0.00005, lambda: host.run(0.0002, log.note("short"), "b"))
    # `c` takes the first core, where `a` has just run and wakes; then the second core idles.
    at(env, 0.0001, lambda: host.run(0.0008, log.note("c"), "c"))
    at(env, 0.00015, lambda: host.run(0.0001, log.note("woken"), "a"))
    env.run()
    assert ended(log) == [
        ("woken", 0.0001), ("short", 0.00025), ("c", 0.0009), ("woken", 0.001)
    ]  # fmt: skip


def test_a_process_waits_for_the_core_that_it_has_run_on() -> None:
    env, host, log = started(2)
    host.run(0.0001, log.note("woken"), "a")
    free = []
    at(env, 0.0002, lambda: host.run(0.0008, log.note("c"), "c"))
    at(env, 0.0003, lambda: free.extend(map(host.is_free, ("a", "another"))))
    env.run()
    # The second core idles, which is for new processes.
    assert free == [False, True]
    assert host.is_free("a")


def test_an_idle_core_takes_a_process_whose_caches_are_cold() -> None:
    env, host, log = started(2)
    host.run(0.0001, log.note("woken"), "a")
    began_s = 0.0001 + 2 * MIGRATION_S
    at(env, began_s, lambda: host.run(0.0008, log.note("c"), "c"))
    at(env, began_s, lambda: host.run(0.0002, log.note("short"), "b"))
    at(env, began_s + 0.00005, lambda: host.run(0.0001, log.note("woken"), "a"))
    env.run()
    # The second core runs `a` as soon as `b` ends there, while `c` still computes.
    assert ended(log)[1:3] == [
        ("short", round(began_s + 0.0002, 9)), ("woken", round(began_s + 0.0003, 9))
    ]  # fmt: skip


def test_a_tick_moves_a_process_to_an_idle_core_whatever_its_caches() -> None:
    env, host, log = started(2)
    began_s = TICK_S - 0.0003
    at(env, began_s, lambda: host.run(0.0001, log.note("woken"), "a"))
    at(env, began_s, lambda: host.run(0.00015, log.note("short"), "b"))
    at(env, began_s + 0.0001, lambda: host.run(0.001, log.note("c"), "c"))
    at(env, began_s + 0.00012, lambda: host.run(0.0001, log.note("woken"), "a"))
    env.run()
    assert ended(log)[2] == ("woken", TICK_S + 0.0001)


def test_sleep_is_no_credit_for_later() -> None:
    env, host, log = started(1)
    host.run(1.0, log.note("computes"), "a")
    # `b` has slept for 0.5 s; from then on it gets half of the core, not all of it.
    at(env, 0.5, lambda: host.run(0.2, log.note("woken"), "b"))
    env.run()
    (first, woken_s), (last, end_s) = log.entries
    assert (first, last) == ("woken", "computes") and end_s == pytest.approx(1.2)
    assert 0.88 < woken_s < 0.91


def test_a_new_process_has_no_credit_against_one_that_has_run_for_long() -> None:
    env, host, log = started(1)
    host.run(5.0, log.note("node computes"), "node")
    at(env, 5.5, lambda: host.run(10.0, log.note("actor"), "actor"))
    at(env, 6.0, lambda: host.run(0.001, log.note("node wakes"), "node"))
    env.run()
    assert ended(log) == [("node computes", 5.0), ("node wakes", 6.001), ("actor", 15.501)]


def test_an_owner_that_goes_on_keeps_its_core_for_a_slice() -> None:
    env, host, log = started(1)

    def go_on() -> None:
        log.note("turn")()
        host.run(0.0002, log.note("turn"), "a")

    host.run(0.0001, go_on, "a")
    at(env, 0.00005, lambda: host.run(0.0001, log.note("other"), "b"))
    env.run()
    assert ended(log) == [("turn", 0.0001), ("turn", 0.0003), ("other", 0.0004)]


def test_an_owner_that_goes_on_in_a_later_event_keeps_its_core() -> None:
    env, host, log = started(1)

    def go_on() -> None:
        log.note("turn")()
        env.after(0.0, lambda: host.run(0.0001, log.note("program"), "a"))

    host.run(0.0001, go_on, "a")
    at(env, 0.00005, lambda: host.run(0.0001, log.note("other"), "b"))
    env.run()
    assert ended(log) == [("turn", 0.0001), ("program", 0.0002), ("other", 0.0003)]


@pytest.mark.parametrize("later", [False, True])
def test_an_owner_that_goes_on_and_on_gives_its_core_up_after_a_slice(later: bool) -> None:
    env, host, log = started(1)
    left = 40

    def go_on() -> None:
        nonlocal left
        left -= 1
        if left and later:
            env.after(0.0, lambda: host.run(0.0001, go_on, "a"))
        elif left:
            host.run(0.0001, go_on, "a")
        else:
            log.note("a")()

    host.run(0.0001, go_on, "a")
    at(env, 0.00005, lambda: host.run(0.0001, log.note("other"), "b"))
    env.run()
    (first, other_s), (last, end_s) = log.entries
    assert (first, last) == ("other", "a") and end_s == pytest.approx(0.0041)
    assert other_s <= host.slice_s + 0.0001 + 0.0001 + EPS


def test_a_core_whose_owner_is_paused_or_killed_as_its_job_ends_runs_the_next() -> None:
    for stop in (RunQueueHost.pause, RunQueueHost.cancel):
        env, host, log = started(1)
        host.run(0.0001, partial(stop, host, "a"), "a")
        at(env, 0.00005, lambda host=host, log=log: host.run(0.0001, log.note("b"), "b"))  # type: ignore[misc]
        env.run()
        assert ended(log) == [("b", 0.0002)]


def test_of_those_that_wait_the_one_that_has_rested_longest_is_next() -> None:
    env, host, log = started(1)
    for start_s, name in ((0.0, "first"), (0.0001, "second"), (0.0002, "sender")):
        at(env, start_s, lambda name=name: host.run(0.00005, log.note(name), name))  # type: ignore[misc]
    at(env, 0.0004, lambda: host.run(0.0001, log.note("sender"), "sender"))
    # The second has run after the first, and wakes before it.
    at(env, 0.00045, lambda: host.run(0.00005, log.note("second"), "second"))
    at(env, 0.00046, lambda: host.run(0.00005, log.note("first"), "first"))
    env.run()
    assert [name for name, _ in log.entries[3:]] == ["sender", "first", "second"]


def test_a_paused_owner_goes_on_later_and_a_cancelled_one_does_not() -> None:
    env, host, log = started(1)
    host.run(0.01, log.note("paused"), "a")
    host.run(0.001, log.note("other"), "b")
    host.run(0.001, log.note("cancelled"), "c")
    at(env, 0.002, lambda: host.pause("a"))
    at(env, 0.0025, lambda: host.cancel("c"))
    at(env, 0.1, lambda: host.resume("a"))
    env.run()
    assert ended(log) == [("other", 0.003), ("paused", 0.108)]
    assert host.is_free("a")


@given(st.integers(0, 2**32 - 1), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_no_time_is_lost_and_no_core_idles_for_more_than_a_tick(seed: int, cores: int) -> None:
    draw = random.Random(seed)
    env, host, log = started(cores)
    wanted_s = 0.0
    for number in range(40):
        cpu_s = draw.choice([0.00002, 0.0005, 0.01])
        wanted_s += cpu_s
        owner = draw.randrange(6)
        at(
            env, draw.random() * 0.05,
            lambda cpu_s=cpu_s, owner=owner, number=number: host.run(
                cpu_s, log.note(number), owner
            ),
        )  # fmt: skip
    env.run()
    assert sorted(name for name, _ in log.entries) == list(range(40))
    assert host.is_free("another") and host.busy_s == pytest.approx(wanted_s)
    # The clock ticks for as long as something waits, and once more.
    assert env.now <= 0.05 + wanted_s + TICK_S + EPS


def test_a_host_without_cores_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one core"):
        RunQueueHost(Clock(), 0)
