"""A node's copy of the node table: which rows say that its own process is over."""

from __future__ import annotations

import pytest

from raytwin.runtime.control.core.membership import Membership
from raytwin.runtime.control.messages import NodeInfo


def row(incarnation: int, alive: bool) -> NodeInfo:
    return NodeInfo(1, "host", 0, {}, alive, incarnation, "" if alive else "it broke")


@pytest.mark.parametrize(
    ("incarnation", "alive", "fenced"),
    [
        (1, False, ""),  # the death of the process before it
        (2, True, ""),
        (2, False, "it broke"),
        (3, True, "another process took its place"),
    ],
)
def test_a_process_is_fenced_by_its_own_death_and_by_its_successor(
    incarnation: int, alive: bool, fenced: str
) -> None:
    members = Membership(1, 2)
    members.update(row(incarnation, alive))
    assert members.fenced == fenced


def test_earlier_news_of_a_death_outlives_the_table_at_registration() -> None:
    members = Membership(1, 2)
    members.update(row(2, alive=False))
    rows = {1: row(2, alive=True), 0: NodeInfo(0, "host", 0, {}, incarnation=1)}
    assert members.begin(rows) == []
    assert members.fenced == "it broke" and not members.nodes[1].alive
    assert not members.alone


def test_a_table_that_many_nodes_share_is_never_changed() -> None:
    rows = {node: NodeInfo(node, "host", 0, {}, incarnation=1) for node in range(3)}
    one, other = Membership(0, 1), Membership(1, 1)
    one.update(NodeInfo(2, "host", 0, {}, alive=False, incarnation=0))
    assert [info.node for info in one.begin(rows)] == [2], "it lives again"
    assert other.begin(rows) == []
    for node in (1, 2):
        one.update(NodeInfo(node, "host", 0, {}, alive=False, incarnation=1))
    assert one.alone and not other.alone
    assert [info.node for info in one.alive()] == [0]
    assert [info.node for info in other.alive()] == [0, 1, 2]
