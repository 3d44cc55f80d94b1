"""Eviction from a full arena: order, pins, claims, copies, and the files on disk."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from raytwin.runtime.api.failures import error_text
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.ids import object_id
from raytwin.runtime.control.gcs.array_row import ArrayRow, Done
from raytwin.runtime.control.messages import (
    DROPPED,
    IN_FILE,
    DropSpilled,
    Fetch,
    Fetched,
    Free,
    LocateObjects,
    Location,
    Missing,
    NoRoom,
    ObjectsMissing,
    ObjectValue,
    Spill,
    Spilled,
)
from raytwin.runtime.control.messages.errors import Loss, LossCause, StoreFull
from raytwin.runtime.control.objects.node_objects import NodeObjects
from raytwin.runtime.control.objects.object_memory import CLIENT, ObjectMemory, Request
from raytwin.runtime.control.objects.result_table import ResultTable
from tests.control.alone import Alone, array, result
from tests.control.bodies import run_program, sequential
from tests.control.programs import random_program, random_world
from tests.control.test_system import settle

STORE = "store:0"


class Arena:
    """`ObjectMemory` and the least store that goes with it: memory in one piece."""

    def __init__(self, capacity: int = 100) -> None:
        self.ctx = Alone()
        self.capacity = capacity
        self.sizes: dict[bytes, int] = {}
        self.pinned: set[bytes] = set()
        self.disk: dict[bytes, int] = {}
        self.left: list[bytes] = []
        """Objects that were evicted or released, in this order."""
        self.failed: list[StoreFull] = []
        self.filed: list[bytes] = []
        """Objects for which no room was made."""
        self.asked = 0
        self.memory = ObjectMemory(
            self.ctx, 0, Config(), ResultTable(0, ()), lambda client: True, self.ask_back
        )

    @property
    def used(self) -> int:
        return sum(self.sizes.values())

    def free(self) -> None:
        """Free the memory of objects that have left."""
        for free in self.ctx.take(Free, STORE):
            assert free.object not in self.pinned, "a pinned object left memory"
            self.left.append(free.object)
            del self.sizes[free.object]

    def put(
        self,
        oid: bytes,
        size: int,
        rank: int = CLIENT,
        wait_s: float = 0.0,
        in_file: bool = False,
    ) -> None:
        """Put an object into memory, now or when there is room; or note it for the file."""
        self.free()
        if in_file:
            self.filed.append(oid)
            return
        if self.used + size <= self.capacity:
            self.sizes[oid] = size
            self.memory.keep(oid, 7, size)
            return
        until_s = self.ctx.now() + wait_s
        request = Request(
            size, rank, until_s, partial(self.put, oid, size, rank, wait_s), self.failed.append
        )
        self.memory.need(request, NoRoom(oid, size, self.capacity, self.capacity - self.used))

    def ask_back(self) -> None:
        self.asked += 1

    def pin(self, oid: bytes) -> None:
        self.pinned.add(oid)
        self.memory.pin(oid, "driver:0.0")

    def unpin(self, oid: bytes) -> None:
        self.pinned.discard(oid)
        self.memory.unpin(oid, "driver:0.0")

    def go_on(self) -> None:
        """Let turns and writes follow one another until nothing moves."""
        while True:
            self.memory.make_room()
            self.free()
            written = self.ctx.take(Spill, STORE)
            if not written:
                return
            for spill in written:
                self.write(spill)

    def write(self, spill: Spill) -> None:
        # It may have been released meanwhile, and the store still writes it.
        assert spill.size == self.sizes.get(spill.object, spill.size)
        self.disk[spill.object] = spill.size
        place = int.from_bytes(spill.object, "big")
        self.memory.on_spilled(Spilled(spill.object, spill.offset, spill.size, place))


def test_the_least_recently_used_leaves_first() -> None:
    arena = Arena()
    for oid in (b"a", b"b", b"c", b"d"):
        arena.put(oid, 25)
    arena.pin(b"a")
    arena.unpin(b"a")
    arena.memory.used(b"b")
    arena.put(b"e", 40)
    arena.go_on()
    assert arena.left == [b"c", b"d"] and b"e" in arena.sizes


def test_pinned_objects_stay_and_what_finds_no_room_goes_to_the_file() -> None:
    arena = Arena()
    arena.put(b"z", 60)
    arena.put(b"a", 50)
    arena.go_on()
    arena.put(b"b", 40)
    arena.pin(b"a")
    arena.pin(b"b")
    arena.put(b"c", 30)
    arena.go_on()
    assert arena.left == [b"z"]
    assert arena.filed == [b"c"] and not arena.failed
    arena.put(b"d", 101, wait_s=10.0)
    arena.go_on()
    assert arena.filed == [b"c", b"d"], "no wait makes room for what is larger than all memory"


def test_an_object_in_the_file_takes_no_memory_and_is_not_evicted() -> None:
    arena = Arena()
    arena.put(b"a", 100)
    arena.pin(b"a")
    arena.memory.keep(b"b", IN_FILE + 7, 500)
    arena.pin(b"b")
    arena.unpin(b"b")
    assert arena.memory.lookup(b"b") is not None
    assert arena.memory.memory_usage() == (1, 100, 0) and arena.memory.disk_usage() == (1, 500)
    arena.unpin(b"a")
    arena.put(b"c", 60)
    arena.go_on()
    assert arena.left == [b"a"] and b"c" in arena.sizes
    arena.memory.free(b"b")
    assert arena.ctx.take(Free, STORE) == [Free(b"b", IN_FILE + 7)]
    assert arena.memory.disk_usage() == (1, 100)


def test_a_spilled_object_is_mapped_until_its_last_pin_ends() -> None:
    arena = Arena()
    arena.put(b"a", 60)
    arena.put(b"b", 60)
    arena.go_on()
    arena.memory.keep(b"a", IN_FILE + 97, 60)
    assert arena.memory.disk_usage() == (1, 60), "it is there once"
    arena.pin(b"a")
    arena.unpin(b"a")
    arena.ctx.sent.clear()
    assert arena.memory.lookup(b"a") is None and arena.memory.evicted([b"a"]) == [b"a"]


def test_a_request_fails_if_the_disk_has_no_room_either() -> None:
    arena = Arena()
    request = Request(500, CLIENT, 0.0, lambda in_file: None, arena.failed.append)
    arena.memory.need(request, NoRoom(b"a", 500, 100, 100, reason="No space left on device"))
    (full,) = arena.failed
    assert full == StoreFull(500, 100, "No space left on device")
    text = error_text(full)
    for part in ("no room for 500 bytes", "store of 100", "disk: No space left on device"):
        assert part in text
    assert not arena.memory.requests


def test_no_object_is_spilled_without_need() -> None:
    arena = Arena()
    arena.put(b"a", 50)
    arena.put(b"b", 50)
    arena.pin(b"a")
    arena.put(b"c", 60)
    arena.go_on()
    assert not arena.disk and arena.filed == [b"c"]


def test_an_allocation_waits_for_a_pin_until_its_timeout() -> None:
    arena = Arena()
    arena.put(b"a", 80)
    arena.pin(b"a")
    arena.put(b"b", 50, rank=1, wait_s=10.0)
    arena.go_on()
    assert not arena.filed and b"b" not in arena.sizes
    arena.unpin(b"a")
    arena.go_on()
    assert arena.left == [b"a"] and b"b" in arena.sizes
    arena.pin(b"b")
    arena.put(b"c", 60, rank=2, wait_s=10.0)
    arena.go_on()
    arena.ctx.pass_time(9.0)
    arena.go_on()
    assert not arena.filed
    arena.ctx.pass_time(2.0)
    arena.go_on()
    assert arena.filed == [b"c"] and not arena.failed


def test_a_clean_object_is_not_written_again() -> None:
    arena = Arena()
    for oid in (b"a", b"b", b"a"):
        arena.put(oid, 60)
        arena.go_on()
    assert arena.disk == {b"a": 60, b"b": 60}
    arena.disk.clear()
    arena.put(b"c", 60)
    arena.go_on()
    assert arena.left == [b"a", b"b", b"a"] and not arena.disk


def test_an_object_pinned_while_it_is_spilled_stays_clean() -> None:
    arena = Arena()
    arena.put(b"a", 60)
    arena.put(b"b", 60)
    arena.memory.make_room()
    (spill,) = arena.ctx.take(Spill, STORE)
    arena.pin(b"a")
    arena.write(spill)
    arena.go_on()
    assert arena.left == [] and arena.filed == [b"b"]
    arena.unpin(b"a")
    arena.put(b"b", 60)
    arena.go_on()
    assert arena.left == [b"a"] and arena.ctx.take(Spill) == []


def test_a_task_evicts_inputs_of_later_tasks_only() -> None:
    arena = Arena()
    for rank, oid in enumerate((b"a", b"b")):
        arena.put(oid, 50)
        arena.memory.claim(oid, rank)
    arena.put(b"c", 50, rank=1, wait_s=10.0)
    arena.go_on()
    # Neither its own input, b, nor that of a task before it.
    assert arena.left == []
    arena.memory.claim(b"d", 0)
    arena.put(b"d", 50, rank=0, wait_s=10.0)
    arena.go_on()
    assert arena.left == [b"b"] and b"d" in arena.sizes
    arena.memory.unclaim(b"a", 0)
    arena.go_on()
    assert arena.left == [b"b", b"a"] and b"c" in arena.sizes
    # A client goes before all tasks.
    arena.memory.claim(b"c", 2)
    arena.put(b"e", 100)
    arena.go_on()
    assert b"e" in arena.sizes


def test_a_disk_that_cannot_be_written_is_an_error_and_costs_nothing() -> None:
    arena = Arena()
    arena.put(b"a", 60)
    arena.put(b"b", 60)
    arena.memory.make_room()
    (spill,) = arena.ctx.take(Spill, STORE)
    failed = Spilled(b"a", spill.offset, 60, -1, "No space left on device")
    arena.memory.on_spilled(failed)
    arena.go_on()
    assert arena.failed == [StoreFull(60, 100, "No space left on device")]
    arena.put(b"b", 60)
    arena.go_on()
    assert b"b" in arena.sizes


def test_disk_space_is_given_back_once_whenever_it_is_released() -> None:
    arena = Arena()
    arena.put(b"a", 60)
    arena.put(b"b", 60)
    arena.memory.make_room()
    (spill,) = arena.ctx.take(Spill, STORE)
    # Released while it is written.
    arena.memory.free(b"a")
    arena.memory.on_spilled(Spilled(b"a", spill.offset, 60, 5))
    assert arena.ctx.take(DropSpilled, STORE) == [DropSpilled(b"a", 5)]
    arena.go_on()
    arena.put(b"c", 60)
    arena.go_on()
    arena.memory.free(b"b")
    arena.memory.free(b"b")
    assert arena.ctx.take(DropSpilled, STORE) == [DropSpilled(b"b", ord("b"))]
    assert arena.memory.spilled_bytes == 0 and not arena.memory.on_disk


def test_an_object_released_while_it_is_spilled_leaves_nothing_on_disk() -> None:
    objects = Objects()
    objects.owners.own(array(1), "driver:0.0")
    objects.add(result(1, size=500, offset=7))
    objects.make_room()
    objects.memory.pin(OID, "driver:0.0")
    objects.release([array(1)])
    objects.memory.on_spilled(Spilled(OID, 7, 500, 3))
    objects.memory.unpin(OID, "driver:0.0")
    assert objects.alone.take(DropSpilled, STORE) == [DropSpilled(OID, 3)]
    assert objects.is_empty()


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 11), st.integers(1, 60)), max_size=60))
def test_pins_hold_and_counts_are_right_after_any_operations(
    steps: list[tuple[int, int, int]],
) -> None:
    arena = Arena()
    memory = arena.memory
    for what, number, size in steps:
        oid = bytes([number + 1])
        asked = {entry[2].size for entry in memory.requests}
        if what == 0 and oid not in arena.sizes and not asked:
            arena.put(oid, size, rank=number % 3, wait_s=5.0 if size % 2 else 0.0)
        elif what == 1 and oid in arena.sizes and oid not in arena.pinned:
            arena.pin(oid)
        elif what == 2 and oid in arena.pinned:
            arena.unpin(oid)
        elif what == 3 and oid in arena.sizes and oid not in arena.pinned:
            memory.free(oid)
        elif what == 4:
            arena.go_on()
        else:
            arena.ctx.pass_time(size / 10)
            memory.make_room()
        arena.free()
        assert arena.used <= arena.capacity
        assert memory.stored_bytes == arena.used
        assert memory.spilled_bytes == sum(size for _, size in memory.on_disk.values())
        assert set(memory._idle).isdisjoint(arena.pinned)
        assert set(memory._idle) <= set(arena.sizes)
    for oid in list(arena.pinned):
        arena.unpin(oid)
    arena.ctx.pass_time(10.0)
    arena.go_on()
    assert not memory.requests, "a request was neither served nor refused"
    assert set(memory._idle) == set(arena.sizes)


# -- the objects of a node ---------------------------------------------------------


class Objects(NodeObjects):
    """Of node 0; its store holds one object of 500 bytes."""

    def __init__(self) -> None:
        self.alone = Alone()
        self.copies: list[tuple[bytes, int]] = []
        super().__init__(
            self.alone, 0, Config(), lambda _, oid, size: self.copies.append((oid, size)),
            lambda client: True,
        )  # fmt: skip
        self.told: list[ObjectValue] = []

    def make_room(self, size: int = 500, fail: Callable[[StoreFull], None] = print) -> None:
        request = Request(size, CLIENT, 0.0, lambda in_file: None, fail)
        self.memory.need(request, NoRoom(b"", size, 500, 0))
        self.memory.make_room()

    def is_empty(self) -> bool:
        parts = (self, self.owners, self.results, self.memory, self.pulls)
        tables = [self.owners, *(value for part in parts for value in vars(part).values())]
        return not any(value for value in tables if isinstance(value, dict | set))


OID = object_id(array(1), 0, 0)


def test_a_spilled_object_is_restored_on_demand() -> None:
    objects = Objects()
    ctx = objects.alone
    objects.owners.own(array(1), "driver:0.0")
    objects.add(result(1, size=500, offset=7))
    objects.make_room()
    assert ctx.take(Spill, STORE) == [Spill(OID, 7, 500)]
    assert objects.memory.lookup(OID) is not None, "it is here until it is written"
    objects.memory.on_spilled(Spilled(OID, 7, 500, 3))
    assert ctx.take(Free, STORE) == [Free(OID, 7)]
    assert objects.memory.lookup(OID) is None and objects.memory.evicted([OID])
    objects.pulls.want(OID, objects.told.append)
    assert ctx.take(Fetch, STORE) == [Fetch(OID, 500, 0)]
    objects.pulls.on_fetched(Fetched(OID, 9, 500, 0.1, "", 0))
    assert [(v.offset, v.size) for v in objects.told] == [(9, 500)]
    assert objects.copies == [] and objects.pulls.bandwidth == 0.0
    objects.release([array(1)])
    assert ctx.take(DropSpilled, STORE) == [DropSpilled(OID, 3)]
    assert ctx.take(Free, STORE) == [Free(OID, 9)]
    assert objects.is_empty()


def test_the_gcs_frees_an_object_that_was_released_while_it_was_restored() -> None:
    """A client or task may still wait for it, so it is kept and delivered."""
    objects = Objects()
    objects.owners.own(array(1), "driver:0.0")
    objects.add(result(1, size=500, offset=7))
    objects.make_room()
    objects.memory.on_spilled(Spilled(OID, 7, 500, 3))
    objects.pulls.want(OID, objects.told.append)
    objects.release([array(1)])
    assert objects.alone.take(DropSpilled, STORE) == [DropSpilled(OID, 3)]
    objects.pulls.on_fetched(Fetched(OID, 9, 500, 0.1, "", 0))
    assert [(v.offset, v.size) for v in objects.told] == [(9, 500)]
    assert objects.copies == [(OID, 500)], "no owner here will release it"


def test_an_object_that_cannot_be_restored_from_disk_is_reconstructed() -> None:
    objects = Objects()
    ctx = objects.alone
    objects.owners.own(array(1), "driver:0.0")
    objects.add(result(1, size=500, offset=7))
    objects.make_room()
    objects.memory.on_spilled(Spilled(OID, 7, 500, 3))
    objects.pulls.want(OID, objects.told.append)
    objects.pulls.on_fetched(Fetched(OID, -1, 500, 0.1, "Input/output error", 0))
    assert ctx.take(ObjectsMissing, "gcs") == [
        ObjectsMissing(0, [OID], Missing.UNREADABLE, "Input/output error")
    ]
    assert ctx.take(DropSpilled, STORE) == [DropSpilled(OID, 3)]
    ctx.pass_time(1.0)
    objects.pulls.end_turn()
    assert ctx.take(LocateObjects, "gcs") == [LocateObjects([OID])] and not objects.told
    again = result(1, size=500, offset=9)
    objects.add(again)
    assert [(value.offset, value.size) for value in objects.told] == [(9, 500)]


def test_the_loss_of_a_spilled_object_names_the_disks_error() -> None:
    row = ArrayRow()
    row.finish(Done(0, 1, 2, (500,)))
    failed = Loss(LossCause.COPY_MISSING, 2, "Input/output error")
    row.lose_object(OID, 2, failed)
    location = row.locate(OID, {2})
    assert location is not None and not location.nodes and location.lost == failed
    assert row.holders() == {2}, "it may have notes of it, and must hear of the release"


def test_a_copy_is_written_too_and_comes_back() -> None:
    objects = Objects()
    objects.pulls.want(OID, objects.told.append)
    objects.pulls.on_location(Location(OID, (2,), 500))
    objects.alone.take(Fetch)
    objects.pulls.on_fetched(Fetched(OID, 7, 500, 0.1, "", 2))
    objects.make_room()
    assert len(objects.alone.take(Spill)) == 1
    objects.memory.on_spilled(Spilled(OID, 7, 500, 3))
    assert objects.memory.evicted([OID]) and objects.copies == [(OID, 500)]
    objects.release([array(1)])
    assert objects.is_empty()


def test_the_gcs_names_no_copy_that_is_missing() -> None:
    row = ArrayRow()
    row.finish(Done(0, 1, 2, (500,)))
    row.copied(OID, 3, 500)
    assert row.locate(OID, {2, 3}) == Location(OID, (3, 2), 500)
    assert row.locate(OID, {3}) == Location(OID, (3,), 500)
    row.copied(OID, 3, DROPPED)
    assert row.locate(OID, {2, 3}) == Location(OID, (2,), 500)
    location = row.locate(OID, {3})
    assert location is not None and location.lost and location.size == 500
    # It is told when the array is released: it still keeps a note of it.
    assert row.holders() == {2, 3}


# -- the system --------------------------------------------------------------------


def test_programs_larger_than_memory_end_as_they_should() -> None:
    """Random programs on stores that hold a few of their objects."""
    spills = in_file = 0
    for seed in range(25):
        world, rng = random_world(
            seed, store_bytes=random.Random(seed).choice([60_000, 150_000, 300_000])
        )
        driver = world.driver(rng.randrange(len(world.nodes)))
        program = random_program(rng)
        assert driver.call(run_program(driver, program)) == sequential(program)
        assert not settle(world), f"seed {seed}"
        spills += sum(store.spills for store in world.stores.values())
        in_file += sum(store.in_file for store in world.stores.values())
    assert spills > 40 and in_file > 5, (spills, in_file)
