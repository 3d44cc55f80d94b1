"""Lost values: which are reconstructed, how often, and the errors of the others."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from raytwin.runtime.control.messages import LocateObjects, PlaceTasks, TasksDone
from tests.control.shell import Ref, Shell
from tests.control.test_cluster import clean, cluster, ran_on
from tests.control.values import Code, TaskFailed, number_of
from tests.control.world import World

NODES = [{"CPU": 1.0}, *({"CPU": 1.0, "A": 1.0} for _ in range(3))]
"""The driver's node cannot run what needs an A."""
LARGE = 1000


def chain(
    driver: Shell, length: int, *, retries: int = 3, size: int = LARGE, demand: str = "A:1"
) -> tuple[list[bytes], list[Ref]]:
    """Submit tasks that each add one to three times the last one's value."""
    oids: list[bytes] = []
    refs: list[Ref] = []
    for _ in range(length):
        [ref] = driver.submit(
            {"salt": 1, "size": size, "s": 0.01}, deps=oids[-1:], retries=retries, demand=demand
        )
        oids.append(ref.oid)
        refs.append(ref)
    return oids, refs


def value_of_chain(length: int) -> int:
    value = 0
    for _ in range(length):
        value = 3 * value + 1
    return value % 1_000_003


def drop(refs: list[Ref]) -> None:
    for ref in refs:
        ref.drop()


def runs_of(world: World) -> Counter[bytes]:
    """Return how often each array's elements were run to their end."""
    return Counter(
        r.array for *_, m in world.trace if isinstance(m, TasksDone) for r in m.results
    )  # fmt: skip


def holders(world: World, oid: bytes) -> list[int]:
    return [
        n for n, store in world.stores.items() if any(o == oid for o, _ in store.places.values())
    ]


def kill_holders(world: World, oid: bytes) -> None:
    for node in holders(world, oid):
        world.kill_node(node)


@pytest.mark.parametrize("size", [LARGE, 0])
@pytest.mark.parametrize("length", [1, 2, 6])
def test_a_chain_is_made_again_though_its_links_were_released(length: int, size: int) -> None:
    world = cluster(NODES)
    driver = world.driver()

    def program() -> Code:
        oids, refs = chain(driver, length - 1, size=size)
        [last] = driver.submit({"salt": 1, "size": LARGE}, deps=oids[-1:], demand="A:1")
        drop(refs)
        yield lambda: driver.client.waits.made(last.oid)
        yield 1.0
        assert all(not holders(world, oid) for oid in oids)
        kill_holders(world, last.oid)
        [value] = yield from driver.get([last.oid])
        last.drop()
        return number_of(value)

    assert driver.call(program()) == value_of_chain(length)
    assert set(runs_of(world).values()) == {2}
    assert world.gcs.events.counts["task_reconstructed"] == 1
    assert world.gcs.events.counts["task_retried"] == length - 1
    clean(world, 70.0)


def test_only_lost_and_needed_values_are_reconstructed() -> None:
    world = cluster(NODES)
    driver = world.driver()

    def program() -> Code:
        oids, refs = chain(driver, 4)
        yield lambda: all(driver.client.waits.made(oid) for oid in oids)
        yield from driver.get(oids[1:2])
        kill_holders_but_driver(world, oids[3])
        yield 1.0
        before = runs_of(world)
        yield from driver.get(oids[3:])
        again = {oids.index(a + oids[0][12:]) for a in runs_of(world) - before}
        drop(refs)
        return again

    # The second is on the driver's node: of what depends on it, no more is needed.
    assert driver.call(program()) <= {2, 3}
    clean(world, 70.0)


def kill_holders_but_driver(world: World, oid: bytes) -> None:
    for node in holders(world, oid):
        if node:
            world.kill_node(node)


