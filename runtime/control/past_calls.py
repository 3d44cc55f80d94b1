"""Calls before the checkpoints of actors, whose callers have the results and may ask again.

A call that a checkpoint contains is not repeated when its actor is rebuilt, so somebody has
to know of it that it took effect: a task that made it may run again, and make it again.
Nobody says when that cannot be any more, so this is bounded: by `PAST_BYTES` for all actors
together, oldest first. Of long results only the error is kept that they are lost.

Calls of drivers are not in here: their programs do not run again.
"""

from __future__ import annotations

from collections import deque

from msgspec.structs import replace

from runtime.control.call_answers import forgotten
from runtime.control.call_memory import LIGHT_BYTES, comes_once
from runtime.control.ids import job_of
from runtime.control.messages import CallRecord
from runtime.control.pieces import record_bytes

PAST_BYTES = 32 << 20
"""Some 30,000 calls."""


class PastCalls:
    """What became of calls, by actor."""

    def __init__(self, bytes_max: int = PAST_BYTES) -> None:
        self._of: dict[bytes, dict[bytes, CallRecord]] = {}
        self._order: deque[tuple[bytes, bytes]] = deque()
        """Actor and call, oldest first; those that were forgotten since may be among them."""
        self._bytes_max = bytes_max
        self._count = 0
        self.nbytes = 0

    def keep(self, actor: bytes, record: CallRecord) -> None:
        """Remember a call that a checkpoint contains, unless nobody can make it again."""
        task, result = record.task, record.result
        if comes_once(task.owner):
            return
        if len(result.payload) > LIGHT_BYTES:
            result = forgotten(task, result.node)
        calls = self._of.setdefault(actor, {})
        if task.array in calls:
            return
        light = CallRecord(replace(task, args=b"", deps=()), result)
        calls[task.array] = light
        self._order.append((actor, task.array))
        self._count += 1
        self.nbytes += record_bytes(light)
        while self.nbytes > self._bytes_max:
            self._forget(*self._order.popleft())
        if len(self._order) > 1000 + 2 * self._count:
            self._order = deque(key for key in self._order if key[1] in self._of.get(key[0], ()))

    def of(self, actor: bytes) -> list[CallRecord]:
        """Return what is known of an actor's calls."""
        return list(self._of.get(actor, {}).values())

    def drop(self, actor: bytes) -> None:
        """An actor does not start again."""
        for call in list(self._of.get(actor, ())):
            self._forget(actor, call)

    def end_job(self, job: bytes) -> None:
        """A job's tasks do not run again."""
        for actor, calls in list(self._of.items()):
            for call in [call for call in calls if job_of(call) == job]:
                self._forget(actor, call)

    def _forget(self, actor: bytes, call: bytes) -> None:
        record = self._of.get(actor, {}).pop(call, None)
        if record is None:
            return
        self._count -= 1
        self.nbytes -= record_bytes(record)
        if not self._of[actor]:
            del self._of[actor]
