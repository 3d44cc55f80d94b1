"""Borrowers and owners die: nothing is left, and no process waits for ever."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

import raytwin as ray
from raytwin.runtime.api.exceptions import ObjectLostError, OwnerDiedError, RayTaskError
from raytwin.runtime.api.options.scheduling_strategies import NodeAffinitySchedulingStrategy
from tests.references.conftest import Start, nothing_left, stored, until
from tests.references.test_borrowing import Box, first, large, on

LIMIT_S = 50.0
"""What only a hang takes."""


def kill_workers(session: Any, node: int) -> None:
    """End every worker that the node has now, and some that take their places."""
    for _ in range(4):
        with suppress(ValueError):  # the next ones may not be there yet
            session.cluster.kill_worker(node, 0)
        ray.sleep(0.1)


def kill_one(session: Any, node: int, victim: str) -> None:
    """End an actor's worker, or its node; return when the GCS has heard of it."""
    if victim == "node":
        session.cluster.kill_node(node)
    else:
        kill_workers(session, node)
    until(lambda: session.query("event_counts").get("actor_died"))


def lost_with_its_owner(ref: Any) -> None:
    with pytest.raises(OwnerDiedError, match="its owner has died"):
        ray.get(ref, timeout=LIMIT_S)


class Waiter:
    """Waits for what it was given a reference of."""

    def wait(self, refs: Any) -> str:
        try:
            ray.get(refs[0])
        except ObjectLostError as error:
            return f"{type(error).__name__}: {error}"
        return "there"


class Maker(Box):
    """Owns what it gives away."""

    def put_small(self) -> Any:
        return [ray.put("small")]

    def call(self, other: Any) -> Any:
        answer = other.wait.remote([ray.put("small")])
        ray.wait([answer])
        return [answer]

    def submit(self, seconds: float) -> Any:
        @ray.remote(num_cpus=0, resources={"N2": 1}, max_retries=0)
        def slow() -> int:
            ray.sleep(seconds)
            return 1

        return [slow.remote()]


@pytest.mark.parametrize("victim", ["worker", "node"])
def test_objects_of_a_killed_borrower_are_freed(start: Start, victim: str) -> None:
    session = start()
    box = on(1)(Box).remote()
    ref = ray.put(large())
    ray.get(box.keep.remote([ref]))
    del ref
    ray.sleep(0.4)
    assert stored(session)
    kill_one(session, 1, victim)
    until(lambda: not stored(session))
    del box
    nothing_left(session)


@pytest.mark.parametrize("victim", ["worker", "node"])
def test_a_borrowers_borrower_is_killed(start: Start, victim: str) -> None:
    session = start()
    giver, taker = on(1)(Box).remote(), on(2)(Box).remote()
    ref = ray.put(large())
    ray.get(giver.keep.remote([ref]))
    del ref
    ray.get(giver.pass_to.remote(taker))
    ray.get(giver.drop.remote())
    ray.sleep(0.4)
    assert ray.get(taker.read.remote()) == 1
    kill_one(session, 2, victim)
    until(lambda: not stored(session))
    del giver, taker
    nothing_left(session)


def test_a_giver_dies_and_the_taker_reads_on(start: Start) -> None:
    session = start()
    giver, taker = on(1)(Box).remote(), on(2)(Box).remote()
    ref = ray.put(large(7))
    ray.get(giver.keep.remote([ref]))
    del ref
    ray.get(giver.pass_to.remote(taker))
    session.cluster.kill_node(1)
    ray.sleep(1.0)
    assert ray.get(taker.read.remote()) == 7
    ray.get(taker.drop.remote())
    until(lambda: not stored(session))
    del giver, taker
    nothing_left(session)


def test_a_get_of_an_object_owned_on_a_dead_node_raises(start: Start) -> None:
    session = start()
    maker, waiter = on(1)(Maker).remote(), on(0)(Waiter).remote()
    made = [maker.make.remote(1), maker.put_small.remote(), maker.call.remote(waiter)]
    refs = [ref for refs in ray.get(made) for ref in refs]
    ray.sleep(0.5)
    kill_one(session, 1, "node")
    for ref in refs:
        lost_with_its_owner(ref)
    taken = on(0)(first).remote(refs[0])
    with pytest.raises(OwnerDiedError):
        ray.get(taken, timeout=LIMIT_S)


@pytest.mark.parametrize("victim", ["worker", "node"])
def test_a_pending_get_raises_when_the_owner_dies(start: Start, victim: str) -> None:
    session = start()
    maker, waiter = on(1)(Maker).remote(), on(0)(Waiter).remote()
    refs = ray.get(maker.submit.remote(1000.0))
    answer = waiter.wait.remote(refs)
    assert ray.wait([answer], timeout=0.3)[0] == []
    kill_one(session, 1, victim)
    assert ray.get(answer, timeout=LIMIT_S).startswith("OwnerDiedError: ")


def test_a_node_dies_before_it_has_reported_its_objects(start: Start) -> None:
    session = start()
    maker = on(1)(Maker).remote()
    [ref] = ray.get(maker.put_small.remote())
    kill_one(session, 1, "node")
    with pytest.raises(ObjectLostError, match=r"died|lost"):
        ray.get(ref, timeout=LIMIT_S)


def test_a_restarted_task_finds_references_inside_its_arguments(start: Start) -> None:
    session = start()

    def read(refs: Any) -> Any:
        return large(first(ray.get(refs[0])) + 1)

    inner = on(0)(large).remote(1)
    there = NodeAffinitySchedulingStrategy("1", soft=True)
    outer = ray.remote(read).options(num_cpus=0, scheduling_strategy=there).remote([inner])
    del inner
    ray.wait([outer], fetch_local=False)
    ray.sleep(0.4)
    session.cluster.kill_node(1)
    assert first(ray.get(outer, timeout=LIMIT_S)) == 2
    del outer
    nothing_left(session)


def test_an_error_with_a_reference_inside_comes_back(start: Start) -> None:
    start()

    class Failed(Exception):
        pass

    def fail() -> None:
        raise Failed(ray.put(large(3)))

    with pytest.raises(RayTaskError) as failed:
        ray.get(on(1)(fail).remote())
    ray.sleep(0.4)
    assert first(ray.get(failed.value.cause.args[0])) == 3


def test_contained_objects_are_freed_from_the_disk(start: Start) -> None:
    session = start(object_store_memory=1 << 20)
    outer = ray.put([ray.put(large(i)) for i in range(12)])
    ray.sleep(0.3)
    assert sum(objects for _, objects, _ in session.query("disks")) >= 7
    assert [first(ray.get(ref)) for ref in ray.get(outer)] == list(range(12))
    del outer
    nothing_left(session)
    until(lambda: not any(nbytes for *_, nbytes in session.query("disks")))


def test_the_containing_value_is_released(start: Start) -> None:
    class Taker(Box):
        def take(self) -> None:
            self.kept = ray.get(self.kept[0])[1]

    session = start()
    taker = on(1)(Taker).remote()
    outer = ray.put((large(1), [ray.put(large(2))]))
    ray.get(taker.keep.remote([outer]))
    ray.get(taker.take.remote())
    del outer
    until(lambda: stored(session) == 1)
    ray.sleep(0.4)
    assert ray.get(taker.read.remote()) == 2
    del taker
    nothing_left(session)
