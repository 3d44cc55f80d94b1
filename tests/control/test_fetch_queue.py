"""The fetches of a store from one node: their order, room, breaks and stalls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.messages import Fetch, Fetched
from raytwin.runtime.control.objects.fetch_queue import Fetching, FetchQueue, fetch_streams

ROOM = 100
NODE = 3


class Store:
    """A store of `ROOM` bytes, whose bytes come when the test says so."""

    def __init__(self) -> None:
        self.free_bytes = ROOM
        self.sizes: dict[int, int] = {}
        self.copies: list[bytes] = []
        self.sent: list[Any] = []
        self.begun: list[bytes] = []
        self.stopped: list[bytes] = []
        self.received = False
        self.timers: list[Callable[[], None]] = []
        self.queue = FetchQueue(NODE, Config(), self, lambda: 7.0, self.after)

    def after(self, delay_s: float, callback: Callable[[], None]) -> None:
        assert delay_s == Config().stall_s
        self.timers.append(callback)

    def allocate(self, size: int) -> int:
        if size > self.free_bytes:
            return -1
        self.free_bytes -= size
        self.sizes[len(self.sizes)] = size
        return len(self.sizes) - 1

    def reserve(self, size: int, done: Callable[[int, str], None]) -> None:
        done(-1, "the disk is full")

    def free(self, oid: bytes, offset: int) -> None:
        self.free_bytes += self.sizes[offset]

    def add_copy(self, oid: bytes, offset: int, size: int) -> None:
        self.copies.append(oid)

    def send_no_room(self, oid: bytes, size: int, node: int, reason: str) -> None:
        self.sent.append((oid, reason))

    def send(self, message: Fetched) -> None:
        self.sent.append(message)

    def begin(self, fetching: Fetching) -> None:
        fetching.began_s = 5.0
        self.begun.append(fetching.fetch.object)

    def has_received(self, fetching: Fetching) -> bool:
        return self.received

    def stop(self, fetching: Fetching, stalled: bool) -> None:
        self.stopped.append(fetching.fetch.object)


@pytest.fixture
def store() -> Store:
    return Store()


def test_one_at_a_time_and_the_first_ones_first(store: Store) -> None:
    for name in b"a", b"b":
        store.queue.add(Fetch(name, 10, NODE))
    store.queue.add(Fetch(b"c", 10, NODE, first=True))
    assert store.begun == [b"a"]
    assert store.free_bytes == ROOM - 20  # b has no memory before its turn
    for _ in range(3):
        store.queue.done()
    assert store.begun == store.copies == [b"a", b"c", b"b"]
    assert store.sent[0] == Fetched(b"a", 0, 10, 2.0, "", NODE)


def test_no_room_is_told_when_it_is_the_objects_turn(store: Store) -> None:
    store.queue.add(Fetch(b"a", 60, NODE))
    store.queue.add(Fetch(b"b", 60, NODE))
    store.queue.add(Fetch(b"c", 40, NODE))
    assert store.sent == []
    store.queue.done()
    assert store.sent[1:] == [(b"b", "")]
    assert store.begun == [b"a", b"c"]
    store.queue.add(Fetch(b"d", 60, NODE, first=True))
    store.queue.add(Fetch(b"e", 60, NODE, first=True, in_file=True))
    assert store.sent[2:] == [(b"d", ""), (b"e", "the disk is full")]


def test_a_broken_fetch_is_answered_once_and_frees_its_memory(store: Store) -> None:
    store.queue.add(Fetch(b"a", 60, NODE))
    store.queue.add(Fetch(b"b", 60, NODE))
    store.queue.fail("reset")
    assert store.sent == [Fetched(b"a", -1, 60, 2.0, "reset", NODE)]
    assert store.begun == [b"a", b"b"]
    assert store.stopped == [b"a"]
    store.queue.absent()
    assert store.sent[1].gone and store.free_bytes == ROOM


def test_a_fetch_is_given_up_only_if_nothing_comes(store: Store) -> None:
    store.queue.add(Fetch(b"a", 60, NODE))
    store.received = True
    store.timers.pop()()
    assert store.sent == []
    store.received = False
    store.timers.pop()()
    (answer,) = store.sent
    assert answer.stalled and not answer.gone and store.stopped == [b"a"]
    assert store.timers == []
    store.queue.add(Fetch(b"b", 60, NODE))
    store.queue.done()
    store.timers.pop()()  # of a fetch that is done
    assert len(store.sent) == 2


def test_a_dead_node_fails_all_that_wait(store: Store) -> None:
    store.queue.add(Fetch(b"a", 30, NODE))
    store.queue.add(Fetch(b"b", 30, NODE))
    store.queue.add(Fetch(b"c", 30, NODE, first=True))
    store.queue.drop("its node died")
    assert [message.object for message in store.sent] == [b"a", b"c", b"b"]
    assert {message.reason for message in store.sent} == {"its node died"}
    assert store.free_bytes == ROOM and store.begun == [b"a"]


def test_a_large_object_comes_over_several_streams() -> None:
    config = Config()
    assert fetch_streams(config.stripe_bytes_min - 1, config) == 1
    assert fetch_streams(config.stripe_bytes_min, config) == config.fetch_streams
