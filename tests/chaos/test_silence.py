"""A process that is given up too early is a finding, and so is a channel that keeps too much."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import raytwin as ray
from raytwin.chaos.faults.plan import Plan, Step
from raytwin.chaos.faults.targets import Worker
from raytwin.chaos.fuzz.generate.cases import Case
from raytwin.chaos.fuzz.oracle.findings import Kind
from raytwin.chaos.fuzz.oracle.silence import Silence
from raytwin.chaos.fuzz.programs.program import Body, Call, Op
from raytwin.chaos.fuzz.run.case_run import run_case
from raytwin.runtime.control.channels.channel import Channel
from raytwin.runtime.control.core.addresses import HEALTH
from raytwin.runtime.control.messages import NodeUnreachable

LIMIT_S = 0.5


@pytest.fixture(params=[{}, {"gcs_replicas": 2}], ids=["one process", "a chain"])
def sim(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield ray.init(
        backend="sim", nodes=3, cpus_per_node=1, heartbeat_timeout_s=LIMIT_S, **request.param
    )
    ray.shutdown()


def kinds(silence: Silence) -> set[Kind]:
    return {each.kind for each in silence.found}


def channel_of(cluster: Any, me: str, peer: str) -> Channel:
    found: Channel = cluster.processes[me].channels.peers.channels[peer]
    return found


def test_a_node_that_is_reported_before_the_limit_is_found(sim: Any) -> None:
    silence = Silence(sim.cluster)
    ray.sleep(1.0)
    for observe in sim.cluster.on_turn:
        observe(HEALTH, [], {"gcs": [NodeUnreachable(1, "a guess", 1)]})
    assert kinds(silence) == {Kind.DEATHS}


def test_a_peer_that_is_reported_before_the_limit_is_found(sim: Any) -> None:
    silence = Silence(sim.cluster)
    ray.sleep(1.0)
    channel_of(sim.cluster, "links", "node:1").fail("a guess")
    ray.sleep(1.0)
    assert 1 not in sim.cluster.gcs.nodes.alive
    assert kinds(silence) == {Kind.DEATHS}


@pytest.mark.parametrize(
    "hit",
    [
        lambda cluster: cluster.cut("node:1", "head"),
        lambda cluster: cluster.pause_node(1),
        lambda cluster: cluster.kill_node(1),
        lambda cluster: cluster.restart_node(1),
    ],
    ids=["cut", "pause", "kill", "restart"],
)
def test_a_node_that_is_silent_or_ends_is_given_up_rightly(
    sim: Any, hit: Callable[[Any], None]
) -> None:
    silence = Silence(sim.cluster)
    ray.sleep(1.0)
    hit(sim.cluster)
    ray.sleep(5 * LIMIT_S)
    rows = sim.cluster.gcs.nodes.rows
    assert 1 not in sim.cluster.gcs.nodes.alive or rows[1].incarnation == 2
    assert silence.found == []


def test_a_node_that_is_declared_dead_for_no_report_is_found() -> None:
    def accuse(session: Any) -> None:
        cluster = session.cluster

        def later() -> Any:
            yield cluster.env.timeout(0.2)
            cluster.gcs.nodes.declare_dead(1, "an accusation")

        cluster.env.process(later())

    tasks = tuple(Op("call", (), out, Call(out, 0.1, retries=-1)) for out in range(8))
    gets = (Op("get", tuple(range(8))),)
    case = Case(7, 2, 1, Body((*tasks, *gets)), Plan([Step("kill", Worker(0, 0), 0.1)]), False)
    assert run_case(case).failures == []
    assert Kind.DEATHS in {each.kind for each in run_case(case, prepare=accuse).failures}


@ray.remote
def nothing() -> None: ...


def test_a_channel_that_counts_other_bytes_than_it_keeps_is_found(sim: Any) -> None:
    silence = Silence(sim.cluster)
    ray.sleep(1.0)
    assert silence.unacknowledged() == []
    channel_of(sim.cluster, "links", "node:1").kept_bytes += 1
    assert [each.kind for each in silence.unacknowledged()] == [Kind.MEMORY]


def test_a_frame_that_is_not_acknowledged_is_found_unless_the_peer_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session: Any = ray.init(backend="sim", nodes=2, cpus_per_node=1, heartbeat_timeout_s=100.0)
    monkeypatch.setattr(Channel, "_on_ack_timer", lambda self: None)
    try:
        silence = Silence(session.cluster)
        ray.get([nothing.remote() for _ in range(4)])
        ray.sleep(1.0)
        assert {each.kind for each in silence.unacknowledged()} == {Kind.MEMORY}
        session.cluster.cut("node:0", "head")
        session.cluster.cut("node:1", "head")
        session.cluster.cut("node:0", "node:1")
        assert silence.unacknowledged() == []
    finally:
        ray.shutdown()
