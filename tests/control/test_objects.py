"""`ObjectDirectory`: pins, doom, fetching and its failures, owners."""

from __future__ import annotations

import random

from msgspec.structs import replace

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.ids import STREAM_BASE, object_id
from raytwin.runtime.control.messages import (
    OK,
    SYSTEM_ERROR,
    USER_ERROR,
    Fetch,
    Fetched,
    Free,
    LocateObjects,
    Location,
    NoRoom,
    ObjectPayload,
    ObjectValue,
    PullObject,
)
from raytwin.runtime.control.messages.errors import (
    FullCause,
    Loss,
    LossCause,
    StoreFull,
    Unmade,
    WorkerCrash,
    pack,
    unpack,
)
from raytwin.runtime.control.objects.object_directory import ObjectDirectory
from raytwin.runtime.control.objects.pull_manager import RETRY_S
from tests.control.alone import Alone, array, result

LOST = pack(Loss(LossCause.RELEASED))
CRASHED = pack(WorkerCrash("task"))
NOT_YIELDED = Loss(LossCause.UNREPORTED, unmade=Unmade.NOT_YIELDED, task="t")
OID = object_id(array(1), 0, 0)


class Directory(ObjectDirectory):
    """Of node 0, with what it said it had copied."""

    def __init__(self) -> None:
        self.alone = Alone()
        self.copies: list[tuple[bytes, int]] = []
        super().__init__(
            self.alone, 0, Config(), lambda _, oid, size: self.copies.append((oid, size)),
            lambda client: True,
        )  # fmt: skip
        self.told: list[ObjectValue] = []

    def ask(self, oid: bytes = OID) -> None:
        self.pulls.want(oid, self.told.append)
        self.pulls.end_turn()

    def is_empty(self) -> bool:
        parts = (self, self.owners, self.results, self.local, self.pulls)
        tables = [self.owners, *(value for part in parts for value in vars(part).values())]
        return not any(value for value in tables if isinstance(value, dict | set))


def test_small_values_by_position() -> None:
    directory = Directory()
    directory.add(result(1, 10, 5, returns=2, payload=b"ten"))
    value = directory.local.lookup(object_id(array(1), 12, 1))
    assert value is not None and (value.payload, value.position) == (b"ten", 5)
    assert directory.local.lookup(object_id(array(1), 15, 0)) is None
    assert directory.local.lookup(object_id(array(1), 9, 0)) is None


def test_errors_are_values() -> None:
    directory = Directory()
    directory.ask()
    directory.add(result(1, status=USER_ERROR, payload=b"oh"))
    assert [(v.object, v.status, v.payload) for v in directory.told] == [(OID, USER_ERROR, b"oh")]


