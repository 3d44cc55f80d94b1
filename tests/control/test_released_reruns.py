"""Ranges that run once more for a lost value of others, while their own owner releases them."""

from __future__ import annotations

from msgspec.structs import replace

from raytwin.runtime.control.messages import (
    AssignTasks,
    Release,
    SubmitTasks,
    TaskExtra,
    TaskUpdates,
)
from tests.control.alone import array, spec
from tests.control.one_node import DRIVER, W1, Node


def ended(node: Node) -> list[bytes]:
    """The arrays of which the node reports ended ranges to the GCS."""
    node.ctx.pass_time(1.0)
    node.scheduler.end_turn()
    return [row[0] for message in node.ctx.take(TaskUpdates, "gcs") for row in message.done]


def test_a_rerun_that_its_owner_releases_before_its_end_is_reported() -> None:
    node = Node()
    node.turn(DRIVER, SubmitTasks([spec(1)]))
    node.given()
    node.done(W1, (1, 0, 1))
    node.ctx.sent.clear()
    again = replace(spec(1), extra=TaskExtra(attempt=1))
    node.turn("global", AssignTasks([again]))
    assert [row[0] for row in node.given()] == [array(1)]
    node.turn(DRIVER, Release([array(1)]))
    node.ctx.sent.clear()
    node.done(W1, (1, 0, 1))
    assert ended(node) == [array(1)]
