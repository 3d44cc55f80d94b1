"""A client of a chain: a component whose ``gcs`` and ``global`` are replicated.

`ChainClient` wraps a component. The messages that the component sends to ``gcs`` or ``global``
in a turn become one request to the chain's head; the tail's outputs reach it as messages of
``gcs`` or ``global``. Requests and outputs are numbered (see `state_machine`), so each takes
effect once, in order, whichever replicas die::

    request   NUMBERED ──> UNCONFIRMED ──ChainOutput.applied──> forgotten
                               └──────ChainConfigured: sent again

With every configuration the client sends its unconfirmed requests to the head, and the tail
the number of the last output that it has. If the client cannot reach a replica, it reports that
to the master, and asks it for the configuration until the answer has come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from raytwin.runtime.control.core.addresses import chain_addresses, chain_of, master_of
from raytwin.runtime.control.core.context import Component, Context, Timer, WrappedContext
from raytwin.runtime.control.messages import (
    ChainAttach,
    ChainConfigured,
    ChainHello,
    ChainOutput,
    ChainRequest,
    Frame,
    Query,
    QueryReply,
    ReplicaInfo,
    ReplicaLost,
    ReplicaSuspected,
)
from raytwin.runtime.control.replication.state_machine import decode_frames, encode_frames

UNACKNOWLEDGED_MAX = 64
"""After so many outputs the client acknowledges them with an empty request."""
ASK_S = 0.02
"""The interval of requests for the configuration while a replica cannot be reached."""

REQUEST_BYTES = 64 << 20
"""A turn with more bytes than this is sent as several requests."""


def _requests(frames: list[Frame]) -> list[bytes]:
    """Encode a turn; a very long one in parts, in order."""
    body = encode_frames(frames)
    count = sum(len(frame.messages) for frame in frames)
    if len(body) <= REQUEST_BYTES or count == 1:
        return [body]
    if len(frames) == 1:
        (whole,) = frames
        half = count // 2
        frames = [
            Frame(whole.source, whole.destination, whole.messages[:half]),
            Frame(whole.source, whole.destination, whole.messages[half:]),
        ]
    half = len(frames) // 2
    return _requests(frames[:half]) + _requests(frames[half:])


class _InnerContext(WrappedContext):
    """The wrapped component's context, which sends messages for the chain as requests."""

    def __init__(self, chained: ChainClient) -> None:
        super().__init__(chained.ctx)
        self._chained = chained
        self._machine = chained.machine

    def send(self, to: str, message: Any) -> None:
        if to in self._machine:
            self._chained.request(to, message)
        else:
            self._ctx.send(to, message)


