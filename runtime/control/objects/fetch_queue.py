"""The fetches of a node's store from one other node: their order, and when one is given up.

::

    add ──first: memory at once──> front of the queue ─┐
     └───any other───────────────> its end ────────────┴─> UNDER WAY ──all is here──> DONE
                  no memory: NoRoom <──────────────────────────┴──broken, gone, stalled──> FAILED

Fetches from one node are made one after another. One for which the node has evicted others has its
memory at once and goes first, so that nobody else takes it. A fetch that receives nothing for
`Config.stall_s` is given up; a node that cannot be reached fails all that wait for it. Each fetch
is answered once.

The store moves the bytes: see `Transfers`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.messages import Fetch, Fetched


def fetch_streams(size: int, config: Config) -> int:
    """Return over how many connections an object is fetched."""
    return config.fetch_streams if size >= config.stripe_bytes_min else 1


NODE_DIED = "its node died"
"""Why all fetches from a dead node have failed."""


def not_on_disk(fetch: Fetch) -> Fetched:
    """Return the answer to a fetch from the node's own disk, where the object is not."""
    return Fetched(fetch.object, -1, fetch.size, 0.0, "it is not on disk any more", fetch.node)


class Fetching:
    """A fetch under way, and its memory."""

    __slots__ = ("began_s", "fetch", "offset")

    def __init__(self, fetch: Fetch, offset: int) -> None:
        self.fetch = fetch
        self.offset = offset
        self.began_s: float | None = None
        """When its first byte was requested, which the store knows."""


class Transfers(Protocol):
    """The operations of a store on its memory, and on the bytes that come from one node."""

    def allocate(self, size: int) -> int:
        """Return the offset of new memory; -1 if there is no room."""

    def reserve(self, size: int, done: Callable[[int, str], None]) -> None:
        """Allocate on disk; call `done` with the offset, or with -1 and the reason."""

    def free(self, oid: bytes, offset: int) -> None:
        """Free the memory of a fetch that has failed."""

    def add_copy(self, oid: bytes, offset: int, size: int) -> None:
        """Enter a copy that has arrived in full."""

    def send_no_room(self, oid: bytes, size: int, node: int, reason: str) -> None:
        """Report that an object does not fit."""

    def send(self, message: Fetched) -> None:
        """Answer a fetch."""

    def begin(self, fetching: Fetching) -> None:
        """Have the other node send the bytes."""

    def has_received(self, fetching: Fetching) -> bool:
        """Whether bytes have come since the last such question."""

    def stop(self, fetching: Fetching, stalled: bool) -> None:
        """Let no further byte into the memory of a fetch that has failed."""


class FetchQueue:
    """All fetches from one node."""

    def __init__(
        self,
        node: int,
        config: Config,
        transfers: Transfers,
        now: Callable[[], float],
        after: Callable[[float, Callable[[], None]], Any],
    ) -> None:
        self.node = node
        self._stall_s = config.stall_s
        self._transfers = transfers
        self._now = now
        self._after = after
        self._waiting: deque[tuple[Fetch, int]] = deque()
        """Fetches that wait, with the offset allocated for each, or -1."""
        self.current: Fetching | None = None
        """The fetch under way."""

    def add(self, fetch: Fetch) -> None:
        """Queue a fetch."""
        if not fetch.first:
            self._waiting.append((fetch, -1))
            self.advance()
        elif fetch.in_file:
            self._transfers.reserve(fetch.size, partial(self._add_first, fetch))
        else:
            self._add_first(fetch, self._transfers.allocate(fetch.size))

    def _add_first(self, fetch: Fetch, offset: int, reason: str = "") -> None:
        if offset < 0:
            self._transfers.send_no_room(fetch.object, fetch.size, self.node, reason)
            return
        self._waiting.appendleft((fetch, offset))
        self.advance()

    def advance(self) -> None:
        """Begin the next fetch, if none is under way."""
        while self.current is None and self._waiting:
            fetch, offset = self._waiting.popleft()
            if offset < 0:
                offset = self._transfers.allocate(fetch.size)
            if offset < 0:
                self._transfers.send_no_room(fetch.object, fetch.size, self.node, "")
                continue
            fetching = self.current = Fetching(fetch, offset)
            self._watch(fetching)
            self._transfers.begin(fetching)

    def _watch(self, fetching: Fetching) -> None:
        """Give a fetch up that has received nothing more when the time is over."""

        def look() -> None:
            if self.current is fetching:
                if self._transfers.has_received(fetching):
                    self._watch(fetching)
                else:
                    self.fail("no data came", stalled=True)

        self._after(self._stall_s, look)

    def done(self) -> None:
        """The object is here in full."""
        fetching = self._end()
        fetch, offset = fetching.fetch, fetching.offset
        self._transfers.add_copy(fetch.object, offset, fetch.size)
        self._answer(fetching, offset)
        self.advance()

    def absent(self) -> None:
        """The other node has no such object, or one of another size."""
        self.fail("it is not there any more", gone=True)

    def fail(self, reason: str, gone: bool = False, stalled: bool = False) -> None:
        """The fetch under way has failed."""
        fetching = self._end()
        self._transfers.stop(fetching, stalled)
        self._transfers.free(fetching.fetch.object, fetching.offset)
        self._answer(fetching, -1, reason, gone, stalled)
        self.advance()

    def drop(self, reason: str) -> None:
        """Fail all fetches: the other node is dead, or cannot be reached."""
        waiting, self._waiting = self._waiting, deque()
        if self.current is not None:
            self.fail(reason)
        for fetch, offset in waiting:
            if offset >= 0:
                self._transfers.free(fetch.object, offset)
            self._transfers.send(Fetched(fetch.object, -1, fetch.size, 0.0, reason, self.node))

    def _end(self) -> Fetching:
        fetching, self.current = self.current, None
        assert fetching is not None, "no fetch is under way"
        return fetching

    def _answer(
        self,
        fetching: Fetching,
        offset: int,
        reason: str = "",
        gone: bool = False,
        stalled: bool = False,
    ) -> None:
        fetch, began_s = fetching.fetch, fetching.began_s
        elapsed_s = 0.0 if began_s is None else self._now() - began_s
        self._transfers.send(
            Fetched(fetch.object, offset, fetch.size, elapsed_s, reason, self.node, gone, stalled)
        )
