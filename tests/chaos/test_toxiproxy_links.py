"""Links and toxics alone, in a time that the tests set: no byte is lost, doubled or reordered."""

from __future__ import annotations

import asyncio
import math
import random
import socket
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raytwin.chaos.toxiproxy.connection import Connection, Stream
from raytwin.chaos.toxiproxy.link import END, Data, Link, Rule, Toxic
from raytwin.chaos.toxiproxy.toxics import (
    Bandwidth,
    Latency,
    LimitData,
    ResetPeer,
    Slicer,
    SlowClose,
    Timeout,
)

NBYTES = 32 << 20


class Sink:
    """Notes what leaves a link."""

    def __init__(self) -> None:
        self.room = True
        self.now_s = 0.0
        self.chunks: list[tuple[float, bytes]] = []

    @property
    def has_room(self) -> bool:
        return self.room

    def take(self, data: Data, now_s: float) -> None:
        self.chunks.append((self.now_s, bytes(data)))

    @property
    def bytes(self) -> bytes:
        return b"".join(data for _, data in self.chunks)

    @property
    def ended(self) -> bool:
        return bool(self.chunks) and self.chunks[-1][1] == END


class World:
    """A link and its time."""

    def __init__(self, *rules: Rule, toxicity: float = 1.0) -> None:
        self.now_s = 0.0
        self.sink = Sink()
        self.link = Link(self.sink)
        self.toxics = [self.add(rule, toxicity) for rule in rules]
        self.due_s = math.inf

    def add(self, rule: Rule, toxicity: float = 1.0) -> Toxic:
        toxic = Toxic(rule, type(rule).__name__, "", "upstream", toxicity)
        self.link.add(toxic, self.now_s)
        self.pump()
        return toxic

    def send(self, data: bytes) -> None:
        self.link.first.take(data, self.now_s)
        self.pump()

    def pump(self) -> None:
        self.sink.now_s = self.now_s
        self.due_s = self.link.pump(self.now_s)

    def run(self, until_s: float = math.inf) -> None:
        """Go from one due time to the next."""
        while self.due_s <= until_s and self.due_s < math.inf:
            assert self.due_s > self.now_s, "a link comes back without time passing"
            self.now_s = self.due_s
            self.pump()
        if until_s < math.inf:
            self.now_s = until_s
            self.pump()


def test_latency_delays_each_chunk_and_overlaps() -> None:
    world = World(Latency(latency=50))
    world.send(b"a")
    world.run(0.02)
    world.send(b"b")
    world.send(END)
    world.run()
    times = [time_s for time_s, _ in world.sink.chunks]
    assert world.sink.bytes == b"ab"
    assert times == pytest.approx([0.05, 0.07, 0.07])


def test_latencies_of_two_toxics_add_up() -> None:
    world = World(Latency(latency=50), Latency(latency=30))
    world.send(b"a")
    world.run()
    assert world.sink.chunks == [(pytest.approx(0.08), b"a")]


def test_bandwidth_takes_the_time_of_all_bytes_and_sends_them_in_pieces() -> None:
    world = World(Bandwidth(rate=100))
    world.send(bytes(30_000))
    world.send(bytes(20_000))
    world.run()
    assert len(world.sink.bytes) == 50_000
    assert world.sink.chunks[-1][0] == pytest.approx(0.5)
    assert max(len(data) for _, data in world.sink.chunks) <= 10_000


def test_bandwidth_gives_no_credit_for_a_stall() -> None:
    world = World(Bandwidth(rate=0))
    world.send(bytes(100_000))
    world.run(10.0)
    assert world.sink.chunks == []
    world.toxics[0].attributes = Bandwidth(rate=100)
    world.link.update(world.toxics[0], world.now_s)
    world.pump()
    world.run(10.5)
    assert 40_000 <= len(world.sink.bytes) <= 60_000


def test_bandwidth_gives_no_credit_for_a_slow_receiver() -> None:
    world = World(Bandwidth(rate=100))
    world.sink.room = False
    world.send(bytes(50_000))
    world.run(10.0)
    world.sink.room = True
    world.pump()
    world.run(10.1)
    assert len(world.sink.bytes) <= 20_000


def test_limit_data_counts_over_updates_and_closes() -> None:
    world = World(LimitData(bytes=5))
    world.send(b"abc")
    world.toxics[0].attributes = LimitData(bytes=7)
    world.link.update(world.toxics[0], world.now_s)
    world.pump()
    world.send(b"defghij")
    world.send(b"k")
    assert world.sink.bytes == b"abcdefg"
    assert world.sink.ended
    assert world.link.closes


def test_limited_data_goes_through_later_toxics_before_the_close() -> None:
    world = World(LimitData(bytes=3), Latency(latency=50))
    world.send(b"abcdef")
    assert world.sink.chunks == []
    world.run()
    assert [data for _, data in world.sink.chunks] == [b"abc", END]


