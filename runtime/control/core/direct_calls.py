"""Calls that a driver sends straight to an actor's worker, ahead of their way by the node.

A program that calls an actor, gets the result and calls again waits for two processes
each time, its node and the actor's worker. The worker answers such a driver directly (see
`executor`); when it has done so `Config.direct_after` times it says that it takes calls in
the same way, too::

    driver ──DirectCall──────────────────> worker ──TaskResults──> driver
       └─────SubmitTasks──> node ──RunTasks──> ┘ └────TasksDone──> node

The node's way is the one that counts. All that a call needs (its order, its log, its end
if the actor dies) is there, and nothing of it changes: `DirectCall` only has the worker
begin earlier. Of one call both messages come, in any order, and the first one counts:

==================== ============================== ================================
first                then                           so
==================== ============================== ================================
DirectCall, is free  RunTasks                       runs at the first, once
DirectCall, is busy  RunTasks                       runs at the second
RunTasks             DirectCall                     runs at the first, once
==================== ============================== ================================

A driver sends a call ahead only if it waits for no other call of that actor: what a
caller calls runs in its order. The worker's report may be at the node before the call
itself: it is kept, and counts when that comes (`ActorManager`); it names no other call, which
the node may know. So whatever becomes of such a call, its node hands it on: cancelled, it
goes to the worker and the cancellation behind it, since the worker alone knows whether it
has begun. Calls of actors that may restart are logged before anybody sees their results:
none of them goes this way.
"""

from __future__ import annotations

from raytwin.runtime.control.messages import TaskSpec

ARGS_BYTES_MAX = 16 << 10
"""Longer arguments go by the node alone."""
OPEN_MAX = 64
"""So many actors are called directly by one driver."""


def is_ahead(spec: TaskSpec) -> bool:
    """Whether the worker of a call's actor is sent it by its owner, too."""
    return spec.extra is not None and spec.extra.ahead


class DirectWays:
    """The driver's side: which actors it can call directly."""

    def __init__(self) -> None:
        self._workers: dict[bytes, str] = {}

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._workers)

    def opened(self, actor: bytes, worker: str) -> None:
        """An actor's worker takes calls."""
        if len(self._workers) < OPEN_MAX:
            self._workers[actor] = worker

    def closed(self, worker: str) -> None:
        """It has gone."""
        for actor in [actor for actor, at in self._workers.items() if at == worker]:
            del self._workers[actor]

    def forget(self, actor: bytes) -> None:
        """What is called from here on comes after something that only its node hears of."""
        self._workers.pop(actor, None)

    def worker_for(self, spec: TaskSpec) -> str:
        """Return who takes a single call directly, an empty string if nobody does."""
        assert spec.extra is not None
        if len(spec.args) > ARGS_BYTES_MAX:
            return ""
        return self._workers.get(spec.extra.call, "")


class DirectCalls:
    """The worker's side: each call runs once, by whichever message came first."""

    def __init__(self) -> None:
        self._halves: dict[bytes, bool] = {}
        """Calls of which one message has come: whether that one has it run."""
        self.answered = 0
        """Results that were sent to the driver directly."""

    def __len__(self) -> int:
        return len(self._halves)

    def directly(self, call: bytes, free: bool) -> bool:
        """A call has come from the driver; return whether it is to run now."""
        if self._halves.pop(call, None) is not None:
            return False
        self._halves[call] = free
        return free

    def by_node(self, call: bytes) -> bool:
        """A call that was sent ahead has come from the node; return whether it is to run."""
        runs = self._halves.pop(call, None)
        if runs is None:
            self._halves[call] = True
        return not runs
