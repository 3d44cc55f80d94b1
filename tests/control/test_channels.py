"""Two ends of a channel over a network that breaks: what arrives is what was sent.

The network of these tests holds packets back, loses them with their connection, refuses dials and
loses single packets, all by a seed.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

import pytest

from raytwin.runtime.control.channels.channel import (
    KEPT_BYTES_MAX,
    Channel,
    Dials,
    Hello,
    Me,
    State,
)

LIMIT_S = 5.0


class Timer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Pipe:
    """A connection; packets arrive in order after a delay, until it breaks."""

    def __init__(self, net: Net) -> None:
        self.net = net
        self.alive = True
        self.ends: list[End] = []
        self.open_s = net.now_s + net.set_up_s
        self.last_s = 0.0

    def carry(self, to: End, packet: tuple[Any, ...]) -> None:
        net = self.net
        if net.rng.random() < net.loss and packet[0] != "hello":
            return
        sent_s = max(net.now_s, self.open_s)
        due_s = max(sent_s + net.delay_s * net.rng.random(), self.last_s)
        self.last_s = due_s
        net.at(due_s, lambda: self.alive and to.arrive(packet))

    def cut(self) -> None:
        if self.alive:
            self.alive = False
            for end in self.ends:
                self.net.at(self.net.now_s, end.lost)


class End:
    """One end of a connection, as the channel sees it."""

    def __init__(self, side: Side, pipe: Pipe) -> None:
        self.side = side
        self.pipe = pipe
        self.open = True
        self.other: End
        pipe.ends.append(self)

    def greet(self, hello: Hello) -> None:
        self.pipe.carry(self.other, ("hello", hello))

    def write(self, sequence: int, acknowledged: int, frame: Any, nbytes: int) -> None:
        self.side.written += 1
        self.pipe.carry(self.other, (sequence, acknowledged, frame, nbytes))

    def close(self, reason: str) -> None:
        self.open = False
        self.side.closed.append(reason)
        self.pipe.net.at(self.pipe.net.now_s + self.pipe.net.delay_s, self.pipe.cut)

    def arrive(self, packet: tuple[Any, ...]) -> None:
        if not self.open:
            return
        if packet[0] == "hello":
            self.side.channel.on_hello(self, packet[1])
        elif self.side.channel.on_packet(self, *packet):
            self.side.got.append(packet[2])

    def lost(self) -> None:
        if self.open:
            self.open = False
            self.side.channel.on_lost(self)


class Side:
    """A process with one channel; also its context."""

    def __init__(self, net: Net, name: str, peer: str, dials: Dials, session: int) -> None:
        self.net = net
        self.rng = random.Random(f"{net.seed}/{name}/{session}")
        self.got: list[Any] = []
        self.unreachable: list[str] = []
        self.sessions = 0
        self.written = 0
        self.closed: list[str] = []
        self.channel = Channel(
            self, Me(name, 1), session, peer, LIMIT_S / 2, LIMIT_S, dials, self._dial,
            lambda _, reason: self.unreachable.append(reason), self._on_new_session,
        )  # fmt: skip

    def now(self) -> float:
        return self.net.now_s

    def send(self, to: str, message: Any) -> None:
        raise AssertionError("a channel sends no messages of components")

    def after(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(callback)
        self.net.at(self.net.now_s + delay_s, lambda: timer.callback and timer.callback())
        return timer

    def _dial(self, channel: Channel) -> End:
        pipe = Pipe(self.net)
        mine, theirs = End(self, pipe), End(self.net.other(self), pipe)
        mine.other, theirs.other = theirs, mine
        self.net.pipes.append(pipe)
        if self.net.refuse:
            self.net.at(self.net.now_s + self.net.delay_s, pipe.cut)
        return mine

    def _on_new_session(self, channel: Channel) -> None:
        self.sessions += 1


class Net:
    """The two processes, the connections between them, and time."""

    def __init__(
        self, seed: int = 0, a: Dials = Dials.WHEN_NEEDED, b: Dials = Dials.WHEN_NEEDED
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now_s = 1.0
        self.delay_s = 0.01
        self.set_up_s = 0.0
        """How long packets of a new connection wait until it is set up."""
        self.loss = 0.0
        self.refuse = False
        self.pipes: list[Pipe] = []
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0
        self.sides: list[Side] = []
        self.sides.append(Side(self, "node:1", "node:2", a, 11))
        self.sides.append(Side(self, "node:2", "node:1", b, 22))
        for side in self.sides:
            side.channel.start()

    def other(self, side: Side) -> Side:
        return self.sides[0] if side is self.sides[1] else self.sides[1]

    def at(self, due_s: float, call: Callable[[], object]) -> None:
        self._count += 1
        heapq.heappush(self._events, (due_s, self._count, call))

    def run(self, for_s: float) -> None:
        end_s = self.now_s + for_s
        while self._events and self._events[0][0] <= end_s:
            self.now_s, _, call = heapq.heappop(self._events)
            call()
        self.now_s = end_s

    def cut(self) -> None:
        for pipe in self.pipes:
            pipe.cut()
        self.pipes.clear()


def test_frames_arrive_in_order_and_are_kept_until_acknowledged() -> None:
    net = Net()
    a, b = net.sides
    for number in range(10):
        a.channel.send(number, 100)
    assert len(a.channel.kept) == 10 and a.channel.kept_bytes == 1000
    net.run(1.0)
    assert b.got == list(range(10))
    assert not a.channel.kept and a.channel.kept_bytes == 0
    assert a.channel.state is b.channel.state is State.OPEN


def test_many_frames_cost_few_acknowledgements() -> None:
    net = Net()
    a, b = net.sides
    a.channel.send("first", 1)
    net.run(1.0)
    before = b.written
    for number in range(640):
        a.channel.send(number, 10)
    net.run(1.0)
    assert b.written - before <= 11


def test_a_frame_carries_the_acknowledgement_of_the_other_direction() -> None:
    net = Net()
    a, b = net.sides
    a.channel.send("there", 10)
    net.run(0.05)
    b.channel.send("and back", 10)
    net.run(0.05)
    assert not a.channel.kept


@pytest.mark.parametrize("seed", range(60))
def test_nothing_is_lost_doubled_or_reordered_while_connections_break(seed: int) -> None:
    rng = random.Random(seed)
    kinds = list(Dials)
    net = Net(seed, Dials.WHEN_NEEDED, rng.choice(kinds))
    a, b = net.sides
    net.loss = rng.choice((0.0, 0.0, 0.02))
    sent: list[list[int]] = [[], []]
    for number in range(400):
        side = rng.randrange(2)
        net.sides[side].channel.send(number, rng.choice((10, 100_000)))
        sent[side].append(number)
        net.run(rng.choice((0.0, 0.001, 0.02)))
        if rng.random() < 0.1:
            net.cut()
        net.refuse = rng.random() < 0.05
    net.refuse, net.loss = False, 0.0
    # Where one end never dials, the other one comes when it has a frame of its own.
    for number in range(400, 404):
        a.channel.send(number, 10)
        sent[0].append(number)
        net.run(20.0)
    assert b.got == sent[0] and a.got == sent[1], f"seed {seed}"
    assert not a.channel.kept and not b.channel.kept, f"seed {seed}"


def test_both_ends_may_dial_at_once_and_share_one_connection() -> None:
    net = Net()
    a, b = net.sides
    a.channel.send("from a", 10)
    b.channel.send("from b", 10)
    net.run(1.0)
    assert a.got == ["from b"] and b.got == ["from a"]
    assert sum(pipe.alive for pipe in net.pipes) == 1


def test_a_peer_that_acknowledges_nothing_is_unreachable_after_the_limit_and_not_before() -> None:
    net = Net()
    a, _ = net.sides
    net.loss = 1.0  # connections stay, packets do not arrive
    a.channel.send("lost", 10)
    net.run(LIMIT_S * 0.99)
    assert not a.unreachable
    net.run(LIMIT_S * 0.3)
    assert len(a.unreachable) == 1
    net.loss = 0.0
    net.run(LIMIT_S)
    assert not a.channel.kept and net.sides[1].got == ["lost"]


def test_a_contact_of_many_round_trips_accuses_nobody() -> None:
    """With 0.3 s each way, dials, Hellos and acknowledgement take longer than the limit."""
    net = Net()
    net.rng.random = lambda: 1.0  # type: ignore[method-assign]
    net.delay_s, net.set_up_s = 0.3, 1.85
    a, b = net.sides
    for contact in range(1, 4):
        a.channel.send(contact, 10)
        net.run(LIMIT_S)
        assert a.channel.kept, "it was to take longer"
        net.run(LIMIT_S)
        assert not a.unreachable and not b.unreachable
        assert b.got == list(range(1, contact + 1)) and not a.channel.kept
        net.cut()
        net.run(1.0)


@pytest.mark.parametrize("every_s", [0.1, 0.5, LIMIT_S / 2])
def test_a_peer_that_only_greets_is_unreachable_after_the_limit(every_s: float) -> None:
    net = Net()
    a, b = net.sides
    a.channel.send("first", 10)
    net.run(1.0)
    net.loss = 1.0  # of all packets but Hellos
    a.channel.send("second", 10)
    began_s = net.now_s
    hellos = 0
    on_hello = a.channel.on_hello

    def count(link: Any, hello: Hello) -> None:
        nonlocal hellos
        hellos += 1
        on_hello(link, hello)

    a.channel.on_hello = count  # type: ignore[method-assign]
    while not a.unreachable and net.now_s < began_s + 10 * LIMIT_S:
        assert net.now_s < began_s + every_s + 1.5 * LIMIT_S
        net.cut()
        net.run(every_s)
    assert net.now_s > began_s + LIMIT_S and hellos > 1 and not b.unreachable
    assert b.got == ["first"]


def slow_net(bytes_per_s: float) -> Net:
    """Return a net whose first process has a connection on which frames are slow."""
    net = Net()
    a, b = net.sides
    a.channel.send("first", 10)
    net.run(1.0)
    (pipe,) = [pipe for pipe in net.pipes if pipe.alive]
    free_s = net.now_s

    def carry(to: End, packet: tuple[Any, ...]) -> None:
        nonlocal free_s
        if to.side is b and packet[0] != "hello":
            free_s = max(free_s, net.now_s) + packet[3] / bytes_per_s
        net.at(free_s if to.side is b else net.now_s, lambda: to.arrive(packet))

    pipe.carry = carry  # type: ignore[method-assign]
    return net


def test_a_peer_that_takes_less_than_it_is_sent_is_unreachable_before_memory_is_full() -> None:
    net = slow_net(KEPT_BYTES_MAX / 100)
    a, _ = net.sides
    for _ in range(100):
        for _ in range(10):
            a.channel.send("much", KEPT_BYTES_MAX // 100)
        net.run(1.0)
        if a.unreachable:
            break
    assert len(a.unreachable) == 1
    assert KEPT_BYTES_MAX < a.channel.kept_bytes < 2 * KEPT_BYTES_MAX


def test_a_peer_that_works_off_more_than_the_bound_is_reachable() -> None:
    net = slow_net(KEPT_BYTES_MAX / 10)
    a, b = net.sides
    for _ in range(300):
        a.channel.send("much", KEPT_BYTES_MAX // 100)
    net.run(8 * LIMIT_S)
    assert not a.unreachable and not a.channel.kept and len(b.got) == 301


def test_a_stalled_connection_is_replaced_before_the_limit() -> None:
    net = Net()
    a, b = net.sides
    a.channel.send("first", 10)
    net.run(1.0)
    (pipe,) = [pipe for pipe in net.pipes if pipe.alive]
    pipe.carry = lambda to, packet: None  # type: ignore[method-assign]
    a.channel.send("second", 10)
    net.run(LIMIT_S * 0.99)
    assert b.got == ["first", "second"] and not a.unreachable


def test_an_idle_channel_makes_no_traffic_and_reports_nobody() -> None:
    net = Net()
    a, b = net.sides
    a.channel.send("only", 10)
    net.run(1.0)
    written = a.written + b.written
    net.loss = 1.0
    net.run(100 * LIMIT_S)
    assert a.written + b.written == written and not a.unreachable and not b.unreachable


def test_bytes_of_a_long_frame_count_as_progress() -> None:
    net = Net()
    a, b = net.sides
    a.channel.send("first", 10)
    net.run(1.0)
    (pipe,) = [pipe for pipe in net.pipes if pipe.alive]
    held: list[tuple[Any, ...]] = []
    carry = pipe.carry
    pipe.carry = lambda to, packet: held.append(packet)  # type: ignore[method-assign]
    a.channel.send("long", 3_000_000)
    pipe.carry = carry  # type: ignore[method-assign]
    theirs = next(end for end in pipe.ends if end.side is b)
    for step in range(1, 40):
        net.run(LIMIT_S / 4)
        b.channel.on_bytes(theirs, step * 1000)
    assert not a.unreachable and not a.closed and not b.closed
    theirs.arrive(held[0])
    net.run(1.0)
    assert b.got == ["first", "long"] and not a.channel.kept


def test_an_acknowledgement_may_wait_behind_a_long_frame() -> None:
    net = Net()
    a, b = net.sides
    a.channel.send("first", 10)
    net.run(1.0)
    (pipe,) = [pipe for pipe in net.pipes if pipe.alive]
    theirs = next(end for end in pipe.ends if end.side is b)
    held: list[tuple[Any, ...]] = []
    carry = pipe.carry

    def hold(to: End, packet: tuple[Any, ...]) -> None:
        if to is theirs:
            held.append(packet)
        else:
            carry(to, packet)

    pipe.carry = hold  # type: ignore[method-assign]
    a.channel.send("long", 3_000_000)
    b.channel.send("short", 10)
    for step in range(1, 40):
        net.run(LIMIT_S / 4)
        b.channel.on_bytes(theirs, step * 1000)
    assert a.got == ["short"] and b.channel.kept
    assert not b.unreachable and not a.closed and not b.closed
    for packet in held:
        theirs.arrive(packet)
    net.run(1.0)
    assert b.got == ["first", "long"] and not a.channel.kept and not b.channel.kept


def test_a_peer_that_has_started_again_gets_nothing_that_was_for_the_last_process() -> None:
    net = Net()
    a, b = net.sides
    a.channel.send("first", 10)
    net.run(1.0)
    net.loss = 1.0
    a.channel.send("for the dead", 10)
    net.cut()
    net.loss = 0.0
    again = net.sides[1] = Side(net, "node:2", "node:1", Dials.WHEN_NEEDED, 23)
    net.run(2.0)
    assert again.got == [] and a.sessions == 1 and not a.channel.kept
    a.channel.send("for the new one", 10)
    again.channel.send("hello", 10)
    net.run(2.0)
    assert again.got == ["for the new one"] and a.got == ["hello"] and b.got == ["first"]


def test_a_closed_channel_drops_its_frames_and_refuses_its_peer() -> None:
    net = Net()
    a, b = net.sides
    a.channel.send("first", 10)
    net.run(1.0)
    a.channel.close("node 2 is dead")
    a.channel.send("second", 10)
    b.channel.send("from the dead", 10)
    net.run(LIMIT_S / 2)
    assert a.got == [] and not a.channel.kept and a.channel.state is State.CLOSED


def test_a_delay_of_the_process_itself_accuses_nobody() -> None:
    net = Net()
    a, _ = net.sides
    a.channel.send("first", 10)
    net.run(1.0)
    # The process stops for longer than the limit while a frame is on its way.
    a.channel.send("second", 10)
    held = net._events
    net._events = []
    net.now_s += 3 * LIMIT_S
    # The peer's acknowledgement is not read before the timers that were due meanwhile.
    for due_s, count, call in sorted(held):
        heapq.heappush(net._events, (max(due_s, net.now_s), count, call))
    net.run(LIMIT_S * 0.4)
    assert not a.unreachable
