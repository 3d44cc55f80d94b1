"""Links between living nodes that break, stall and lose data, by Toxiproxy and in virtual time.

A program of tasks, transfers and actors' calls runs meanwhile. Whatever its links do, each value is
that of a sequential run, none is missing, and no node is declared dead that the failure detector's
limit does not justify.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
import pytest

import raytwin as ray
from raytwin.chaos.faults.injector import proxied_for
from raytwin.chaos.faults.plan import Plan, Step
from raytwin.chaos.faults.proxied_links import proxied
from raytwin.runtime.api.options.scheduling_strategies import NodeAffinitySchedulingStrategy
from raytwin.runtime.processes.spawn.local_cluster import new_links

NODES = 3
LIMIT_S = 60.0
NAMES = [f"node:{number}" for number in range(NODES)]
LINKS = [(a, b) for a in [*NAMES, "head"] for b in [*NAMES, "head"] if a != b]
BACKENDS = [pytest.param("local", marks=pytest.mark.toxiproxy), "sim"]


@pytest.fixture(params=BACKENDS)
def session(request: pytest.FixtureRequest) -> Iterator[Any]:
    with proxied("local") if request.param == "local" else nullcontext():
        made = ray.init(
            backend=request.param, nodes=NODES, cpus_per_node=1, heartbeat_timeout_s=2.0
        )
        yield made
        ray.shutdown()


class Program:
    """Tasks, sums of transferred arrays, actors that count and that call others, over all nodes."""

    def __init__(self) -> None:
        spread = {"scheduling_strategy": "SPREAD", "max_retries": -1}
        self.square: Any = ray.remote(**spread)(_square)
        self.fill: Any = ray.remote(**spread)(_fill)
        self.add: Any = ray.remote(**spread)(_add)
        lasting: Any = ray.remote(max_restarts=-1, max_task_retries=-1, num_cpus=0)
        self.counters = [
            lasting(_Counter).options(scheduling_strategy="SPREAD").remote() for _ in range(NODES)
        ]
        on = [NodeAffinitySchedulingStrategy(str(node), soft=True) for node in range(NODES)]
        self.callers = [lasting(_Caller).options(scheduling_strategy=each).remote() for each in on]
        self.squares: list[Any] = []
        self.sums: list[Any] = []
        self.counts: list[list[Any]] = [[] for _ in self.counters]
        self.asked: list[Any] = []

    def run(self, steps: int, between: Callable[[int], None]) -> None:
        for step in range(steps):
            self.squares += [self.square.remote(5 * step + number) for number in range(5)]
            if step % 4 == 0:
                self.sums.append(self.add.remote(self.fill.remote(1.0), self.fill.remote(2.0)))
                self.asked += [a.ask.remote(b) for a, b in pairwise(self.callers)]
            for counter, counts in zip(self.counters, self.counts, strict=True):
                counts.append(counter.count.remote())
            between(step)
            ray.sleep(0.02)

    def check(self) -> None:
        """Every value is there, and right."""
        found = ray.get(self.squares, timeout=LIMIT_S)
        assert found == [number * number for number in range(len(found))]
        assert ray.get(self.sums, timeout=LIMIT_S) == [60_000.0] * len(self.sums)
        for counts in self.counts:
            assert ray.get(counts, timeout=LIMIT_S) == list(range(1, len(counts) + 1))
        assert ray.get(self.asked, timeout=LIMIT_S) == [True] * len(self.asked)


class _Caller:
    def ask(self, other: Any) -> bool:
        return other is None or ray.get(other.ask.remote(None))


def _square(x: int) -> int:
    return x * x


def _fill(x: float) -> Any:
    return np.full(20_000, x)


def _add(a: Any, b: Any) -> float:
    return float(a.sum() + b.sum())


class _Counter:
    def __init__(self) -> None:
        self.calls = 0

    def count(self) -> int:
        self.calls += 1
        return self.calls


def alive() -> list[bool]:
    return [row["Alive"] for row in ray.nodes()]


def test_connections_that_break_all_the_time_change_nothing(session: Any) -> None:
    rng = random.Random(7)
    program = Program()
    program.run(100, lambda _: session.cluster.reset_links(*rng.choice(LINKS), rst=True))
    program.check()
    assert alive() == [True] * NODES


def test_a_thousand_breaks_in_a_minute_change_nothing(session: Any) -> None:
    """Of twenty resets one asks for RST; the real Toxiproxy sends FIN for it, too, and `sim` makes
    no difference. Stalls and one-way cuts are shorter than the limit."""
    rng = random.Random(9)
    cluster = session.cluster
    began_s = ray.now()
    held: list[tuple[str, str]] = []

    def between(step: int) -> None:
        cluster.reset_links(*rng.choice(LINKS), rst=rng.random() < 0.05)
        if step % 10 == 0:
            while held:
                cluster.heal(*held.pop())
            if step % 20 == 0:
                held.append(rng.choice(LINKS))
                rng.choice((cluster.stall_link, cluster.cut))(*held[0])
        ray.sleep(max(0.0, began_s + 0.06 * step - ray.now()))

    program = Program()
    program.run(1000, between)
    assert ray.now() - began_s >= 59.9
    while held:
        cluster.heal(*held.pop())
    program.check()
    assert alive() == [True] * NODES


def test_stalls_shorter_than_the_limit_change_nothing(session: Any) -> None:
    rng = random.Random(8)
    cluster = session.cluster

    def between(step: int) -> None:
        if step % 10 == 0:
            for link in LINKS:
                cluster.heal(*link)
            stalled = rng.choice(LINKS)
            (cluster.stall_link if step % 20 else cluster.cut)(*stalled)

    program = Program()
    program.run(60, between)
    for link in LINKS:
        cluster.heal(*link)
    program.check()
    assert alive() == [True] * NODES


@pytest.mark.parametrize("one_way", [True, False])
@pytest.mark.parametrize("fault", ["cut", "stall_link"])
def test_of_a_pair_whose_link_breaks_for_good_one_leaves(
    session: Any, fault: str, one_way: bool
) -> None:
    """Both reach the head. What needs the link is done without it, within some limits of silence:
    until one node reports the other, and until what one of them had is made again."""
    cluster = session.cluster
    program = Program()

    def between(step: int) -> None:
        if step == 5:
            getattr(cluster, fault)("node:1", "node:2")
            if not one_way:
                getattr(cluster, fault)("node:2", "node:1")

    program.run(40, between)
    submitted_s = ray.now()
    program.check()
    if session.name == "sim":  # a busy machine adds seconds of its own
        assert ray.now() - submitted_s < 2 * cluster.config.heartbeat_timeout_s
    assert alive()[0] and sum(alive()) == NODES - 1


@pytest.mark.parametrize("direction", ["from", "to", "both"])
def test_a_node_that_is_cut_off_from_the_head_leaves(session: Any, direction: str) -> None:
    cluster = session.cluster
    program = Program()

    def between(step: int) -> None:
        if step == 5 and direction != "to":
            cluster.cut("node:1", "head")
        if step == 5 and direction != "from":
            cluster.cut("head", "node:1")

    program.run(40, between)
    program.check()
    ray.sleep(6)
    assert alive() == [True, False, True]


def test_a_minority_is_fenced_and_the_majority_goes_on(session: Any) -> None:
    cluster = session.cluster
    program = Program()

    def between(step: int) -> None:
        if step == 5:
            for other in ("node:0", "node:1", "head"):
                cluster.cut("node:2", other)
                cluster.cut(other, "node:2")

    program.run(40, between)
    program.check()
    assert alive() == [True, True, False]


def test_a_slow_link_does_not_hold_heartbeats_back(session: Any) -> None:
    """Results of 90 KB over a link of 100 KB/s take longer than the limit of silence."""
    session.cluster.set_bandwidth("node:1", "head", 100_000)
    session.cluster.set_bandwidth("node:1", "node:0", 100_000)
    large = ray.remote(resources={"node:1": 0.01})(_bytes)
    refs = [large.remote(90_000) for _ in range(6)]
    assert [len(value) for value in ray.get(refs, timeout=LIMIT_S)] == [90_000] * 6
    assert alive() == [True] * NODES


def test_a_checkpoint_over_a_slow_link_does_not_hold_heartbeats_back(session: Any) -> None:
    """3 MB of an actor's state over a link of 100 KB/s take fifteen times the limit of silence."""
    saved: Any = ray.remote(
        num_cpus=0, max_restarts=1, max_task_retries=-1, checkpoint_interval=3,
        resources={"node:1": 0.01},
    )(_Saved)  # fmt: skip
    actor = saved.remote(3_000_000)
    assert ray.get(actor.count.remote(), timeout=LIMIT_S) == (1, False)
    session.cluster.set_bandwidth("node:1", "head", 100_000)
    began_s = ray.now()
    refs = [actor.count.remote() for _ in range(4)]
    assert ray.get(refs, timeout=LIMIT_S) == [(count, False) for count in range(2, 6)]
    assert ray.now() - began_s > 2 * session.cluster.config.heartbeat_timeout_s
    session.cluster.kill_actor()
    assert ray.get(actor.count.remote(), timeout=LIMIT_S) == (6, True)
    assert alive() == [True] * NODES