class ChainClient:
    """Runs a component as a client of a chain; is a component itself.

    For several chains the clients are nested: each takes its own chain's outputs. A component
    with a method `take` gets the outputs as whole frames.
    """

    def __init__(
        self,
        ctx: Context,
        address: str,
        make: Callable[[Context], Component],
        chain: int = 0,
        born: float | None = None,
    ) -> None:
        """`born` distinguishes this client from earlier ones of its address: a node's incarnation;
        by default the time."""
        self.ctx = ctx
        self.address = address
        self.master = master_of(chain)
        self.machine = chain_addresses(chain)
        """The addresses of the components that the chain replicates."""
        self.born = ctx.now() if born is None else born
        self.epoch = 0
        self.members: dict[str, ReplicaInfo] = {}
        """By name, the head first."""
        self.received = 0
        """The number of the last output."""
        self.unconfirmed: deque[tuple[int, bytes]] = deque()
        self._sequence = 0
        self._acknowledged = 0
        self._joining = ""
        self._frames: list[Frame] = []
        self._asking: Timer | None = None
        self._chain = chain
        self.inner = make(_InnerContext(self))
        self._take: Callable[[Frame], None] | None = getattr(self.inner, "take", None)

    def start(self) -> None:
        """Ask for the configuration, also when a connection to the master is restored."""
        self.ctx.send(self.master, ChainHello(self.address, self.born))

    def introduce(self) -> None:
        """Send an empty request: when it is confirmed, the chain knows this client."""
        self._sequence += 1
        self.unconfirmed.append((self._sequence, encode_frames([])))

    def handle(self, source: str, message: Any) -> None:
        """Take a message of the chain, or pass it to the component."""
        kind = type(message)
        if kind is ChainOutput and chain_of(source) == self._chain:
            self._on_output(message)
        elif kind is ChainConfigured and source == self.master:
            self._on_configured(message)
        elif (
            kind is ReplicaLost
            and chain_of(message.name) == self._chain
            and self.address != self.master
        ):
            self._on_lost(message)
        elif kind is Query and message.kind == "chain":
            self.ctx.send(source, QueryReply(message.key, source, self.rows()))
        else:
            self.inner.handle(source, message)

    def end_turn(self) -> None:
        """End the component's turn; send its messages for the chain as a request."""
        self.inner.end_turn()
        if self._frames or self.received - self._acknowledged >= UNACKNOWLEDGED_MAX:
            frames, self._frames = self._frames, []
            for body in _requests(frames):
                self._sequence += 1
                self.unconfirmed.append((self._sequence, body))
                self._send(*self.unconfirmed[-1])

    def request(self, to: str, message: Any, source: str = "") -> None:
        """Add a message to this turn's request."""
        source = source or self.address
        last = self._frames[-1] if self._frames else None
        if last is not None and last.destination == to and last.source == source:
            last.messages.append(message)
        else:
            self._frames.append(Frame(source, to, [message]))

    @property
    def confirmed(self) -> int:
        """The last request that the chain has confirmed."""
        return self.unconfirmed[0][0] - 1 if self.unconfirmed else self._sequence

    def rows(self) -> list[dict[str, Any]]:
        """Return a row about each chain: that of this client, and of nested ones."""
        row = {
            "chain": self._chain,
            "epoch": self.epoch,
            "members": len(self.members),
            "names": list(self.members),
            "joining": self._joining,
        }
        return [row, *(self.inner.rows() if isinstance(self.inner, ChainClient) else ())]

    def _send(self, sequence: int, body: bytes) -> None:
        if self.members:
            self._acknowledged = self.received
            head = next(iter(self.members))
            self.ctx.send(
                head,
                ChainRequest(self.epoch, self.address, self.born, sequence, self.received, body),
            )

    def _on_output(self, message: ChainOutput) -> None:
        if message.born != self.born:
            return  # for a former process of this address
        while self.unconfirmed and self.unconfirmed[0][0] <= message.applied:
            self.unconfirmed.popleft()
        # Any other number is a duplicate: from a former tail and from the present one.
        if message.body and message.sequence == self.received + 1:
            self.received += 1
            for frame in decode_frames(message.body):
                if self._take is not None:
                    self._take(frame)
                    continue
                for inner in frame.messages:
                    self.inner.handle(frame.source, inner)

    def _on_configured(self, message: ChainConfigured) -> None:
        if message.epoch < self.epoch:
            return
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None
        self.epoch = message.epoch
        self.members = {info.name: info for info in message.members}
        self._joining = message.joining.name if message.joining is not None else ""
        *_, tail = self.members
        self.ctx.send(tail, ChainAttach(self.epoch, self.address, self.born, self.received))
        for sequence, body in self.unconfirmed:
            self._send(sequence, body)

    def _on_lost(self, message: ReplicaLost) -> None:
        if message.name in self.members:
            self.ctx.send(self.master, ReplicaSuspected(message.name, message.reason))
            self._ask_later()

    def _ask_later(self) -> None:
        if self._asking is None:
            self._asking = self.ctx.after(ASK_S, self._ask)

    def _ask(self) -> None:
        self._asking = None
        self.start()
        self._ask_later()
