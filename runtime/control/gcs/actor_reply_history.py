"""The GCS's memory of calls that the checkpoints of actors contain.

A call that a checkpoint contains is not replayed when its actor is rebuilt, and the replies
that its node remembered are gone with the incarnation (`ReplyCache`). The task that made it may
run again, and make it again. So the GCS keeps its record, without arguments, and gives it to
the next incarnation with the lineage (`ActorLineage.kept`).

Nobody can tell when a call does not come again, so the records of all actors together have
`HISTORY_BYTES_MAX`, and the oldest go first. Of a reply above `REPLY_BYTES_MAX` only the error is
kept that it is lost.

Calls of drivers are not here: their programs do not run again.
"""

from __future__ import annotations

from collections import deque

from msgspec.structs import replace

from raytwin.runtime.control.core.addresses import may_call_again
from raytwin.runtime.control.core.batching import record_bytes
from raytwin.runtime.control.core.failed_values import forgotten
from raytwin.runtime.control.core.ids import job_of
from raytwin.runtime.control.messages import CallRecord

HISTORY_BYTES_MAX = 32 << 20
"""Some 30,000 calls."""
REPLY_BYTES_MAX = 1000
"""Of a longer reply only the error is kept that it is lost."""


class ActorReplyHistory:
    """The calls that checkpoints contain, and their replies, by actor."""

    def __init__(self, bytes_max: int = HISTORY_BYTES_MAX) -> None:
        self._of: dict[bytes, dict[bytes, CallRecord]] = {}
        self._order: deque[tuple[bytes, bytes]] = deque()
        """Actor and call, oldest first; those that were forgotten since may be among them."""
        self._bytes_max = bytes_max
        self._count = 0
        self.nbytes = 0

    def keep(self, actor: bytes, record: CallRecord) -> None:
        """Remember a call that a checkpoint contains, unless nobody can make it again."""
        task, result = record.task, record.result
        if not may_call_again(task.owner):
            return
        if len(result.payload) > REPLY_BYTES_MAX:
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
