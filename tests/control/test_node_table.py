"""The GCS's node table: who hears of a node that joins, when, and in how many messages."""

from __future__ import annotations

from typing import Any

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.gcs.gcs import Gcs
from raytwin.runtime.control.messages import (
    FindActor,
    NodeChanged,
    NodeInfo,
    NodesJoined,
    NodeUnreachable,
    PeerUnreachable,
    Registered,
    RegisterNode,
)
from tests.control.alone import Alone


def info(node: int, incarnation: int = 1) -> NodeInfo:
    return NodeInfo(node, "host", 1, {"CPU": 1.0}, incarnation=incarnation)


class Joining:
    """A GCS that nodes join."""

    def __init__(self) -> None:
        self.ctx = Alone()
        self.gcs = Gcs(self.ctx, Config())

    def turn(self, *messages: Any) -> None:
        for message in messages:
            source = f"node:{message.info.node}" if isinstance(message, RegisterNode) else "links"
            self.gcs.handle(source, message)
        self.gcs.end_turn()

    def heard(self, node: int) -> list[Any]:
        """Return what a node was sent, and forget it."""
        found = [message for to, message in self.ctx.sent if to == f"node:{node}"]
        self.ctx.sent = [(to, message) for to, message in self.ctx.sent if to != f"node:{node}"]
        return found


def test_nodes_that_register_in_one_turn_share_one_table() -> None:
    made = Joining()
    made.turn(*(RegisterNode(info(node)) for node in range(4)))
    tables = []
    for node in range(4):
        (registered,) = made.heard(node)
        assert isinstance(registered, Registered) and registered.incarnation == 1
        tables.append(registered.nodes)
    assert all(table is tables[0] for table in tables)
    assert {node: (row.node, row.alive) for node, row in tables[0].items()} == {
        node: (node, True) for node in range(4)
    }
    made.turn(RegisterNode(info(4)))
    assert list(tables[0]) == [0, 1, 2, 3], "what they have does not change"


def test_earlier_nodes_get_all_that_join_in_a_turn_in_one_message() -> None:
    made = Joining()
    made.turn(RegisterNode(info(0)), RegisterNode(info(1)))
    made.ctx.sent.clear()
    made.turn(RegisterNode(info(2)), RegisterNode(info(3)))
    for node in (0, 1):
        (joined,) = made.heard(node)
        assert isinstance(joined, NodesJoined) and [row.node for row in joined.nodes] == [2, 3]
    for part in ("global", "links"):
        changes = [m for to, m in made.ctx.sent if to == part and isinstance(m, NodeChanged)]
        assert [change.info.node for change in changes] == [2, 3]


def test_a_death_in_the_turn_of_the_join_comes_after_it() -> None:
    made = Joining()
    made.turn(RegisterNode(info(0)))
    made.ctx.sent.clear()
    made.turn(RegisterNode(info(1)), NodeUnreachable(1, "gone", 1))
    assert [type(message) for message in made.heard(0)] == [NodesJoined, NodeChanged]
    registered, died = made.heard(1)
    assert registered.nodes[1].alive and not died.info.alive


def test_what_a_node_causes_in_the_turn_of_its_join_comes_after_it() -> None:
    made = Joining()
    made.turn(RegisterNode(info(0)))
    made.ctx.sent.clear()
    made.gcs.handle("node:1", RegisterNode(info(1)))
    made.gcs.handle("node:1", FindActor("counter", "", "driver:1.0", 1))
    made.gcs.end_turn()
    assert [type(message).__name__ for message in made.heard(1)] == ["Registered", "ActorFound"]


def test_a_later_incarnation_joins_after_the_death_of_the_earlier_one() -> None:
    made = Joining()
    made.turn(RegisterNode(info(0)))
    made.heard(0)
    made.turn(RegisterNode(info(1)), RegisterNode(info(1, 2)))
    first, died, again = made.heard(0)
    assert [row.incarnation for row in (*first.nodes, died.info, *again.nodes)] == [1, 1, 2]
    assert not died.info.alive
    assert [type(message).__name__ for message in made.heard(1)] == [
        "Registered",
        "NodeChanged",
        "Registered",
    ]


def test_a_dead_incarnation_that_registers_again_hears_that_it_is_dead() -> None:
    made = Joining()
    made.turn(RegisterNode(info(1)), NodeUnreachable(1, "gone", 1))
    made.heard(1)
    made.turn(RegisterNode(info(1)))
    (refused,) = made.heard(1)
    assert not refused.info.alive and refused.info.incarnation == 1


def test_of_a_cut_pair_the_one_with_more_cuts_dies_but_never_the_drivers_node() -> None:
    """Whoever has the head and the driver's node goes on, be they the minority."""
    made = Joining()
    made.turn(*(RegisterNode(info(node)) for node in range(5)))
    made.turn(*(PeerUnreachable(node, 1, 3, 1, "cut") for node in (1, 2, 4)))
    made.ctx.pass_time(10.0)
    assert made.gcs.nodes.alive == {0, 1, 2, 4}, "node 3 has lost most"
    made.turn(*(PeerUnreachable(node, 1, 0, 1, "cut") for node in (1, 2, 4)))
    made.ctx.pass_time(10.0)
    assert made.gcs.nodes.alive == {0}