class _Saved:
    """Counts, and says whether it was restored from a checkpoint."""

    def __init__(self, nbytes: int) -> None:
        self.state = (0, bytes(nbytes))
        self.restored = False

    def count(self) -> tuple[int, bool]:
        self.state = (self.state[0] + 1, self.state[1])
        return self.state[0], self.restored

    def __ray_save__(self) -> Any:
        return self.state

    def __ray_restore__(self, state: Any) -> None:
        self.state, self.restored = state, True


def _bytes(size: int) -> bytes:
    return bytes(size)


def test_latency_is_that_of_the_plan_in_the_round_trip(session: Any) -> None:
    """50 ms on a link, measured by a call that crosses it once each way, and by the clock.

    The quickest of several calls, since a busy machine delays some of them.
    """

    @ray.remote(resources={"node:1": 0.01})
    class Echo:
        def back(self) -> None:
            return None

    echo = Echo.remote()
    ray.get(echo.back.remote(), timeout=LIMIT_S)

    def took_s(action: Callable[[], Any]) -> float:
        began_s = ray.now()
        action()
        return ray.now() - began_s

    def call() -> None:
        ray.get(echo.back.remote(), timeout=LIMIT_S)

    own, slow, slept = [], [], []
    for _ in range(9):
        own.append(took_s(call))
        session.cluster.set_latency("node:0", "node:1", 0.05)
        slow += [took_s(call) for _ in range(2)]
        session.cluster.set_latency("node:0", "node:1", 0.0)
        slept.append(took_s(lambda: ray.sleep(0.05)))
    assert 0.9 < (min(slow) - min(own)) / min(slept) < 1.1


