"""`NodeObjects`: pins, doom, fetching and its failures, owners."""

from __future__ import annotations

import random

from msgspec.structs import replace

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.ids import STREAM_BASE, object_id
from raytwin.runtime.control.messages import (
    IN_FILE,
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
    Loss,
    LossCause,
    Refusal,
    WorkerCrash,
    pack,
    unpack,
)
from raytwin.runtime.control.objects.node_objects import NodeObjects
from raytwin.runtime.control.objects.pull_manager import RETRY_S
from tests.control.alone import Alone, array, result

LOST = pack(Loss(LossCause.RELEASED))
CRASHED = pack(WorkerCrash("task"))
NOT_YIELDED = Loss(LossCause.UNREPORTED, refusal=Refusal.NOT_YIELDED, task="t")
OID = object_id(array(1), 0, 0)


class Objects(NodeObjects):
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
        parts = (self, self.owners, self.results, self.memory, self.pulls)
        tables = [self.owners, *(value for part in parts for value in vars(part).values())]
        return not any(value for value in tables if isinstance(value, dict | set))


def test_small_values_by_position() -> None:
    objects = Objects()
    objects.add(result(1, 10, 5, returns=2, payload=b"ten"))
    value = objects.memory.lookup(object_id(array(1), 12, 1))
    assert value is not None and (value.payload, value.position) == (b"ten", 5)
    assert objects.memory.lookup(object_id(array(1), 15, 0)) is None
    assert objects.memory.lookup(object_id(array(1), 9, 0)) is None


def test_errors_are_values() -> None:
    objects = Objects()
    objects.ask()
    objects.add(result(1, status=USER_ERROR, payload=b"oh"))
    assert [(v.object, v.status, v.payload) for v in objects.told] == [(OID, USER_ERROR, b"oh")]