def test_many_requests_cause_one_reconstruction() -> None:
    world = cluster([*NODES, {"CPU": 1.0}, {"CPU": 1.0}])
    driver = world.driver()
    others = [world.driver(node) for node in (4, 5)]

    def program(oids: list[bytes]) -> Code:
        oids += chain(driver, 1)[0]
        yield lambda: driver.client.waits.made(oids[0])

    oids: list[bytes] = []
    driver.call(program(oids))
    kill_holders(world, oids[0])
    got: list[Any] = []

    def borrow(shell: Shell) -> Code:
        ref = Ref(shell, oids[0])
        got.append((yield from shell.get([ref.oid])))
        ref.drop()

    for shell in (driver, *others):
        shell.start(borrow(shell))
    world.run(until=lambda: len(got) == 3)
    assert got == [[[1, LARGE]]] * 3
    assert list(runs_of(world).values()) == [2]
    assert world.gcs.events.counts["task_reconstructed"] == 1


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_when_retries_are_used_up_it_is_lost(retries: int) -> None:
    world = cluster([{"CPU": 1.0}] + [{"CPU": 1.0, "A": 1.0}] * (2 * retries + 4))
    driver = world.driver()

    def program() -> Code:
        oids, refs = chain(driver, 1, retries=retries)
        yield lambda: driver.client.waits.made(oids[0])
        try:
            for _ in range(retries + 1):
                kill_holders(world, oids[0])
                yield 0.1
                refs += driver.submit({}, deps=oids, demand="A:1")
                yield from driver.get([refs[-1].oid])
        finally:
            drop(refs)

    with pytest.raises(TaskFailed, match=r"ObjectLostError.*node \d+.*no retries left") as failed:
        driver.call(program())
    assert "connection lost" in failed.value.text
    assert sorted(runs_of(world).values()) == [1] * retries + [retries + 1]
    assert world.gcs.events.counts["object_lost"] == 1
    assert world.gcs.events.counts["task_reconstructed"] == retries
    clean(world, 70.0)


def test_a_put_is_lost_and_the_error_names_the_cause() -> None:
    world = cluster([{"CPU": 1.0}, {"CPU": 1.0, "A": 1.0}, {"CPU": 1.0, "B": 1.0}])
    driver, other = world.driver(0), world.driver(1)

    def put(box: list[bytes]) -> Code:
        ref = yield from other.put([5, LARGE], LARGE)
        box.append(ref.oid)

    box: list[bytes] = []
    other.call(put(box))
    world.run(for_s=0.1)

    def program() -> Code:
        borrowed = Ref(driver, box[0])
        [ref] = driver.submit({"size": LARGE}, deps=box, demand="A:1")
        yield lambda: driver.client.waits.made(ref.oid)
        world.kill_node(1)
        world.add_node(3, {"CPU": 1.0, "A": 1.0})
        try:
            yield from driver.get([ref.oid])
        finally:
            drop([ref, borrowed])

    # The task's value and its input were on the same node.
    with pytest.raises(TaskFailed, match=r"OwnerDiedError.*owner has died.*it was put") as failed:
        driver.call(program())
    assert box[0].hex() in failed.value.text
    clean(world, 70.0)


@pytest.mark.parametrize("size", [0, LARGE])
@pytest.mark.parametrize("retries", [0, 1])
def test_a_result_that_was_on_its_way_from_a_dead_node_is_made_again(
    size: int, retries: int
) -> None:
    world = cluster([{"CPU": 1.0}, {"CPU": 1.0, "A": 1.0}, {"CPU": 1.0, "A": 1.0}])
    driver = world.driver()

    def program() -> Code:
        # The GCS hears that it is done, the owner does not.
        world.lost_links.update({("node:1", "node:0"), ("node:2", "node:0")})
        [ref] = driver.submit({"salt": 7, "size": size}, demand="A:1", retries=retries)
        yield 1.0
        assert [len(row.done) for row in world.gcs.arrays.values()] == [1]
        assert not driver.client.waits.made(ref.oid)
        world.lost_links.clear()
        [node] = ran_on(world)
        world.kill_node(node)
        try:
            [value] = yield from driver.get([ref.oid])
        finally:
            ref.drop()
        return number_of(value)

    if retries:
        assert driver.call(program()) == 7
        assert list(runs_of(world).values()) == [2]
    else:
        with pytest.raises(TaskFailed, match=r"ObjectLostError.*no retries left"):
            driver.call(program())
    clean(world, 70.0)


