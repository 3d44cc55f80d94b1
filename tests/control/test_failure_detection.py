"""Heartbeats, their echoes, and pairs of nodes that cannot reach one another."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from raytwin.runtime.control.core.config import HEAD_RETURN_S, Config
from raytwin.runtime.control.gcs.failure_detector import FailureDetector
from raytwin.runtime.control.gcs.gcs import Gcs
from raytwin.runtime.control.gcs.node_table import PAIR_PERIODS
from raytwin.runtime.control.messages import (
    Heartbeat,
    HeartbeatEcho,
    Load,
    LoadChanged,
    NodeChanged,
    NodeInfo,
    NodeUnreachable,
    PeerUnreachable,
    RegisterNode,
)
from raytwin.runtime.control.node.heartbeats import Heartbeats
from raytwin.runtime.control.node.node_manager import NodeManager
from tests.control.alone import Alone

CONFIG = Config()
LIMIT_S = CONFIG.heartbeat_timeout_s
LOAD = Load(1, 0.1, 0.0, 0, {"CPU": 1.0})


def info(node: int, alive: bool = True, incarnation: int = 1) -> NodeInfo:
    return NodeInfo(node, "host", 1, {"CPU": 1.0}, alive, incarnation)


class Detecting:
    """A failure detector that watches nodes 1 and 2."""

    def __init__(self, config: Config = CONFIG) -> None:
        self.ctx = Alone()
        self.detector = FailureDetector(self.ctx, config)
        self.detector.start()
        for node in (1, 2):
            self.handle(NodeChanged(info(node)))

    def handle(self, message: Any, source: str = "heartbeat:1") -> None:
        self.detector.handle(source, message)
        self.detector.end_turn()

    def beat(self, node: int, for_s: float) -> None:
        """Let time pass while a node sends heartbeats."""
        for _ in range(round(for_s / CONFIG.heartbeat_s)):
            self.handle(Heartbeat(node, 1, LOAD), f"heartbeat:{node}")
            self.ctx.pass_time(CONFIG.heartbeat_s)


def test_silence_is_reported_after_the_limit_and_not_before() -> None:
    made = Detecting()
    made.beat(1, LIMIT_S * 0.98)
    assert not made.ctx.take(NodeUnreachable)
    made.beat(1, LIMIT_S * 0.1)
    [silent] = made.ctx.take(NodeUnreachable, to="gcs")
    assert (silent.node, silent.incarnation) == (2, 1)
    made.beat(1, 3 * LIMIT_S)
    assert not made.ctx.take(NodeUnreachable)


def test_a_delay_of_the_head_itself_accuses_nobody() -> None:
    made = Detecting()
    made.ctx.time_s += 3 * LIMIT_S  # the head stood still
    made.ctx.pass_time(LIMIT_S / 2)
    assert not made.ctx.take(NodeUnreachable)


def test_the_load_goes_to_the_scheduler_and_an_echo_only_to_whom_asks() -> None:
    made = Detecting()
    made.handle(Heartbeat(1, 1, LOAD))
    assert made.ctx.take(LoadChanged, to="global") and not made.ctx.take(HeartbeatEcho)
    made.handle(Heartbeat(1, 1, LOAD, sent_s=3.5))
    assert made.ctx.take(HeartbeatEcho, to="heartbeat:1") == [HeartbeatEcho(3.5)]


def test_a_dead_incarnation_hears_of_its_death_and_a_later_one_does_not() -> None:
    made = Detecting()
    dead = info(1, alive=False)
    made.handle(NodeChanged(dead))
    made.handle(Heartbeat(1, 1, LOAD, sent_s=1.0))
    assert made.ctx.take(NodeChanged, to="heartbeat:1") == [NodeChanged(dead)]
    assert not made.ctx.take(HeartbeatEcho) and not made.ctx.take(LoadChanged)
    made.handle(Heartbeat(1, 2, LOAD, sent_s=1.0))
    assert not made.ctx.take(NodeChanged)
    assert made.ctx.take(HeartbeatEcho, to="heartbeat:1"), "its registration is on its way"


def test_a_node_sends_heartbeats_before_it_is_registered() -> None:
    ctx = Alone()
    NodeManager(ctx, 0, {"CPU": 1}, CONFIG).start("host", 1)
    ctx.pass_time(3.5 * CONFIG.heartbeat_s)
    assert len(ctx.take(Heartbeat, to="heartbeat:0")) == 4


def test_where_the_gcs_is_a_chain_the_masters_hear_of_silence_and_load() -> None:
    made = Detecting(Config(gcs_replicas=2, gcs_shards=2))
    made.handle(Heartbeat(1, 1, LOAD))
    assert made.ctx.take(LoadChanged, to="master")
    made.beat(1, LIMIT_S * 1.1)
    silent = [to for to, message in made.ctx.sent if isinstance(message, NodeUnreachable)]
    assert silent == ["master", "master.1", "master.2"]


class Beating:
    """A node's sender of heartbeats, and a head that answers or does not."""

    def __init__(self, config: Config = CONFIG) -> None:
        self.ctx = Alone()
        self.ctx.time_s = 100.0
        self.heartbeats = Heartbeats(self.ctx, 3, 2, config)

    def run(self, for_s: float, answered: bool) -> None:
        for _ in range(round(for_s / CONFIG.heartbeat_s)):
            self.heartbeats.handle("node:3", Heartbeat(3, 2, LOAD))
            for beat in self.ctx.take(Heartbeat, to="health"):
                if answered and beat.sent_s >= 0:
                    self.heartbeats.handle("health", HeartbeatEcho(beat.sent_s))
            self.ctx.pass_time(CONFIG.heartbeat_s)


