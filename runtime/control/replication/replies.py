"""The tail's replies: outputs that it owes clients, and sends them.

::

    a command of a client was applied ──┐
    ChainAttach: here I am, and have    ├──> OWED ──its life attached, and outputs may leave──>
    all outputs up to that one ─────────┘     ↑                          ChainOutput
                                              └── some may not leave yet ─────┘

The machine's sessions keep outputs until the client has confirmed them, so another tail can
send them again. `Replies` knows only which life of a client is attached, and the last output
sent to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.messages import ChainAttach, ChainOutput
from raytwin.runtime.control.replication.state_machine import Machine


class Replies:
    """The clients of one replica, for the time that it is the tail."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._owed: dict[str, None] = {}
        """Clients that the tail owes an answer."""
        self._attached: dict[str, tuple[float, int]] = {}
        """The tail's clients: which life of each, and the last output sent to it."""

    def attach(self, message: ChainAttach) -> None:
        """Note a client that has attached, and owe it a reply."""
        self._attached[message.client] = (message.born, message.received)
        self._owed[message.client] = None

    def owe(self, clients: Iterable[str]) -> None:
        """Reply to these clients once their outputs may leave."""
        for client in clients:
            self._owed[client] = None

    def owe_nobody(self) -> None:
        """Forget what is owed: another replica is the tail."""
        self._owed.clear()

    def detach(self) -> None:
        """Forget all clients: in a new epoch each attaches again."""
        self._attached.clear()

    def detach_head(self) -> None:
        """Forget the clients of the head's process, which a new process replaces: it has not
        got the outputs that were sent to the old one."""
        nodes = {c: a for c, a in self._attached.items() if c.startswith("node:")}
        self._attached = nodes

    def send(self, machine: Machine, limit: int) -> None:
        """Send clients the outputs of commands up to `limit` that they lack."""
        owed, self._owed = self._owed, {}
        for client in owed:
            session = machine.sessions.get(client)
            born, sent = self._attached.get(client, (0.0, 0))
            if session is None or client not in self._attached or session.born != born:
                continue  # it will attach, or its first request is on its way
            applied = session.applied if session.applied_index <= limit else 0
            sent_any = False
            skip = len(session.outbox) - (session.sent - sent)
            for output in islice(session.outbox, max(0, skip), None):
                if output.index > limit:
                    break
                self._ctx.send(client, ChainOutput(applied, output.sequence, output.body, born))
                sent = output.sequence
                sent_any = True
            if not sent_any and applied:
                self._ctx.send(client, ChainOutput(applied, 0, b"", born))
            self._attached[client] = (born, sent)
            if sent < session.sent or not applied:
                self._owed[client] = None