def test_jitter_is_to_both_sides_of_the_latency(session: Any) -> None:
    counter: Any = ray.remote(_Counter).options(resources={"node:1": 0.01}).remote()
    ray.get(counter.count.remote(), timeout=LIMIT_S)

    def took_s(calls: int, jitter_s: float) -> list[float]:
        session.cluster.set_latency("node:0", "node:1", 0.02, jitter_s)
        found = []
        for _ in range(calls):
            began_s = ray.now()
            ray.get(counter.count.remote(), timeout=LIMIT_S)
            found.append(ray.now() - began_s)
        return found

    usual_s = median(took_s(40, 0.0))
    jittered_s = took_s(80, 0.02)
    assert 1 / 8 < sum(each < usual_s for each in jittered_s) / len(jittered_s) < 7 / 8


@pytest.mark.parametrize("backend", BACKENDS)
def test_links_of_replicas_of_the_gcs_are_slow_break_and_are_cut(backend: str) -> None:
    """What waits for the GCS waits for its slow link; values are right whatever its links do."""
    with proxied("local") if backend == "local" else nullcontext():
        session = ray.init(
            backend=backend, nodes=2, cpus_per_node=1, gcs_replicas=2, heartbeat_timeout_s=2.0
        )
    try:
        break_links_of_replicas(session.cluster)
    finally:
        ray.shutdown()