def test_a_parent_that_runs_again_finds_its_children() -> None:
    nodes = [{"CPU": 1.0}, *({"CPU": 1.0, "P": 1.0} for _ in range(2)), {"CPU": 4.0, "C": 4.0}]
    world = cluster(nodes)
    driver = world.driver()
    inner = [
        {"do": "call", "body": {"salt": 1}, "demand": "C:1"},
        {"do": "call", "body": {"salt": 2, "size": LARGE}, "demand": "C:1"},
        {"do": "call", "body": {"salt": 3, "s": 1.0}, "demand": "C:1"},
        {"do": "map", "bodies": [{"salt": 4}] * 20, "demand": "C:1"},
    ]

    def program() -> Code:
        [ref] = driver.submit({"steps": inner, "size": LARGE}, demand="P:1")
        yield 0.5
        [parent] = [
            n for n in (1, 2) if any(w.assigned for w in world.nodes[n].dispatcher.workers.values())
        ]
        world.kill_node(parent)
        [value] = yield from driver.get([ref.oid])
        ref.drop()
        return number_of(value)

    assert driver.call(program()) == 86
    elements = Counter(
        (r.array, index)
        for *_, m in world.trace if isinstance(m, TasksDone)
        for r in m.results for index in range(r.start, r.start + r.count)
    )  # fmt: skip
    assert set(elements.values()) == {1} and len(elements) == 24
    clean(world, 70.0)


def test_a_dead_node_is_not_asked() -> None:
    world = cluster(NODES)
    driver = world.driver()

    def program() -> Code:
        oids, refs = chain(driver, 1)
        yield lambda: driver.client.waits.made(oids[0])
        kill_holders(world, oids[0])
        yield 0.5
        sent = len(world.trace)
        started_s = world.time_s
        yield from driver.get(oids)
        drop(refs)
        asked = [m for *_, m in world.trace[sent:] if isinstance(m, LocateObjects)]
        return len(asked), world.time_s - started_s

    asked, took_s = driver.call(program())
    assert asked == 1 and took_s < 0.1


def test_lineage_that_weighs_too_much_is_dropped_oldest_first() -> None:
    world = cluster(NODES, lineage_bytes_max=2500)
    driver = world.driver()

    def program() -> Code:
        oids, refs = chain(driver, 8)
        drop(refs[:-1])
        yield lambda: driver.client.waits.made(oids[-1])
        yield 1.0
        assert len(world.gcs.arrays) <= 5
        kill_holders(world, oids[-1])
        try:
            yield from driver.get(oids[-1:])
        finally:
            refs[-1].drop()

    with pytest.raises(TaskFailed, match="ObjectLostError"):
        driver.call(program())
    clean(world, 70.0)


def test_a_long_chain_is_kept_and_dropped_without_recursion() -> None:
    world = cluster(1)
    driver = world.driver()

    def program() -> Code:
        last: list[Ref] = []
        for _ in range(3000):
            refs = driver.submit({"salt": 1}, deps=[ref.oid for ref in last])
            drop(last)
            last = refs
        yield from driver.get([last[0].oid])
        yield 1.0
        kept = len(world.gcs.table.store.lineage.kept)
        drop(last)
        return kept

    assert driver.call(program()) == 2999
    clean(world)


def test_retries_are_used_up_one_by_one() -> None:
    world = cluster(NODES)
    driver = world.driver()

    def program() -> Code:
        oids, refs = chain(driver, 1, retries=3)
        yield lambda: driver.client.waits.made(oids[0])
        kill_holders(world, oids[0])
        yield from driver.get(oids)
        drop(refs)

    driver.call(program())
    placed = [
        (s.retries, s.extra.attempt if s.extra else 0)
        for _, source, _, m in world.trace if isinstance(m, PlaceTasks) and source == "gcs"
        for s in m.tasks
    ]  # fmt: skip
    assert placed == [(2, 1)]
