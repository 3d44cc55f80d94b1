"""Objects share the fate of their owner, unless its task or actor runs again."""

from __future__ import annotations

from typing import Any

import pytest

import raytwin as ray
from raytwin.runtime.api.exceptions import OwnerDiedError
from tests.references.conftest import Start, nothing_left, stored, until
from tests.references.test_borrowing import first, large, on
from tests.references.test_failures import kill_workers

LIMIT_S = 50.0
"""What only a hang takes."""
KINDS = ("small put", "large put", "small task", "large task", "far task", "slow task")


def sleeper(seconds: float, value: Any) -> Any:
    ray.sleep(seconds)
    return value


def give(kind: str) -> Any:
    """Own something, and give a reference of it away."""
    size, _, what = kind.partition(" ")
    if what == "put":
        return [ray.put(large(7) if size == "large" else 7)]
    if size == "slow":
        return [on(2)(sleeper).remote(1000.0, ray.put(large(7)))]
    return [on(2 if size == "far" else 1)(large if size != "small" else first).remote(
        7 if size != "small" else ray.put(large(7))
    )]  # fmt: skip


def seven(ref: Any) -> bool:
    value = ray.get(ref, timeout=LIMIT_S)
    return bool((value if isinstance(value, int) else first(value)) == 7)


class Keeper:
    """Owns a large object and keeps its reference."""

    def __init__(self) -> None:
        self.refs = [ray.put(large(7))]

    def give(self) -> Any:
        return self.refs


class Borrower:
    """Gets a reference and keeps it."""

    refs: Any = None

    def has(self) -> bool:
        return self.refs is not None

    def keep(self, refs: Any) -> None:
        self.refs = refs

    def read(self) -> bool:
        return seven(self.refs[0])


def has_it(borrower: Any) -> None:
    """Wait until a borrower has got a reference."""
    until(lambda: ray.get(borrower.has.remote()))


@pytest.mark.parametrize("kind", KINDS)
def test_objects_of_a_killed_idle_worker_are_lost(start: Start, kind: str) -> None:
    session = start(heartbeat_timeout_s=2.0)
    outer = on(1)(give).remote(kind)
    [ref] = ray.get(outer)
    ray.sleep(0.3)
    kill_workers(session, 1)
    with pytest.raises(OwnerDiedError, match="its owner has died"):
        ray.get(ref, timeout=LIMIT_S)
    if kind != "slow task":
        del outer, ref
        nothing_left(session)


def lend(borrower: Any, child: str) -> None:
    """Give a borrower the reference of a child, which runs, or waits for another one; and wait."""
    awaited = on(2)(sleeper).remote(1000.0, 7)
    made = on(2)(first).remote(awaited) if child == "waiting" else awaited
    ray.get(borrower.keep.remote([made]))
    ray.sleep(1000.0)


@pytest.mark.parametrize("child", ["running", "waiting"])
def test_children_are_lost_with_a_parent_that_does_not_run_again(start: Start, child: str) -> None:
    """The borrower of a dead owner's child gets OwnerDiedError, as in Ray."""
    session = start(heartbeat_timeout_s=2.0)
    borrower = on(2)(Borrower).remote()
    parent = on(1, max_retries=0)(lend).remote(borrower, child)
    has_it(borrower)
    ray.sleep(0.3)
    read = borrower.read.remote()
    kill_workers(session, 1)
    with pytest.raises(OwnerDiedError, match="its owner has died"):
        ray.get(read, timeout=LIMIT_S)
    with pytest.raises(OwnerDiedError):
        ray.get(borrower.read.remote(), timeout=LIMIT_S)
    del parent, borrower, read
    nothing_left(session)


def test_values_of_a_dead_owner_are_freed_despite_borrowers(start: Start) -> None:
    session = start(heartbeat_timeout_s=2.0)
    borrower = on(2)(Borrower).remote()
    refs = ray.get(on(1)(give).remote("large put"))
    ray.get(borrower.keep.remote(refs))
    assert stored(session)
    kill_workers(session, 1)
    until(lambda: not stored(session))
    with pytest.raises(OwnerDiedError):
        ray.get(borrower.read.remote(), timeout=LIMIT_S)
    del borrower, refs
    nothing_left(session)


def test_objects_contained_in_an_unread_value_are_lost_with_its_owner(start: Start) -> None:
    session = start(heartbeat_timeout_s=2.0)
    outer = on(1)(give).remote("large put")
    packed = ray.put([outer])
    ray.wait([outer], fetch_local=False)
    ray.sleep(0.3)
    kill_workers(session, 1)
    [ref] = ray.get(ray.get(packed)[0])
    with pytest.raises(OwnerDiedError):
        ray.get(ref, timeout=LIMIT_S)
    del outer, packed, ref
    nothing_left(session)


def test_an_idle_owner_lives_as_long_as_others_borrow_from_it(start: Start) -> None:
    session = start(heartbeat_timeout_s=2.0)
    refs = ray.get(on(1)(give).remote("large put"))
    ray.get([on(1)(sleeper).remote(0.1, 1) for _ in range(6)])
    ray.sleep(2.0)
    assert seven(refs[0])
    del refs
    nothing_left(session)


def test_an_actor_that_restarts_owns_again_what_it_puts_again(start: Start) -> None:
    session = start(heartbeat_timeout_s=2.0)
    keeper = on(1, max_restarts=-1, max_task_retries=-1)(Keeper).remote()
    before, later = on(2)(Borrower).remote(), on(0)(Borrower).remote()
    refs = ray.get(keeper.give.remote())
    ray.get([each.keep.remote(refs) for each in (before, later)])
    kill_workers(session, 1)
    assert ray.get(before.read.remote(), timeout=LIMIT_S)
    ray.get(keeper.give.remote(), timeout=LIMIT_S)
    died = session.query("event_counts")["worker_died"]
    ray.kill(keeper)
    until(lambda: session.query("event_counts")["worker_died"] > died)
    with pytest.raises(OwnerDiedError):
        ray.get(later.read.remote(), timeout=LIMIT_S)
    del keeper, before, later, refs
    nothing_left(session)


def test_a_waiter_for_a_retried_tasks_child_gets_its_value(start: Start) -> None:
    session = start(heartbeat_timeout_s=2.0)

    def parent(borrower: Any) -> int:
        child = on(2)(sleeper).remote(1.0, 7)
        ray.get(borrower.keep.remote([child]))
        ray.sleep(3.0)
        return int(ray.get(child))

    borrower = on(0, max_concurrency=2)(Borrower).remote()
    done = on(1, max_retries=-1)(parent).remote(borrower)
    has_it(borrower)
    read = borrower.read.remote()
    kill_workers(session, 1)
    assert ray.get(read, timeout=LIMIT_S)
    assert ray.get(done, timeout=LIMIT_S) == 7
    del borrower, done, read
    nothing_left(session)