def test_results_that_overlap_hide_nothing(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(200):
        objects, covered = Objects(), set()
        for _ in range(rng.randint(1, 8)):
            start, count = rng.randrange(20), rng.randint(1, 12)
            objects.add(result(1, start, count, payload=f"{start}".encode()))
            covered |= set(range(start, start + count))
        for index in range(35):
            value = objects.memory.lookup(object_id(array(1), index, 0))
            assert (value is not None) == (index in covered)
            if value is not None:
                assert int(value.payload) + value.position == index


def test_an_error_stands_for_the_large_values_that_it_came_instead_of() -> None:
    """It spans two elements whose own results, from a dead node, hid it from those who asked."""
    objects = Objects()
    objects.owners.own(array(1), "driver:0.0")
    for index in (0, 1):
        objects.add(result(1, index, size=500, node=1))
    objects.on_node_changed(1, alive=False)
    objects.add(result(1, 0, 2, status=SYSTEM_ERROR, payload=LOST, node=-1))
    for index in (0, 1):
        value = objects.memory.lookup(object_id(array(1), index, 0))
        assert value is not None and value.payload == LOST


def test_an_error_of_a_second_run_does_not_stand_for_the_value_of_the_first() -> None:
    """Its node died after it had sent the value, and the inputs were let go of since."""
    objects = Objects()
    objects.owners.own(array(1), "driver:0.0")
    error = result(1, 0, 2, status=SYSTEM_ERROR, payload=LOST, node=2)
    objects.add(result(1, 0, payload=b"small", node=1))
    assert not objects.results.is_obsolete_error(error)
    objects.add(result(1, 1, size=500, node=3))
    assert objects.results.is_obsolete_error(error)
    objects.on_node_changed(3, alive=False)
    assert not objects.results.is_obsolete_error(error)
    objects.on_node_changed(3, alive=True)
    assert not objects.results.is_obsolete_error(error), "it has come back without the value"


def test_a_reported_error_stays() -> None:
    """Its node was declared dead and has not heard of it: the value comes late."""
    objects = Objects()
    objects.owners.own(array(1), "driver:0.0")
    value = result(1, 0, 2, payload=b"late", node=1)
    assert not objects.results.has_failed(value)
    objects.add(result(1, 0, status=SYSTEM_ERROR, payload=CRASHED, node=-1))
    assert objects.results.has_failed(result(1, 0, payload=b"late", node=1))
    assert not objects.results.has_failed(value), "one of the two was not told"
    objects.add(result(1, 1, status=SYSTEM_ERROR, payload=CRASHED, node=-1))
    assert objects.results.has_failed(value)
    objects.release([array(1)])
    assert not objects.results.has_failed(value)


def test_memory_is_freed_when_it_is_released_and_no_pin_is_left() -> None:
    objects = Objects()
    objects.owners.own(array(1), "driver:0.0")
    objects.add(result(1, size=500, offset=7))
    objects.memory.pin(OID, "worker:0.1")
    objects.memory.pin(OID, "worker:0.1")
    objects.memory.pin(OID, "worker:0.2")
    objects.release([array(1)])
    objects.memory.unpin(OID, "worker:0.1")
    objects.memory.unpin(OID, "worker:0.3")
    assert objects.drop_client("worker:0.2") == []
    assert objects.alone.sent == []
    objects.memory.unpin(OID, "worker:0.1")
    assert objects.alone.take(Free, "store:0") == [Free(OID, 7)]
    assert objects.is_empty()


def test_an_object_made_again_while_it_is_pinned_stays() -> None:
    objects = Objects()
    objects.add(result(1, size=500, offset=7))
    objects.memory.pin(OID, "worker:0.1")
    objects.release([array(1)])
    objects.add(result(1, size=500, offset=9))
    assert objects.alone.take(Free) == [Free(OID, 9)]
    objects.memory.unpin(OID, "worker:0.1")
    value = objects.memory.lookup(OID)
    assert value is not None and value.offset == 7
    objects.release([array(1)])
    assert objects.alone.take(Free) == [Free(OID, 7)]
    assert objects.is_empty()


def test_a_large_object_is_located_fetched_and_reported() -> None:
    objects = Objects()
    objects.ask()
    objects.ask()
    ctx = objects.alone
    assert ctx.take(LocateObjects, "gcs") == [LocateObjects([OID])]
    objects.pulls.on_location(Location(OID, (2,), 500))
    objects.pulls.on_location(Location(OID, (3,), 500))
    assert ctx.take(Fetch, "store:0") == [Fetch(OID, 500, 2)]
    objects.pulls.on_fetched(Fetched(OID, 7, 500, 0.5, "", 2))
    assert [(v.offset, v.size, v.status) for v in objects.told] == [(7, 500, OK)] * 2
    assert objects.copies == [(OID, 500)]
    assert objects.pulls.bandwidth == 1000.0
    objects.ask()
    assert len(objects.told) == 3 and ctx.sent == []


def test_a_fetch_that_fails_asks_again_after_a_pause() -> None:
    objects = Objects()
    ctx = objects.alone
    objects.ask()
    objects.pulls.on_location(Location(OID, (2,), 500))
    ctx.sent.clear()
    objects.pulls.on_fetched(Fetched(OID, -1, 500, 0.0, "connection reset", 2))
    assert ctx.sent == []
    ctx.pass_time(RETRY_S)
    objects.pulls.end_turn()
    assert ctx.take(LocateObjects) == [LocateObjects([OID])]
    objects.pulls.on_location(Location(OID, (), 500, lost=Loss(LossCause.NODE_DIED, 2)))
    [value] = objects.told
    assert value.status == SYSTEM_ERROR
    assert unpack(value.payload) == Loss(LossCause.NODE_DIED, 2, object=OID)
    assert objects.is_empty()


def test_an_object_larger_than_the_store_is_fetched_into_the_file() -> None:
    objects = Objects()
    objects.ask()
    objects.pulls.on_location(Location(OID, (2,), 500))
    objects.pulls.on_no_room(NoRoom(OID, 500, 400, 400, node=2))
    objects.memory.make_room()
    assert objects.alone.take(Fetch)[-1] == Fetch(OID, 500, 2, first=True, in_file=True)
    objects.pulls.on_fetched(Fetched(OID, IN_FILE + 7, 500, 0.1, "", 2))
    assert [(value.offset, value.size) for value in objects.told] == [(IN_FILE + 7, 500)]


def test_an_object_released_during_its_transfer_is_freed() -> None:
    objects = Objects()
    objects.ask()
    objects.pulls.on_location(Location(OID, (2,), 500))
    objects.release([array(1)])
    objects.pulls.on_location(Location(OID, (), 0, lost=Loss(LossCause.RELEASED)))
    assert objects.told == [], "what is on its way is still good for who waits"
    objects.pulls.on_fetched(Fetched(OID, 7, 500, 0.1, "", 2))
    assert objects.told[0].offset == 7
    objects.release([array(1)])
    assert objects.alone.take(Free) == [Free(OID, 7)]
    assert objects.is_empty()


def test_an_object_released_while_it_is_needed_is_located() -> None:
    """A task that was placed again may wait for it: the GCS knows whether it is made again."""
    objects = Objects()
    objects.owners.own(array(1), "driver:0.0")
    objects.ask()
    objects.release([array(1)])
    assert objects.told == []
    objects.pulls.end_turn()
    assert objects.alone.take(LocateObjects, "gcs") == [LocateObjects([OID])]
    objects.pulls.on_location(Location(OID, (), 0, lost=Loss(LossCause.RELEASED)))
    assert objects.told[0].status == SYSTEM_ERROR and objects.is_empty()


def test_the_loss_of_an_item_not_yielded_again_names_the_cause() -> None:
    objects = Objects()
    objects.owners.own(array(1), "driver:0.0")
    item = object_id(array(1), STREAM_BASE + 1, 0)
    objects.add(result(1, 0, payload=b"two items", node=1))
    objects.results.ended_again(result(1, 0, status=SYSTEM_ERROR, payload=CRASHED, node=-1))
    told: list[ObjectValue] = []
    objects.pulls.want(item, told.append)
    objects.pulls.on_location(Location(item, (), 0, lost=NOT_YIELDED, ended=0))
    assert unpack(told[0].payload) == replace(NOT_YIELDED, object=item, root=unpack(CRASHED))


def test_the_node_of_a_stream_is_asked_why_an_item_is_lost() -> None:
    item = object_id(array(1), STREAM_BASE + 1, 0)
    ended = Location(item, (), 0, lost=NOT_YIELDED, ended=2)
    lost = replace(NOT_YIELDED, object=item)
    for status, payload, told in (
        (USER_ERROR, b"its error", b"its error"),
        (SYSTEM_ERROR, CRASHED, pack(replace(lost, root=unpack(CRASHED)))),
        (None, b"", pack(lost)),
    ):
        objects, other = Objects(), Objects()
        if status is not None:
            other.add(result(1, 0, status=status, payload=payload))
        objects.ask(item)
        objects.pulls.on_location(ended)
        assert objects.alone.take(PullObject, "node:2") == [PullObject(item)]
        objects.on_payload(ObjectPayload(item, other.results.end_instead_of(item)))
        [value] = objects.told
        assert value.status == (status or SYSTEM_ERROR)
        assert value.payload == told
        objects.pulls.end_turn()
        assert not objects.alone.take(LocateObjects, "gcs")[1:] and objects.is_empty()
    # It may die before it answers: another one may know, or make it.
    objects = Objects()
    objects.ask(item)
    objects.pulls.on_location(ended)
    objects.alone.sent.clear()
    objects.on_node_changed(2, alive=False)
    objects.pulls.end_turn()
    assert objects.alone.take(LocateObjects, "gcs") == [LocateObjects([item])]
    objects.pulls.on_location(ended)
    assert objects.told[0].payload == pack(lost)


def test_an_error_that_a_second_run_raised_does_not_stand_for_the_value_of_the_first() -> None:
    """Its parent had run twice, and the first of them had let go of what the second run read."""
    objects = Objects()
    raised = result(1, 0, status=USER_ERROR, payload=b"oh", node=2)
    assert not objects.results.is_obsolete_error(raised)
    objects.add(result(1, 0, payload=b"small", node=1))
    assert objects.results.is_obsolete_error(raised)
    assert not objects.results.is_obsolete_error(result(1, 0, payload=b"small", node=2))


def test_a_streams_own_error_is_why_later_items_are_lost() -> None:
    objects = Objects()
    objects.add(result(1, 0, payload=b"two items"))
    objects.add(result(1, STREAM_BASE, payload=b"first"))
    objects.add(result(1, STREAM_BASE + 1, status=USER_ERROR, payload=b"oh"))
    end = objects.results.end_instead_of(object_id(array(1), STREAM_BASE + 2, 0))
    assert end is not None and (end.status, end.payload) == (USER_ERROR, b"oh")
    assert objects.results.end_instead_of(object_id(array(1), STREAM_BASE, 0)) is None


def test_yielded_items_are_not_hidden_by_the_end_of_the_stream() -> None:
    """It raised in the end, and nobody has it run again for an item that is lost."""
    objects = Objects()
    objects.add(result(1, 0, status=USER_ERROR, payload=b"oh"))
    item = object_id(array(1), STREAM_BASE, 0)
    objects.ask(item)
    objects.pulls.on_location(
        Location(item, (), 0, lost=Loss(LossCause.UNREPORTED, refusal=Refusal.NO_RETRIES, task="t"))
    )
    assert objects.told[0].status == SYSTEM_ERROR
    objects = Objects()
    objects.add(result(1, 0, payload=b"all went well"))
    assert objects.results.end_instead_of(object_id(array(1), STREAM_BASE + 1, 0)) is None
    objects.add(result(2, 0, status=USER_ERROR, payload=b"oh"))
    assert objects.results.end_instead_of(object_id(array(2), 0, 0)) is None


def test_a_small_object_is_pulled_and_again_if_its_node_dies_or_lacks_it() -> None:
    objects = Objects()
    ctx = objects.alone
    objects.ask()
    for failure in (
        lambda: objects.on_payload(ObjectPayload(OID, None)),
        lambda: objects.on_node_changed(2, alive=False),
    ):
        ctx.sent.clear()
        objects.pulls.on_location(Location(OID, (2,), 0))
        assert ctx.take(PullObject, "node:2") == [PullObject(OID)]
        failure()
        ctx.pass_time(RETRY_S)
        objects.pulls.end_turn()
        assert ctx.take(LocateObjects) == [LocateObjects([OID])]
    objects.pulls.on_location(Location(OID, (3,), 0))
    objects.on_node_changed(2, alive=False)
    objects.on_payload(ObjectPayload(OID, result(1, payload=b"here")))
    assert objects.told[0].payload == b"here"
    assert objects.copies == [(OID, 0)]


def test_a_result_of_an_own_client_is_not_looked_for() -> None:
    objects = Objects()
    objects.owners.own(array(1), "driver:0.0")
    objects.ask()
    assert objects.alone.sent == []
    # Large and elsewhere: known by the result, fetched for who waits.
    objects.add(result(1, node=4, size=500, offset=3))
    assert objects.alone.take(Fetch) == [Fetch(OID, 500, 4)]
    assert objects.memory.lookup(OID) is None


def test_owners_come_and_go() -> None:
    objects = Objects()
    objects.owners.own(array(1), "worker:0.1")
    objects.owners.own(array(1), "worker:0.1")
    assert objects.owners.owns("worker:0.1")
    # The same task runs twice at once: both wait, the last one releases.
    objects.owners.own(array(1), "worker:0.2")
    assert objects.owners.owners_of(array(1)) == ["worker:0.1", "worker:0.2"]
    assert objects.drop_client("worker:0.2") == [array(1)]
    assert not objects.owners.release(array(1), "worker:0.1")
    assert not objects.owners.owns("worker:0.1")
    assert objects.owners.owners_of(array(1)) == ["worker:0.2"]
    assert objects.owners.release(array(1), "worker:0.2")
    # It dies; its task is run again by another worker.
    objects.owners.await_claim(array(1))
    assert objects.owners.owners_of(array(1)) == [] and not objects.owners.owns("worker:0.2")
    objects.owners.own(array(1), "worker:0.3")
    assert objects.owners.owners_of(array(1)) == ["worker:0.3"]
    objects.release([array(1)])
    assert objects.is_empty()


def test_a_result_in_transit_to_its_owner_is_not_missing() -> None:
    objects = Objects()
    assert not objects.is_expected(OID)
    objects.owners.own(array(1), "driver:0.0")
    assert objects.is_expected(OID)
    objects.add(result(1, size=500, node=2))
    assert not objects.is_expected(OID), "it is large, and known to be elsewhere"
