"""The calls of an actor that run, and which of them were cancelled meanwhile.

A cancellation takes nothing away from a call that runs: it only is asked to end::

    plain, or in a thread   goes on; it can ask (`is_canceled`), and its value is not wanted
    a generator of these    ends where it would yield its next item
    a coroutine             is cancelled where it waits (`Executor.on_cancel_call`)

Whatever it does, it took effect: it is counted and logged. Its result says that it was
cancelled and after how many items, so that a replay treats it in the same way: it learns
of it as soon as it has yielded as many. What yields nothing learns of it at once.
"""

from __future__ import annotations


class CancelledCalls:
    """Of one actor's worker."""

    def __init__(self) -> None:
        self._beside: set[bytes] = set()
        """The calls that run beside one another."""
        self.after: dict[bytes, int] = {}
        """Those that were cancelled: how many items they had yielded, as far as known.

        Whether there are any is asked twice for each plain call: of the mapping itself, since
        a method would be called for nothing that often.
        """
        self._yielded: dict[bytes, int] = {}

    def begin(self, call: bytes, after: int, beside: bool) -> None:
        """A call begins; a replayed one may have been cancelled `after` so many items."""
        if beside:
            self._beside.add(call)
        if after >= 0:
            self.after[call] = after

    def runs(self, call: bytes) -> bool:
        """Whether it is one of those that run beside one another."""
        return call in self._beside

    def cancel(self, call: bytes) -> None:
        """A call that runs is cancelled, if it was not yet."""
        self.after.setdefault(call, 0)

    def yielded(self, call: bytes, count: int) -> None:
        """It has yielded so many items by now."""
        self._yielded[call] = count

    def __contains__(self, call: bytes) -> bool:
        """Whether a call that runs is to know that it was cancelled."""
        after = self.after.get(call)
        return after is not None and after <= self._yielded.get(call, 0)

    def end(self, call: bytes) -> int:
        """A call has ended; return how many items it had yielded if it was cancelled, else -1."""
        self._beside.discard(call)
        items = self._yielded.pop(call, 0)
        return -1 if self.after.pop(call, None) is None else items