def test_a_node_that_hears_no_echo_for_long_fences_itself() -> None:
    made = Beating()
    made.run(5 * LIMIT_S, answered=True)
    assert not made.ctx.take(NodeChanged)
    made.run(CONFIG.fence_s * 0.9, answered=False)
    assert not made.ctx.take(NodeChanged)
    made.run(CONFIG.fence_s * 0.4, answered=False)
    change = made.ctx.take(NodeChanged, to="node:3")[0].info
    assert (change.node, change.incarnation, change.alive) == (3, 2, False)


def test_echoes_are_few() -> None:
    made = Beating()
    asked = 0
    for _ in range(100):
        made.heartbeats.handle("node:3", Heartbeat(3, 2, LOAD))
        asked += sum(beat.sent_s >= 0 for beat in made.ctx.take(Heartbeat, to="health"))
        made.ctx.pass_time(CONFIG.heartbeat_s)
    assert asked <= 12


def test_a_node_that_stood_still_itself_waits_for_the_echo_first() -> None:
    made = Beating()
    made.run(LIMIT_S, answered=True)
    made.ctx.time_s += 3 * CONFIG.fence_s
    made.run(CONFIG.fence_s * 0.8, answered=False)
    assert not made.ctx.take(NodeChanged)


def test_a_node_waits_for_a_durable_head_to_come_back() -> None:
    config = Config(heartbeat_timeout_s=1.0)
    assert replace(config, gcs_durable=True).fence_s == HEAD_RETURN_S > config.fence_s


class Pairs:
    """A GCS with five nodes."""

    def __init__(self) -> None:
        self.ctx = Alone()
        self.gcs = Gcs(self.ctx, CONFIG)
        for node in range(5):
            self.gcs.handle(f"node:{node}", RegisterNode(info(node)))

    def report(self, node: int, peer: int, peer_incarnation: int = 1) -> None:
        self.gcs.handle(
            f"node:{node}", PeerUnreachable(node, 1, peer, peer_incarnation, "silent for 5.1 s")
        )

    def judge(self) -> set[int]:
        """Return the dead nodes after the reports were judged."""
        self.ctx.pass_time(1.01 * PAIR_PERIODS * CONFIG.heartbeat_s)
        return set(range(5)) - self.gcs.nodes.alive


@pytest.mark.parametrize(("node", "peer"), [(1, 3), (3, 1)])
def test_of_one_pair_the_later_node_leaves(node: int, peer: int) -> None:
    made = Pairs()
    made.report(node, peer)
    assert made.judge() == {3}


def test_the_node_of_the_first_driver_stays() -> None:
    made = Pairs()
    made.report(0, 4)
    made.report(0, 2)
    assert made.judge() == {2, 4}


def test_a_node_that_cannot_reach_several_leaves_before_these() -> None:
    made = Pairs()
    for peer in (2, 3, 4):
        made.report(1, peer)
    assert made.judge() == {1}
    assert "node 1 cannot reach node" in made.gcs.nodes.rows[1].reason


def test_a_node_whose_peers_left_before_is_the_one_to_leave_next() -> None:
    made = Pairs()
    made.report(1, 4)
    assert made.judge() == {4}
    made.report(1, 3)
    assert made.judge() == {1, 4}


def test_reports_about_the_dead_or_of_earlier_incarnations_change_nothing() -> None:
    made = Pairs()
    made.report(1, 2, peer_incarnation=7)
    made.gcs.handle("gcs", NodeUnreachable(3, "gone", 1))
    made.report(1, 3)
    assert made.judge() == {3}


@pytest.mark.parametrize("before", [0, 1])
def test_an_incarnation_that_is_dead_before_it_registers_may_not_register(before: int) -> None:
    """A chain of the GCS has ended its sessions: it joined, and nothing that it sent arrived."""
    ctx = Alone()
    gcs = Gcs(ctx, CONFIG)
    gcs.handle("node:0", RegisterNode(info(0)))
    for incarnation in range(1, before + 1):
        gcs.handle("node:1", RegisterNode(info(1, incarnation=incarnation)))
    gcs.handle("master", NodeUnreachable(1, "cut off", before + 1))
    assert not gcs.nodes.rows[1].alive and gcs.nodes.alive == {0}
    ctx.sent.clear()
    gcs.handle("node:1", RegisterNode(info(1, incarnation=before + 1)))
    [refused] = ctx.take(NodeChanged, "node:1")
    assert (refused.info.alive, refused.info.incarnation) == (False, before + 1)
    gcs.handle("node:1", RegisterNode(info(1, incarnation=before + 2)))
    assert gcs.nodes.alive == {0, 1}
