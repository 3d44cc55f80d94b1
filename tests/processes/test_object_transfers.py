"""Large objects over several connections, some of which break."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from tempfile import gettempdir
from typing import Any

import numpy as np
import pytest

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.messages import Allocate, Allocated, Fetch, Fetched, Free, NoRoom
from raytwin.runtime.processes.net.component_process import ComponentProcess
from raytwin.runtime.processes.net.connection import AcceptedConnection, Listener, listen
from raytwin.runtime.processes.node.object_store import ANSWER, RECEIVED, REQUEST, ObjectStore
from raytwin.runtime.store.arena import Arena
from tests.processes.helpers import eventually

MB = 1 << 20
TOKEN = b"t" * 32
SIZE = 3 * MB + 5
STREAMS = 4
OID = b"o" * 18


class Scheduler:
    """Writes down what its store says."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def handle(self, source: str, message: Any) -> None:
        self.heard.append(message)

    def end_turn(self) -> None:
        """Nothing is left."""


class Pair:
    """Two stores in this process; 0 serves, 1 fetches. `broken` says what breaks."""

    def __init__(self, broken: Callable[[int], bool], capacity: int = 8 * MB) -> None:
        self.process = ComponentProcess(0)
        self.broken = broken
        self.accepted = 0
        self.sabotaged = 0
        self.schedulers = [Scheduler(), Scheduler()]
        self.stores = []
        config = Config(fetch_streams=STREAMS, stripe_bytes_min=MB)
        for number, size in enumerate((8 * MB, capacity)):
            self.process.add(f"node:{number}", self.schedulers[number])
            arena = Arena.create(size, gettempdir())
            store = ObjectStore(self.process, number, arena, TOKEN, self.address_of, "/", config)
            self.process.add(f"store:{number}", store)
            self.stores.append(store)
        self.listener: Listener | None = Listener(
            self.process.reactor, listen("127.0.0.1"), self.accept
        )

    def address_of(self, node: int) -> tuple[str, int] | None:
        return self.listener.address if self.listener is not None else None

    def accept(self, sock: socket.socket, peer: str) -> None:
        number, self.accepted = self.accepted, self.accepted + 1
        serve = self.sabotage if self.broken(number) else self.stores[0].serve
        AcceptedConnection(
            self.process.reactor, sock, TOKEN, lambda c, f: None, lambda c, r: None,
            on_data=serve, peer=peer,
        )  # fmt: skip

    def sabotage(self, sock: socket.socket) -> None:
        """Answer with half of what was asked for, all wrong, and leave."""

        def ready(mask: int) -> None:
            _, _, length = REQUEST.unpack(sock.recv(REQUEST.size))
            sock.setblocking(True)
            sock.sendall(ANSWER.pack(True, SIZE) + b"\xff" * (length // 2))
            self.process.reactor.remove(sock.fileno())
            sock.close()
            self.sabotaged += 1

        self.process.reactor.add(sock.fileno(), 1, ready)

    def make(self, oid: bytes, size: int) -> np.ndarray[Any, Any]:
        """Put an object into store 0; return what is in it."""
        value = np.random.default_rng(size).integers(0, 255, size, np.uint8)
        self.tell(0, Allocate(oid, size, "driver:0.0"))
        offset = self.hear(0, Allocated).offset
        self.stores[0].arena.writable(offset, size)[:] = value.tobytes()
        return value

    def tell(self, number: int, message: Any) -> None:
        self.process.deliver(f"node:{number}", f"store:{number}", message)
        self.process.turns.run_rounds()

    def hear(self, number: int, kind: type) -> Any:
        heard = self.schedulers[number].heard

        def look() -> Any:
            self.process.step(0.01)
            return next((m for m in heard if isinstance(m, kind)), None)

        message = eventually(look)
        heard.remove(message)
        return message

    def close(self) -> None:
        self.process.reactor.close()


@pytest.fixture
def pair() -> Iterator[Callable[..., Pair]]:
    made: list[Pair] = []

    def make(broken: Callable[[int], bool] = lambda number: False, **options: Any) -> Pair:
        made.append(Pair(broken, **options))
        return made[0]

    yield make
    for each in made:
        each.close()


def fetched(pair: Pair, oid: bytes, size: int) -> Any:
    pair.tell(1, Fetch(oid, size, 0))
    message = pair.hear(1, Fetched)
    if message.offset < 0:
        return message
    value = np.array(pair.stores[1].arena.readonly(message.offset, size))
    pair.tell(1, Free(oid, message.offset))
    return value


def test_a_large_object_takes_several_streams_and_a_small_one_takes_one(
    pair: Callable[..., Pair],
) -> None:
    both = pair()
    small = both.make(b"s" * 18, MB - 1)
    assert np.array_equal(fetched(both, b"s" * 18, MB - 1), small)
    assert both.accepted == 1
    large = both.make(OID, SIZE)
    for _ in range(3):
        assert np.array_equal(fetched(both, OID, SIZE), large)
    assert both.accepted == STREAMS
    for odd in (MB, MB + 1, MB + 3):
        oid = odd.to_bytes(18, "big")
        value = both.make(oid, odd)
        assert np.array_equal(fetched(both, oid, odd), value)
        both.tell(0, Free(oid, next(iter(both.stores[0]._places[oid]))))
    assert both.stores[1].allocator.used == 0


@pytest.mark.parametrize("broken", [{0}, {0, 1}, {0, 2}, {0, 1, 2, 3}])
def test_a_stream_that_breaks_fails_the_fetch_and_a_later_one_has_other_streams(
    pair: Callable[..., Pair], broken: set[int]
) -> None:
    both = pair(broken.__contains__)
    value = both.make(OID, SIZE)
    failed = fetched(both, OID, SIZE)
    assert failed.offset == -1 and failed.reason and not failed.gone
    assert both.stores[1].allocator.used == 0
    for _ in broken:
        again = fetched(both, OID, SIZE)
    assert np.array_equal(again, value)
    assert 0 < both.sabotaged <= len(broken)
    assert both.stores[1].allocator.used == 0
    eventually(lambda: both.process.step(0.01) or not both.stores[0].readers.counts)


def test_a_node_whose_connections_all_break_is_given_up(pair: Callable[..., Pair]) -> None:
    both = pair(lambda number: True)
    both.make(OID, SIZE)
    failed = fetched(both, OID, SIZE)
    assert failed.offset == -1 and failed.reason
    assert both.stores[1].allocator.used == 0
    assert both.accepted <= STREAMS


def test_memory_is_not_used_again_while_its_bytes_are_under_way(pair: Callable[..., Pair]) -> None:
    """The kernel has the bytes by reference, so what is written there next would be received."""
    both = pair()
    store = both.stores[0]
    value = both.make(OID, SIZE)
    (offset,) = store._places[OID]
    used = store.allocator.used
    ours, theirs = socket.socketpair()
    store.serve(theirs)
    ours.sendall(REQUEST.pack(OID, 0, MB))
    for _ in range(10):
        both.process.step(0.01)
    both.tell(0, Free(OID, offset))
    both.make(b"n" * 18, SIZE)
    ours.setblocking(False)
    got = b""
    while len(got) < ANSWER.size + MB:
        both.process.step(0)
        with suppress(BlockingIOError):
            got += ours.recv(MB)
    assert got[ANSWER.size :] == value[:MB].tobytes()
    both.process.step(0.01)
    assert store.allocator.used == 2 * used
    ours.sendall(RECEIVED)
    eventually(lambda: both.process.step(0.01) or store.allocator.used == used)
    ours.close()


def test_a_missing_object_or_a_wrong_size_is_an_error(pair: Callable[..., Pair]) -> None:
    both = pair()
    both.make(OID, SIZE)
    for oid, size in ((b"x" * 18, SIZE), (OID, SIZE - 1), (OID, SIZE + 1)):
        failed = fetched(both, oid, size)
        assert failed.offset == -1 and "not there" in failed.reason
        assert both.stores[1].allocator.used == 0
    assert len(fetched(both, OID, SIZE)) == SIZE


def test_a_node_that_dies_fails_what_waits_for_it(pair: Callable[..., Pair]) -> None:
    both = pair()
    both.make(OID, SIZE)
    both.tell(1, Fetch(OID, SIZE, 0))
    both.tell(1, Fetch(b"y" * 18, SIZE, 0))
    both.stores[1].drop_peer(0)
    assert {both.hear(1, Fetched).reason for _ in range(2)} == {"its node died"}
    assert both.stores[1].allocator.used == 0
    assert len(fetched(both, OID, SIZE)) == SIZE


def test_an_arena_without_room_fails_the_fetch_and_goes_on(pair: Callable[..., Pair]) -> None:
    both = pair(capacity=2 * MB)
    both.make(OID, SIZE)
    value = both.make(b"s" * 18, MB)
    both.tell(1, Fetch(OID, SIZE, 0))
    full = both.hear(1, NoRoom)
    assert (full.object, full.size, full.capacity, full.free) == (OID, SIZE, 2 * MB, 2 * MB)
    assert np.array_equal(fetched(both, b"s" * 18, MB), value)
