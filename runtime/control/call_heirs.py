"""Who waits for a call besides its caller of now: its caller's task may run twice at once.

A task that is placed again makes its calls again, with the same IDs, and whoever called last
is a call's owner. The one before may be alive: its node was declared dead and does not know
it yet, or it runs on beside the new one, of which the GCS did not know it. It may even be the
one that counts, if what it has sent overtakes, or is overtaken by, what the other has. Nobody
here can tell, so all are told who have asked, each on a node of its own (a node tells all of
its clients that own an array)::

    ActorCalls ──the call waits, runs, or waits for the log──> owner, and heirs by node
                                                                   │ an item, its end
                ──it has ended──> answered: `call_memory`          └──> each of them

Who is not alive any more, or has let go of it, takes no notice.
"""

from __future__ import annotations

from runtime.control.context import node_of


class CallHeirs:
    """Those of one actor's calls."""

    def __init__(self) -> None:
        self._of: dict[bytes, dict[int, str]] = {}

    def __bool__(self) -> bool:
        """Whether any call has some."""
        return bool(self._of)

    def asked(self, call: bytes, before: str, now: str) -> None:
        """A call that `before` waits for was made again, by `now`, who is its owner."""
        if node_of(before) != node_of(now):
            heirs = self._of.setdefault(call, {})
            heirs.pop(node_of(now), None)
            heirs[node_of(before)] = before

    def of(self, call: bytes) -> list[str]:
        """Return who else waits for a call, in the order in which they called."""
        return list(self._of.get(call, {}).values()) if self._of else []

    def ended(self, call: bytes) -> list[str]:
        """Return these and forget them."""
        return list(self._of.pop(call, {}).values()) if self._of else []
