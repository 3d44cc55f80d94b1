"""One end of a channel: numbers, keeps, acknowledges and sends again.

::

    IDLE ──a frame to send, or always──> DIALING ──Hello──> OPEN ──the link breaks──> WAITING
      ↑                                    │  ↑                │                         │
      │                                    │  └──back-off over─┼─────────────────────────┘
      │          refused, or no answer ────┴──> WAITING        │
      └──────────────nothing is kept, the other end may dial───┘

    any ──a Hello that the peer has dialed──> OPEN          any ──the peer is dead──> CLOSED

======== ============================================================================
state    meaning
======== ============================================================================
IDLE     there is no link, and this end needs none, or must wait until the peer dials
DIALING  this end has dialed and greeted, and waits for the peer's Hello
OPEN     both ends have greeted; frames leave at once
WAITING  a link broke, or could not be opened; this end dials when the back-off is over
CLOSED   the peer is dead, or refuses this process; frames are dropped
======== ============================================================================

If both ends dial at once, the one whose name is less keeps its own link and refuses the other.

Sequence numbers count from 1. A packet has (sequence, acknowledged, frame): a frame with its number
and the number of the last frame received; or no frame, and in place of the sequence how many bytes
this link has brought so far, which shows the sender of a long frame that it moves.

A peer makes *progress* when it acknowledges a kept frame, reports more bytes of one, or sends a
frame or bytes of one, behind which an acknowledgement may wait; the limit of silence counts from
the last progress, or from the first frame kept since. The peer's Hello is progress, too: the peer
lives, and on a slow network dials and Hellos take much of the limit before any frame has left. A
second Hello is no progress unless the peer has made other progress in between: a peer that greets
again and again and acknowledges nothing is unreachable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from raytwin.runtime.control.core.context import Context, Timer

ACK_FRAMES = 64
"""A receiver acknowledges so many frames with a packet of its own, if no frame can carry it..."""
ACK_BYTES = 1 << 20
"""... or frames of so many bytes..."""
ACK_S = 0.1
"""... or after so many seconds."""
KEPT_BYTES_MAX = 1 << 30
"""With more bytes of unacknowledged frames than this, a peer is unreachable that has not brought
them down for the limit of silence: it takes less than it is sent, and no memory would be enough."""
BACK_OFF_S = 0.01
"""The first pause before a dial that follows a failure, at most; it doubles each time."""
BACK_OFF_MAX_S = 1.0
"""The longest pause, or half the silence after which a link is replaced if that is less: however
often links break, several dials fall into the limit of silence."""
LOOKS = 4
"""How often a channel looks for progress before it replaces a link."""
LOOKS_MAX = 64
"""How often it looks at most, if a dial is to be given up between two of these."""


def look_s(stall_s: float) -> float:
    """Return how often a channel looks for progress."""
    return stall_s / LOOKS


class State(Enum):
    """See the table above."""

    IDLE = "idle"
    DIALING = "dialing"
    OPEN = "open"
    WAITING = "waiting"
    CLOSED = "closed"


class Dials(Enum):
    """When an end of a channel dials."""

    NEVER = "never"
    """The peer's address is not known here: the head waits for nodes to dial."""
    WHEN_NEEDED = "when needed"
    """While frames wait for an acknowledgement."""
    ALWAYS = "always"
    """The peer cannot dial, and may have something to send."""


class Hello(Struct, array_like=True, frozen=True):
    """The first packet of each end on a link."""

    name: str
    """The sender's address, such as ``node:3`` or ``head``."""
    incarnation: int
    """Of a node: how often it was started; else 1."""
    session: int
    """The number of the sender's end of the channel, which no other end ever has."""
    expected: int
    """The session of the receiver's that the sender knows; 0: none yet."""
    received: int
    """The last frame of that session that the sender has received."""


class Me(NamedTuple):
    """This process, as it introduces itself."""

    name: str
    incarnation: int


class Link(Protocol):
    """A connection, as a channel uses it; the world implements it."""

    def greet(self, hello: Hello) -> None:
        """Send a Hello, as the first packet."""

    def write(self, sequence: int, acknowledged: int, frame: Any, nbytes: int) -> None:
        """Send a packet; frames are opaque here, None for an acknowledgement alone."""

    def close(self, reason: str) -> None:
        """Close the connection. The channel has forgotten it."""


class Kept(NamedTuple):
    """A frame that the peer has not acknowledged."""

    sequence: int
    frame: Any
    nbytes: int


