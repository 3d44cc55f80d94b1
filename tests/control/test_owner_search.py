"""`OwnerLookup`: an array without a row is lost when no living node knows its owner."""

from __future__ import annotations

from raytwin.runtime.control.gcs.owner_lookup import OwnerLookup
from raytwin.runtime.control.messages import OwnersFound, SeekOwners
from tests.control.alone import Alone, array

WAIT_S = 2.0


class Table:
    """What `OwnerLookup` knows of a table of nodes 0, 1 and 2."""

    def __init__(self) -> None:
        self.ctx = Alone()
        self.alive = {2, 0, 1}
        self.rows: set[bytes] = set()
        self.lost: list[bytes] = []
        self.unheard = OwnerLookup(
            self.ctx, self.alive, WAIT_S, lambda a: a not in self.rows, self.lost.append
        )

    def asked(self) -> list[str]:
        return [to for to, message in self.ctx.sent if isinstance(message, SeekOwners)]


def test_an_array_is_lost_if_no_node_knows_its_owner() -> None:
    table = Table()
    table.unheard.watch([array(1)])
    table.unheard.watch([array(1)])
    assert table.ctx.sent == []
    table.ctx.pass_time(WAIT_S)
    assert table.asked() == ["node:0", "node:1", "node:2"]
    for node in (0, 1):
        table.unheard.on_found(f"node:{node}", OwnersFound(node, [], [array(1)]))
    assert table.lost == []
    table.alive.discard(2)
    table.unheard.on_node_died(2)
    assert table.lost == [array(1)] and len(table.unheard) == 0


def test_an_owned_array_is_awaited_with_growing_pauses() -> None:
    table = Table()
    table.unheard.watch([array(1), array(2)])
    waits = []
    for _ in range(4):
        before = table.ctx.now()
        while not table.asked():
            table.ctx.pass_time(WAIT_S / 2)
        waits.append(table.ctx.now() - before)
        table.ctx.sent.clear()
        table.unheard.on_found("node:1", OwnersFound(1, [array(1)], [array(2)]))
        for node in (0, 2):
            table.unheard.on_found(f"node:{node}", OwnersFound(node, [], [array(1), array(2)]))
    assert waits == [WAIT_S, 2 * WAIT_S, 4 * WAIT_S, 8 * WAIT_S]
    assert table.lost == [array(2)]


def test_a_new_row_ends_the_search() -> None:
    table = Table()
    table.unheard.watch([array(1), array(2)])
    table.rows.add(array(1))
    table.ctx.pass_time(WAIT_S)
    assert {type(m): m.arrays for _, m in table.ctx.sent} == {SeekOwners: [array(2)]}
    table.rows.add(array(2))
    for node in table.alive:
        table.unheard.on_found(f"node:{node}", OwnersFound(node, [], [array(2)]))
    assert table.lost == [] and len(table.unheard) == 0


def test_without_a_living_node_an_array_is_lost_at_once() -> None:
    table = Table()
    table.alive.clear()
    table.unheard.watch([array(1)])
    table.ctx.pass_time(WAIT_S)
    assert table.lost == [array(1)]


def test_all_nodes_are_asked_at_once_if_only_the_owner_can_help() -> None:
    table = Table()
    table.unheard.ask(array(1))
    table.unheard.ask(array(1))
    assert table.asked() == ["node:0", "node:1", "node:2"]
    for node in (0, 1, 2):
        table.unheard.on_found(f"node:{node}", OwnersFound(node, [], [array(1)]))
    assert table.lost == [array(1)] and len(table.unheard) == 0
