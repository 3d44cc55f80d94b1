"""The timeline has to agree with the tasks that a program has counted."""

from __future__ import annotations

from typing import Any

import pytest

from raytwin.chaos.fuzz.oracle.executed_tasks import wrong_timeline
from raytwin.chaos.fuzz.oracle.findings import Kind
from raytwin.chaos.fuzz.oracle.history import History
from raytwin.runtime.control.observability.timeline import CALL, TASK

BEGUN, RETURNED = 3, 2


def row(node: int, count: int, name: str = "k1r0", kind: str = TASK) -> tuple[Any, ...]:
    return (name, node, 0, 0.0, 0.1, count, b"", 0, 0, kind, 0, -1.0, ())


def is_wrong(
    *rows: tuple[Any, ...], dead: tuple[int, ...] = (), lossy: tuple[int, ...] = ()
) -> bool:
    """Whether a timeline is, of a program in which a task ran on node 1."""
    history = History()
    history.begun_s[1, "k1r0"], history.returned[1, "k1r0"] = [0.0] * BEGUN, RETURNED
    found = wrong_timeline(rows, history, dead, lossy)
    assert all(each.kind is Kind.TIMELINE for each in found)
    return bool(found)


@pytest.mark.parametrize(("count", "wrong"), [(1, True), (2, False), (3, False), (4, True)])
def test_a_node_has_as_many_rows_as_tasks_that_ended(count: int, wrong: bool) -> None:
    assert is_wrong(row(1, count)) is wrong


def test_rows_of_calls_and_of_the_systems_tasks_do_not_count() -> None:
    others = (row(1, 9, kind=CALL), row(1, 9, "placement_group_ready"))
    assert not is_wrong(row(1, 2), *others)


def test_rows_are_missing_only_where_they_may_be_lost() -> None:
    assert is_wrong()
    assert not is_wrong(dead=(1,))
    assert not is_wrong(lossy=(1,))
    assert is_wrong(row(1, 4), lossy=(1,)), "none are added"
    assert is_wrong(row(1, 2), row(2, 1)), "it has not run there"