class Channel:
    """One end of a channel; its world calls it for every packet, and when a link has ended."""

    def __init__(
        self,
        ctx: Context,
        me: Me,
        session: int,
        peer: str,
        stall_s: float,
        limit_s: float,
        dials: Dials,
        dial: Callable[[Channel], Link | None],
        on_unreachable: Callable[[Channel, str], None],
        on_new_session: Callable[[Channel], None] | None = None,
    ) -> None:
        """`session`: a number that no other end of a channel has, in any process, now or before.

        `stall_s`: the silence after which the channel replaces a link; `limit_s`: that after which
        it calls `on_unreachable` with a reason, as after so long with too many bytes kept.

        `dial` begins to connect and returns the link, or None if the peer has no address now.
        `on_new_session` is called when another end of the peer's name has greeted, because its
        process has started again or had given this one up: all that was kept is dropped.
        """
        assert 0 < stall_s <= limit_s and session
        self.peer = peer
        self.incarnation = 0
        """The peer's, once it has greeted."""
        self.state = State.IDLE
        self.sent = 0
        self.received = 0
        self.kept: deque[Kept] = deque()
        self.kept_bytes = 0
        self._ctx = ctx
        self._me = me
        self._own_session = session
        self._stall_s = stall_s
        self._limit_s = limit_s
        self._dials = dials
        self._dial_peer = dial
        self._on_unreachable = on_unreachable
        self._on_new_session = on_new_session
        self._link: Link | None = None
        self._session = 0
        """The peer's, once it has greeted."""
        self._failures = 0
        """Dials that failed, and links that broke, since the last progress."""
        self._linked_s = 0.0
        """When this end dialed, or when the link became open."""
        self._again: Timer | None = None
        """The end of the back-off."""
        self._unacknowledged = 0
        """Frames received since this end last acknowledged any."""
        self._unacknowledged_bytes = 0
        self._ack_timer: Timer | None = None
        self._acked_s = 0.0
        self._progress_s = 0.0
        """When the peer last made progress, or when a frame first waited for it."""
        self._greeted = False
        """Whether a Hello was progress, and the peer has made no other since."""
        self._least_bytes = 0
        """The fewest bytes kept at a look, since they exceeded `KEPT_BYTES_MAX`..."""
        self._least_s = 0.0
        """... and the time of that look."""
        self._peer_bytes = 0
        """Bytes of this link that the peer has reported."""
        self._watch: Timer | None = None
        self._look_s = 0.0
        self._reported = False

    def start(self) -> None:
        """Dial, if this end always does."""
        if self._dials is Dials.ALWAYS:
            self._dial()

    # -- frames ------------------------------------------------------------------

    def send(self, frame: Any, nbytes: int) -> None:
        """Number a frame, keep it, and send it now or with the next link."""
        if self.state is State.CLOSED:
            return
        self.sent += 1
        if not self.kept:
            self._progress_s = self._ctx.now()
            self._look()
        self.kept.append(Kept(self.sent, frame, nbytes))
        self.kept_bytes += nbytes
        if self._link is not None and self.state is State.OPEN:
            self._unacknowledged = self._unacknowledged_bytes = 0
            self._link.write(self.sent, self.received, frame, nbytes)
        elif self.state is State.IDLE and self._dials is not Dials.NEVER:
            self._dial()

    def on_packet(
        self, link: Link, sequence: int, acknowledged: int, frame: Any, nbytes: int
    ) -> bool:
        """Take a packet; return whether its frame is to be delivered."""
        if link is not self._link or self.state is not State.OPEN:
            return False
        self._on_acknowledged(acknowledged)
        if frame is None:
            if sequence > self._peer_bytes:
                self._peer_bytes = sequence
                self._progress()
            return False
        self._progress()
        if sequence <= self.received:
            return False  # sent again, because its acknowledgement was lost
        if sequence != self.received + 1:
            self._break(f"frame {sequence} arrived after {self.received}")
            return False
        self.received = sequence
        self._unacknowledged += 1
        self._unacknowledged_bytes += nbytes
        if self._unacknowledged >= ACK_FRAMES or self._unacknowledged_bytes >= ACK_BYTES:
            self._acknowledge(0)
        elif self._ack_timer is None:
            self._ack_timer = self._ctx.after(ACK_S, self._on_ack_timer)
        return True

    def on_bytes(self, link: Link, link_bytes: int) -> None:
        """A part of a frame has arrived; `link_bytes`: all bytes of this link so far."""
        if link is self._link and self.state is State.OPEN:
            self._progress()
            if self._ctx.now() - self._acked_s > self._stall_s / LOOKS:
                self._acknowledge(link_bytes)

    def _acknowledge(self, link_bytes: int) -> None:
        assert self._link is not None
        self._unacknowledged = self._unacknowledged_bytes = 0
        self._acked_s = self._ctx.now()
        self._link.write(link_bytes, self.received, None, 0)

    def _on_ack_timer(self) -> None:
        self._ack_timer = None
        if self._unacknowledged and self._link is not None and self.state is State.OPEN:
            self._acknowledge(0)

    def _on_acknowledged(self, number: int) -> None:
        kept = self.kept
        if kept and kept[0].sequence <= number:
            while kept and kept[0].sequence <= number:
                self.kept_bytes -= kept.popleft().nbytes
            self._progress()

    # -- links -------------------------------------------------------------------

    def _hello(self) -> Hello:
        return Hello(*self._me, self._own_session, self._session, self.received)

    def _dial(self) -> None:
        self._again = None
        link = self._dial_peer(self)
        if link is None:
            # A peer without an address has left, unless its address is on its way.
            self.state = State.IDLE
            if self.kept:
                self._wait()
            return
        self.state = State.DIALING
        self._linked_s = self._ctx.now()
        self._link = link
        self._look()
        link.greet(self._hello())

    def on_hello(self, link: Link, hello: Hello) -> None:
        """The peer has greeted, on the link that this end has dialed or on a new one."""
        if self.state is State.CLOSED:
            link.close("the channel is closed")
            return
        answered = link is self._link
        if not answered:
            if self.state is State.DIALING and self._me.name < self.peer:
                link.close("both ends have dialed")
                return
            self._drop_link("replaced by a new connection")
        self._stop_waiting()
        is_new = self._session not in (0, hello.session)
        if is_new:
            # The process that the frames were for has ended.
            self.kept.clear()
            self.kept_bytes = self.sent = self.received = 0
            self._greeted = False
        self._session, self.incarnation = hello.session, hello.incarnation
        if not answered:
            link.greet(self._hello())
        self._link, self.state = link, State.OPEN
        self._linked_s = self._ctx.now()
        self._peer_bytes = self._unacknowledged = self._unacknowledged_bytes = 0
        if self.kept and not self._greeted:
            self._greeted = True
            self._progress_s = self._ctx.now()
        if hello.expected == self._own_session:
            self._on_acknowledged(hello.received)
        for kept in self.kept:
            link.write(kept.sequence, self.received, kept.frame, kept.nbytes)
        if is_new and self._on_new_session is not None:
            self._on_new_session(self)

    def on_lost(self, link: Link) -> None:
        """A link has ended, or could not be opened."""
        if link is self._link:
            self._link = None
            self._wait()

    def _break(self, reason: str) -> None:
        self._drop_link(reason)
        self._wait()

    def _drop_link(self, reason: str) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close(reason)

    def _wait(self) -> None:
        """Dial again after a back-off, if this end needs a link."""
        needed = self._dials is Dials.ALWAYS or (self._dials is Dials.WHEN_NEEDED and self.kept)
        if not needed:
            self.state = State.IDLE
            return
        self.state = State.WAITING
        most_s = min(BACK_OFF_MAX_S, self._stall_s / 2)
        longest_s = min(most_s, BACK_OFF_S * 2.0 ** min(self._failures, 10))
        self._failures += 1
        self._again = self._ctx.after(longest_s * self._ctx.rng.random(), self._dial)

    def _patience_s(self) -> float:
        """Return how long a dial may take. What it sends may be lost, so the first one gives up
        soon; on a slow network later ones have more time. The first three together take 7/4 of
        `stall_s`, and the limit is at least twice `stall_s` (`Config`): a peer whose Hello takes no
        longer than `stall_s` greets before it is reported."""
        return min(self._stall_s, self._stall_s / LOOKS * 2.0 ** min(self._failures, 10))

    def _stop_waiting(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None

    # -- silence -----------------------------------------------------------------

    def _progress(self) -> None:
        self._failures = 0
        self._reported = self._greeted = False
        self._progress_s = self._ctx.now()

    def _look(self) -> None:
        """Look for progress a little later, unless that is due already."""
        if self._watch is None:
            now, delay_s = self._ctx.now(), look_s(self._stall_s)
            if self.state is State.DIALING:
                left_s = self._linked_s + self._patience_s() - now
                delay_s = min(delay_s, max(left_s, self._stall_s / LOOKS_MAX))
            self._look_s = now + delay_s
            self._watch = self._ctx.after(delay_s, self._on_look)

    def _on_look(self) -> None:
        self._watch = None
        if self.state is State.CLOSED:
            return
        now = self._ctx.now()
        # This process itself may have been delayed, and not its peer.
        late_s = now - self._look_s
        self._progress_s += late_s
        self._linked_s += late_s
        self._least_s += late_s
        if self.state is State.DIALING and now - self._linked_s > self._patience_s():
            self._break("no answer")
        if self.kept:
            silent_s = now - self._progress_s
            if silent_s > self._limit_s:
                self._report(f"no acknowledgement for {silent_s:.1f} s")
            since_s = max(self._progress_s, self._linked_s)
            if self.state is State.OPEN and now - since_s > self._stall_s:
                self._break("no acknowledgement")
        if not KEPT_BYTES_MAX < self._least_bytes <= self.kept_bytes:
            self._least_bytes, self._least_s = self.kept_bytes, now
        elif now - self._least_s > self._limit_s:
            self._report(f"{self.kept_bytes:,} bytes wait for an acknowledgement")
        if self.kept or self.state is State.DIALING:
            self._look()

    def _report(self, reason: str) -> None:
        if not self._reported:
            self._reported = True
            self._on_unreachable(self, reason)

    # -- ends --------------------------------------------------------------------

    def fail(self, reason: str) -> None:
        """Report the peer as unreachable: a message for it cannot be sent."""
        self._report(reason)

    def close(self, reason: str) -> None:
        """Drop everything: the peer is dead, or this process is dead for the peer."""
        if self.state is State.CLOSED:
            return
        self.state = State.CLOSED
        self._drop_link(reason)
        self._stop_waiting()
        self.kept.clear()
        self.kept_bytes = 0
        for timer in (self._watch, self._ack_timer):
            if timer is not None:
                timer.cancel()