def test_reset_waits_for_the_first_bytes_and_its_timeout() -> None:
    world = World(ResetPeer(timeout=30))
    world.run(1.0)
    assert world.due_s == math.inf
    world.send(b"a")
    world.run()
    assert world.sink.chunks == [(pytest.approx(1.03), END)]
    assert world.link.closes


def test_timeout_starts_again_with_each_chunk() -> None:
    world = World(Timeout(timeout=100))
    world.run(0.08)
    world.send(b"a")
    world.run()
    assert world.sink.chunks == [(pytest.approx(0.18), END)]
    assert world.link.closes


def test_timeout_drops_and_its_removal_closes() -> None:
    world = World(Timeout())
    world.send(bytes(1 << 20))
    assert world.link.first.has_room
    world.run(100.0)
    assert world.sink.chunks == []
    world.link.remove(world.toxics[0], world.now_s)
    world.pump()
    assert [data for _, data in world.sink.chunks] == [END]
    assert world.link.closes


def test_a_toxic_that_does_not_apply_changes_nothing() -> None:
    world = World(Timeout(), LimitData(), ResetPeer(), toxicity=0.0)
    world.send(b"a")
    for toxic in world.toxics:
        world.link.remove(toxic, world.now_s)
    world.pump()
    world.send(b"b")
    assert world.sink.bytes == b"ab"
    assert world.link.stages == []


@pytest.mark.parametrize("rule", [Bandwidth(rate=0), Slicer(average_size=9), SlowClose(delay=9)])
def test_a_full_stage_has_no_room_until_the_sink_has(rule: Rule) -> None:
    world = World(Latency(), rule)
    world.sink.room = False
    sent = 0
    while world.link.first.has_room:
        world.send(bytes(10_000))
        sent += 10_000
        assert sent < 100_000_000, "no back-pressure"
    world.sink.room = True
    world.link.remove(world.toxics[1], world.now_s)
    world.pump()
    world.run()
    assert world.link.first.has_room
    assert len(world.sink.bytes) == sent


@pytest.mark.parametrize("closes", [False, True])
def test_a_socket_sends_what_it_has_taken_before_it_ends(closes: bool) -> None:
    async def run() -> int:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            pairs = [
                (socket.create_connection(listener.getsockname()), listener.accept()[0])
                for _ in range(2)
            ]
        peers = [peer for peer, _ in pairs]
        connection = Connection(pairs[0][1], pairs[1][1], [], lambda _: None)
        side = connection._sources[Stream.UPSTREAM]
        side.other.link.closes = closes
        side.take(bytes(NBYTES), 0.0)
        side.take(END, 0.0)
        assert side.unsent, "not more than the sockets hold"
        count = await asyncio.get_running_loop().run_in_executor(None, count_all, peers[0])
        assert connection.closed == closes
        connection.close()
        for peer in peers:
            peer.close()
        return count

    assert asyncio.run(run()) == NBYTES


def count_all(sock: socket.socket) -> int:
    """Return the number of bytes up to the end of the stream."""
    count = 0
    while more := len(sock.recv(1 << 20)):
        count += more
    return count


RULES = st.one_of(
    st.builds(Latency, latency=st.integers(0, 200), jitter=st.integers(0, 100)),
    st.builds(Bandwidth, rate=st.integers(0, 10)),
    st.builds(SlowClose, delay=st.integers(0, 200)),
    st.builds(
        Slicer,
        average_size=st.integers(0, 500),
        size_variation=st.integers(-5, 500),
        delay=st.integers(0, 10_000),
    ),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 4000)),
        st.tuples(st.just("wait"), st.floats(0.001, 0.3)),
        st.tuples(st.just("add"), RULES),
        st.tuples(st.just("update"), RULES),
        st.tuples(st.just("remove"), st.integers(0, 9)),
        st.tuples(st.just("room"), st.booleans()),
    ),
    max_size=40,
)


@settings(max_examples=300)
@given(STEPS, st.booleans())
def test_every_byte_arrives_once_and_in_order_whatever_changes(
    steps: list[tuple[str, Any]], ends: bool
) -> None:
    world = World()
    stream = random.Random(0).randbytes(40 * 4000)
    sent = b""
    living: list[Toxic] = []
    for action, value in steps:
        if action == "send":
            data = stream[len(sent) : len(sent) + value]
            sent += data
            world.send(data)
        elif action == "wait":
            world.run(world.now_s + value)
        elif action == "add":
            living.append(world.add(value))
        elif action == "update":
            for toxic in living:
                if type(toxic.attributes) is type(value):
                    toxic.attributes = value
                    world.link.update(toxic, world.now_s)
        elif action == "remove" and living:
            world.link.remove(living.pop(value % len(living)), world.now_s)
        elif action == "room":
            world.sink.room = value
        world.pump()
        assert sent.startswith(world.sink.bytes)
    if ends:
        world.send(END)
    world.sink.room = True
    for toxic in living:
        world.link.remove(toxic, world.now_s)
    world.pump()
    assert world.sink.bytes == sent
    assert world.sink.ended == ends
    assert world.link.stages == []
    assert not world.link.closes