def break_links_of_replicas(cluster: Any) -> None:
    """Slow down, reset and cut links of the two replicas of a cluster; nothing changes."""
    square: Any = ray.remote(scheduling_strategy="SPREAD", max_retries=-1)(_square)
    named = ray.remote(num_cpus=0)(_Counter).options(name="counter").remote()
    ray.get(named.count.remote(), timeout=LIMIT_S)

    def quickest_s() -> float:
        times = []
        for _ in range(3):
            began_s = ray.now()
            ray.get_actor("counter")
            times.append(ray.now() - began_s)
        return min(times)

    replicas = ["replica:0.0", "replica:0.1"]
    of_driver = [("node:0", replica) for replica in replicas]
    for link in of_driver:
        cluster.set_latency(*link, 0.3)
    assert quickest_s() >= 0.3
    for link in of_driver:
        cluster.set_latency(*link, 0.0)
    others = [("node:1", "replica:0.1"), ("replica:0.1", "replica:0.0"), ("head", "replica:0.1")]
    for a, b in [*of_driver, *others]:
        cluster.reset_links(a, b, rst=True)
        cluster.cut(b, a)
        refs = [square.remote(number) for number in range(5)]
        ray.sleep(0.1)
        cluster.heal(b, a)
        assert ray.get(refs, timeout=LIMIT_S) == [0, 1, 4, 9, 16]
    assert alive() == [True] * 2


@pytest.mark.toxiproxy
def test_the_links_of_every_node_that_a_plan_adds_have_proxies() -> None:
    adding = [Step("add_node", "cluster", 0.0) for _ in range(6)]
    with proxied_for(Plan([*adding, Step("cut", "link:0>6", 1.0)])):
        links = new_links("local", 1, "127.0.0.1")
    assert links is not None
    try:
        links.cut("node:0", "node:6")
    finally:
        links.close()


@pytest.mark.toxiproxy
def test_no_proxy_stays_behind_and_a_cluster_without_them_refuses_faults() -> None:
    ray.init(nodes=1, cpus_per_node=1)
    try:
        with pytest.raises(ValueError, match="without proxies"):
            ray.runtime.api.backend.connected().cluster.cut("node:0", "head")  # type: ignore[attr-defined]
    finally:
        ray.shutdown()
    assert not [t for t in threading.enumerate() if t.name == "raytwin-toxiproxy"]


@pytest.mark.parametrize("backend", ["sim"])
def test_nodes_that_were_cut_off_from_each_other_die_one_after_another(backend: str) -> None:
    """The later one has a connection whose other end is gone, with its node."""
    session = ray.init(backend=backend, nodes=NODES, cpus_per_node=1)
    try:
        caller = ray.remote(num_cpus=0, scheduling_strategy="SPREAD")(_Caller)
        callers = [caller.remote() for _ in NAMES]
        for asking in callers:
            asked = [asking.ask.remote(each) for each in callers if each != asking]
            assert all(ray.get(asked))
        session.cluster.cut(NAMES[1], NAMES[2])
        for number in (1, 2):
            session.cluster.kill_node(number)
        assert ray.get(ray.remote(max_retries=-1)(_square).remote(3)) == 9
    finally:
        ray.shutdown()


def test_an_idle_node_that_a_dying_head_could_not_reach_hears_the_next_one() -> None:
    """The end of their connection arrives after the cut, and the node attaches to the new GCS."""
    session = ray.init(backend="sim", nodes=2, cpus_per_node=1, gcs_storage="any")
    try:
        on_node_1 = NodeAffinitySchedulingStrategy("1", soft=False)
        made = ray.remote(num_cpus=0, scheduling_strategy=on_node_1)(np.zeros).remote(30_000)
        ray.wait([made], fetch_local=False)
        ray.sleep(1.0)  # Then the node has nothing to send.
        session.cluster.cut("head", NAMES[1])
        session.cluster.kill_head()
        session.cluster.heal("head", NAMES[1])
        ray.sleep(1.0)
        assert session.cluster.stores[1].used > 0
        del made
        ray.sleep(1.0)
        assert session.cluster.stores[1].used == 0
    finally:
        ray.shutdown()