def test_results_that_overlap_hide_nothing(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(200):
        directory, covered = Directory(), set()
        for _ in range(rng.randint(1, 8)):
            start, count = rng.randrange(20), rng.randint(1, 12)
            directory.add(result(1, start, count, payload=f"{start}".encode()))
            covered |= set(range(start, start + count))
        for index in range(35):
            value = directory.local.lookup(object_id(array(1), index, 0))
            assert (value is not None) == (index in covered)
            if value is not None:
                assert int(value.payload) + value.position == index


def test_an_error_stands_for_the_large_values_that_it_came_instead_of() -> None:
    """It spans two elements whose own results, from a dead node, hid it from those who asked."""
    directory = Directory()
    directory.owners.own(array(1), "driver:0.0")
    for index in (0, 1):
        directory.add(result(1, index, size=500, node=1))
    directory.on_node_changed(1, alive=False)
    directory.add(result(1, 0, 2, status=SYSTEM_ERROR, payload=LOST, node=-1))
    for index in (0, 1):
        value = directory.local.lookup(object_id(array(1), index, 0))
        assert value is not None and value.payload == LOST


def test_an_error_of_a_second_run_does_not_stand_for_the_value_of_the_first() -> None:
    """Its node died after it had sent the value, and the inputs were let go of since."""
    directory = Directory()
    directory.owners.own(array(1), "driver:0.0")
    error = result(1, 0, 2, status=SYSTEM_ERROR, payload=LOST, node=2)
    directory.add(result(1, 0, payload=b"small", node=1))
    assert not directory.results.outdoes(error)
    directory.add(result(1, 1, size=500, node=3))
    assert directory.results.outdoes(error)
    directory.on_node_changed(3, alive=False)
    assert not directory.results.outdoes(error)
    directory.on_node_changed(3, alive=True)
    assert not directory.results.outdoes(error), "it has come back without the value"


def test_an_error_that_was_told_stays() -> None:
    """Its node was declared dead and has not heard of it: the value comes late."""
    directory = Directory()
    directory.owners.own(array(1), "driver:0.0")
    value = result(1, 0, 2, payload=b"late", node=1)
    assert not directory.results.has_failed(value)
    directory.add(result(1, 0, status=SYSTEM_ERROR, payload=CRASHED, node=-1))
    assert directory.results.has_failed(result(1, 0, payload=b"late", node=1))
    assert not directory.results.has_failed(value), "one of the two was not told"
    directory.add(result(1, 1, status=SYSTEM_ERROR, payload=CRASHED, node=-1))
    assert directory.results.has_failed(value)
    directory.release([array(1)])
    assert not directory.results.has_failed(value)


def test_memory_is_freed_when_it_is_released_and_no_pin_is_left() -> None:
    directory = Directory()
    directory.owners.own(array(1), "driver:0.0")
    directory.add(result(1, size=500, offset=7))
    directory.local.pin(OID, "worker:0.1")
    directory.local.pin(OID, "worker:0.1")
    directory.local.pin(OID, "worker:0.2")
    directory.release([array(1)])
    directory.local.unpin(OID, "worker:0.1")
    directory.local.unpin(OID, "worker:0.3")
    assert directory.drop_client("worker:0.2") == []
    assert directory.alone.sent == []
    directory.local.unpin(OID, "worker:0.1")
    assert directory.alone.take(Free, "store:0") == [Free(OID, 7)]
    assert directory.is_empty()


def test_what_is_made_again_while_it_is_pinned_stays() -> None:
    directory = Directory()
    directory.add(result(1, size=500, offset=7))
    directory.local.pin(OID, "worker:0.1")
    directory.release([array(1)])
    directory.add(result(1, size=500, offset=9))
    assert directory.alone.take(Free) == [Free(OID, 9)]
    directory.local.unpin(OID, "worker:0.1")
    value = directory.local.lookup(OID)
    assert value is not None and value.offset == 7
    directory.release([array(1)])
    assert directory.alone.take(Free) == [Free(OID, 7)]
    assert directory.is_empty()


def test_a_large_object_is_located_fetched_and_reported() -> None:
    directory = Directory()
    directory.ask()
    directory.ask()
    ctx = directory.alone
    assert ctx.take(LocateObjects, "gcs") == [LocateObjects([OID])]
    directory.pulls.on_location(Location(OID, (2,), 500))
    directory.pulls.on_location(Location(OID, (3,), 500))
    assert ctx.take(Fetch, "store:0") == [Fetch(OID, 500, 2)]
    directory.pulls.on_fetched(Fetched(OID, 7, 500, 0.5, "", 2))
    assert [(v.offset, v.size, v.status) for v in directory.told] == [(7, 500, OK)] * 2
    assert directory.copies == [(OID, 500)]
    assert directory.pulls.bandwidth == 1000.0
    directory.ask()
    assert len(directory.told) == 3 and ctx.sent == []


def test_a_fetch_that_fails_asks_again_after_a_pause() -> None:
    directory = Directory()
    ctx = directory.alone
    directory.ask()
    directory.pulls.on_location(Location(OID, (2,), 500))
    ctx.sent.clear()
    directory.pulls.on_fetched(Fetched(OID, -1, 500, 0.0, "connection reset", 2))
    assert ctx.sent == []
    ctx.pass_time(RETRY_S)
    directory.pulls.end_turn()
    assert ctx.take(LocateObjects) == [LocateObjects([OID])]
    directory.pulls.on_location(Location(OID, (), 500, lost=Loss(LossCause.NODE_DIED, 2)))
    [value] = directory.told
    assert value.status == SYSTEM_ERROR
    assert unpack(value.payload) == Loss(LossCause.NODE_DIED, 2, object=OID)
    assert directory.is_empty()


def test_what_the_store_can_never_hold_is_an_error_at_once() -> None:
    directory = Directory()
    directory.ask()
    directory.pulls.on_location(Location(OID, (2,), 500))
    directory.pulls.on_no_room(NoRoom(OID, 500, 400, 400, node=2))
    directory.local.make_room()
    assert unpack(directory.told[0].payload) == StoreFull(FullCause.TOO_LARGE, 500, 400)


def test_what_was_released_on_its_way_is_freed() -> None:
    directory = Directory()
    directory.ask()
    directory.pulls.on_location(Location(OID, (2,), 500))
    directory.release([array(1)])
    directory.pulls.on_location(Location(OID, (), 0, lost=Loss(LossCause.RELEASED)))
    assert directory.told == [], "what is on its way is still good for who waits"
    directory.pulls.on_fetched(Fetched(OID, 7, 500, 0.1, "", 2))
    assert directory.told[0].offset == 7
    directory.release([array(1)])
    assert directory.alone.take(Free) == [Free(OID, 7)]
    assert directory.is_empty()


def test_what_is_released_while_it_is_wanted_is_asked_for() -> None:
    """A task that was placed again may wait for it: the GCS knows whether it is made again."""
    directory = Directory()
    directory.owners.own(array(1), "driver:0.0")
    directory.ask()
    directory.release([array(1)])
    assert directory.told == []
    directory.pulls.end_turn()
    assert directory.alone.take(LocateObjects, "gcs") == [LocateObjects([OID])]
    directory.pulls.on_location(Location(OID, (), 0, lost=Loss(LossCause.RELEASED)))
    assert directory.told[0].status == SYSTEM_ERROR and directory.is_empty()


def test_an_item_that_is_not_yielded_again_says_why() -> None:
    directory = Directory()
    directory.owners.own(array(1), "driver:0.0")
    item = object_id(array(1), STREAM_BASE + 1, 0)
    directory.add(result(1, 0, payload=b"two items", node=1))
    directory.results.ended_again(result(1, 0, status=SYSTEM_ERROR, payload=CRASHED, node=-1))
    told: list[ObjectValue] = []
    directory.pulls.want(item, told.append)
    directory.pulls.on_location(Location(item, (), 0, lost=NOT_YIELDED, ended=0))
    assert unpack(told[0].payload) == replace(NOT_YIELDED, object=item, root=unpack(CRASHED))


def test_who_knows_how_a_stream_ended_is_asked_why_an_item_is_lost() -> None:
    item = object_id(array(1), STREAM_BASE + 1, 0)
    ended = Location(item, (), 0, lost=NOT_YIELDED, ended=2)
    lost = replace(NOT_YIELDED, object=item)
    for status, payload, told in (
        (USER_ERROR, b"its error", b"its error"),
        (SYSTEM_ERROR, CRASHED, pack(replace(lost, root=unpack(CRASHED)))),
        (None, b"", pack(lost)),
    ):
        directory, other = Directory(), Directory()
        if status is not None:
            other.add(result(1, 0, status=status, payload=payload))
        directory.ask(item)
        directory.pulls.on_location(ended)
        assert directory.alone.take(PullObject, "node:2") == [PullObject(item)]
        directory.on_payload(ObjectPayload(item, other.results.end_instead_of(item)))
        [value] = directory.told
        assert value.status == (status or SYSTEM_ERROR)
        assert value.payload == told
        directory.pulls.end_turn()
        assert not directory.alone.take(LocateObjects, "gcs")[1:] and directory.is_empty()
    # It may die before it answers: another one may know, or make it.
    directory = Directory()
    directory.ask(item)
    directory.pulls.on_location(ended)
    directory.alone.sent.clear()
    directory.on_node_changed(2, alive=False)
    directory.pulls.end_turn()
    assert directory.alone.take(LocateObjects, "gcs") == [LocateObjects([item])]
    directory.pulls.on_location(ended)
    assert directory.told[0].payload == pack(lost)


def test_an_error_that_a_second_run_raised_does_not_stand_for_the_value_of_the_first() -> None:
    """Its parent had run twice, and the first of them had let go of what the second run read."""
    directory = Directory()
    raised = result(1, 0, status=USER_ERROR, payload=b"oh", node=2)
    assert not directory.results.outdoes(raised)
    directory.add(result(1, 0, payload=b"small", node=1))
    assert directory.results.outdoes(raised)
    assert not directory.results.outdoes(result(1, 0, payload=b"small", node=2))


def test_a_streams_own_error_is_why_later_items_are_lost() -> None:
    directory = Directory()
    directory.add(result(1, 0, payload=b"two items"))
    directory.add(result(1, STREAM_BASE, payload=b"first"))
    directory.add(result(1, STREAM_BASE + 1, status=USER_ERROR, payload=b"oh"))
    end = directory.results.end_instead_of(object_id(array(1), STREAM_BASE + 2, 0))
    assert end is not None and (end.status, end.payload) == (USER_ERROR, b"oh")
    assert directory.results.end_instead_of(object_id(array(1), STREAM_BASE, 0)) is None


def test_what_a_stream_has_yielded_is_not_hidden_by_its_end() -> None:
    """It raised in the end, and nobody has it run again for an item that is lost."""
    directory = Directory()
    directory.add(result(1, 0, status=USER_ERROR, payload=b"oh"))
    item = object_id(array(1), STREAM_BASE, 0)
    directory.ask(item)
    directory.pulls.on_location(
        Location(item, (), 0, lost=Loss(LossCause.UNREPORTED, unmade=Unmade.NO_RETRIES, task="t"))
    )
    assert directory.told[0].status == SYSTEM_ERROR
    directory = Directory()
    directory.add(result(1, 0, payload=b"all went well"))
    assert directory.results.end_instead_of(object_id(array(1), STREAM_BASE + 1, 0)) is None
    directory.add(result(2, 0, status=USER_ERROR, payload=b"oh"))
    assert directory.results.end_instead_of(object_id(array(2), 0, 0)) is None


def test_a_small_object_is_pulled_and_again_if_its_node_dies_or_lacks_it() -> None:
    directory = Directory()
    ctx = directory.alone
    directory.ask()
    for failure in (
        lambda: directory.on_payload(ObjectPayload(OID, None)),
        lambda: directory.on_node_changed(2, alive=False),
    ):
        ctx.sent.clear()
        directory.pulls.on_location(Location(OID, (2,), 0))
        assert ctx.take(PullObject, "node:2") == [PullObject(OID)]
        failure()
        ctx.pass_time(RETRY_S)
        directory.pulls.end_turn()
        assert ctx.take(LocateObjects) == [LocateObjects([OID])]
    directory.pulls.on_location(Location(OID, (3,), 0))
    directory.on_node_changed(2, alive=False)
    directory.on_payload(ObjectPayload(OID, result(1, payload=b"here")))
    assert directory.told[0].payload == b"here"
    assert directory.copies == [(OID, 0)]


def test_a_result_of_an_own_client_is_not_looked_for() -> None:
    directory = Directory()
    directory.owners.own(array(1), "driver:0.0")
    directory.ask()
    assert directory.alone.sent == []
    # Large and elsewhere: known by the result, fetched for who waits.
    directory.add(result(1, node=4, size=500, offset=3))
    assert directory.alone.take(Fetch) == [Fetch(OID, 500, 4)]
    assert directory.local.lookup(OID) is None


def test_owners_come_and_go() -> None:
    directory = Directory()
    directory.owners.own(array(1), "worker:0.1")
    directory.owners.own(array(1), "worker:0.1")
    assert directory.owners.owns("worker:0.1")
    # The same task runs twice at once: both wait, the last one releases.
    directory.owners.own(array(1), "worker:0.2")
    assert directory.owners.owners_of(array(1)) == ["worker:0.1", "worker:0.2"]
    assert directory.drop_client("worker:0.2") == [array(1)]
    assert not directory.owners.release(array(1), "worker:0.1")
    assert not directory.owners.owns("worker:0.1")
    assert directory.owners.owners_of(array(1)) == ["worker:0.2"]
    assert directory.owners.release(array(1), "worker:0.2")
    # It dies; its task is run again by another worker.
    directory.owners.await_claim(array(1))
    assert directory.owners.owners_of(array(1)) == [] and not directory.owners.owns("worker:0.2")
    directory.owners.own(array(1), "worker:0.3")
    assert directory.owners.owners_of(array(1)) == ["worker:0.3"]
    directory.release([array(1)])
    assert directory.is_empty()


def test_what_is_on_its_way_to_its_owner_is_not_missing() -> None:
    directory = Directory()
    assert not directory.is_expected(OID)
    directory.owners.own(array(1), "driver:0.0")
    assert directory.is_expected(OID)
    directory.add(result(1, size=500, node=2))
    assert not directory.is_expected(OID), "it is large, and known to be elsewhere"
