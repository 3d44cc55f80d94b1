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
