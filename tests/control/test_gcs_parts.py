"""The GCS's parts: failure detection, pub-sub, a row of the task and object tables."""

from __future__ import annotations

import random

import pytest

from runtime.control.health import FailureDetector
from runtime.control.ids import object_id
from runtime.control.pubsub import PubSub
from runtime.control.tables import ArrayRow, Done
from tests.control.alone import Alone, array, spec


def test_silence_is_suspected_after_the_timeout_and_not_before() -> None:
    detector = FailureDetector(5.0)
    detector.heard(1, 0.0)
    detector.heard(2, 3.0)
    assert detector.suspects(5.0) == []
    assert detector.suspects(5.1) == [1]
    detector.heard(1, 5.1)
    assert detector.suspects(8.1) == [2]
    detector.excuse(1.0)
    assert detector.suspects(8.9) == []
    detector.forget(2)
    assert detector.suspects(1000.0) == [1]
    with pytest.raises(ValueError):
        FailureDetector(0)


def test_subscribers_are_told_once_in_order_and_no_more_after() -> None:
    ctx = Alone()
    pubsub = PubSub(ctx)
    for address in ("b", "a", "b"):
        pubsub.subscribe("x", address)
    pubsub.subscribe("y", "a")
    pubsub.publish("x", 1)
    pubsub.publish("x", 2, but="a")
    pubsub.publish("nobody", 3)
    assert ctx.sent == [("b", 1), ("a", 1), ("b", 2)]
    pubsub.drop("a")
    ctx.sent.clear()
    pubsub.publish("y", 4)
    assert pubsub.close("x") == ["b"]
    pubsub.publish("x", 5)
    assert ctx.sent == []
    assert pubsub._channels == {}


def done(row: ArrayRow, start: int, count: int, node: int, *sizes: int) -> None:
    row.finish(Done(start, count, node, sizes))


def test_where_an_object_is() -> None:
    row = ArrayRow()
    row.owners[0] = "driver:0.0"
    small, large, never = (object_id(array(1), index, 0) for index in (3, 5, 9))
    assert row.locate(small, {0, 1, 2}) is None
    done(row, 0, 5, 1)
    done(row, 5, 1, 2, 5000)
    alive = {0, 1, 2}
    found = row.locate(small, alive)
    assert found is not None and set(found.nodes) == {0, 1} and found.size == 0
    found = row.locate(large, alive)
    assert found is not None and (found.nodes, found.size, found.lost) == ((2,), 5000, "")
    assert row.locate(never, alive) is None
    row.copied(large, 1, 5000)
    found = row.locate(large, alive)
    assert found is not None and set(found.nodes) == {1, 2}


def test_what_is_lost_and_what_the_owner_still_has() -> None:
    row = ArrayRow()
    row.owners[0] = "driver:0.0"
    done(row, 0, 2, 1)
    done(row, 2, 1, 1, 5000)
    row.lose_node(1, "it burnt")
    small = row.locate(object_id(array(1), 1, 0), {0, 2})
    assert small is not None and small.nodes == (0,) and not small.lost
    oid = object_id(array(1), 2, 0)
    large = row.locate(oid, {0, 2})
    assert large is not None and large.nodes == () and large.lost == "it burnt"
    row.copied(oid, 2, 5000)
    large = row.locate(oid, {0, 2})
    assert large is not None and large.nodes == (2,) and not large.lost


def test_ranges_that_ran_twice_hide_nothing(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        row, oracle = ArrayRow(), {}
        row.owners[9] = "driver:9.0"  # dead
        for _ in range(rng.randint(1, 8)):
            start, count, node = rng.randrange(20), rng.randint(1, 12), rng.randrange(4)
            done(row, start, count, node)
            for index in range(start, start + count):
                oracle.setdefault(index, set()).add(node)
        for index in range(35):
            found = row.locate(object_id(array(1), index, 0), {0, 1, 2, 3})
            assert (set(found.nodes) if found else None) == oracle.get(index)


def test_what_a_dead_node_leaves_to_do() -> None:
    row = ArrayRow()
    row.accepted = [(spec(1, 0, 10), 1), (spec(1, 10, 10), 2)]
    done(row, 2, 3, 1)
    done(row, 12, 2, 2)
    [(left, gaps)] = row.unfinished_at(1)
    assert left.start == 0 and gaps == [(0, 2), (5, 5)]
    assert row.outstanding() == {1: 7, 2: 8}
    assert row.holders() == {1, 2}
    # Another run of the same elements elsewhere, for another owner, does not count.
    done(row, 0, 10, 3)
    assert row.unfinished_at(1)[0][1] == [(0, 2), (5, 5)]
    assert row.outstanding() == {1: 7, 2: 8}
    done(row, 0, 2, 1)
    done(row, 5, 5, 1)
    assert row.unfinished_at(1) == [] and row.outstanding() == {2: 8}


def test_an_element_that_was_twice_on_a_dead_node_runs_again() -> None:
    row = ArrayRow()
    row.accepted = [(spec(1, 0, 1, owner="driver:0.0"), 1), (spec(1, 0, 1, owner="worker:2.1"), 1)]
    done(row, 0, 1, 1)
    assert [gaps for _, gaps in row.unfinished_at(1)] == [[(0, 1)], [(0, 1)]]
