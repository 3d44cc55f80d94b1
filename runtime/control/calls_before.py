"""Calls that a checkpoint contains, of callers that may run again, at the GCS.

An actor that starts anew gets its checkpoint and the calls logged since. A task, or a
call of another actor, that had called it before the checkpoint, has its results, and runs
again, makes those calls once more: they are answered with what they gave then. So what
became of them is kept, without their arguments. Nobody says when it will not be asked
for any more, hence a bound for all actors together; the oldest go first, and beyond it a
call that comes again takes effect again. A driver's calls come once (`call_memory`).
"""

from __future__ import annotations

from collections import deque

from msgspec.structs import replace

from runtime.control.call_memory import comes_once
from runtime.control.messages import CallRecord
from runtime.control.pieces import record_bytes

BYTES_MAX = 32 << 20
"""Some 100,000 calls with small results."""


class CallsBefore:
    """Those calls by actor; holds at most `bytes_max`."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._calls: dict[bytes, dict[bytes, CallRecord]] = {}
        self._order: deque[tuple[bytes, bytes]] = deque()
        """Actor and call, oldest first; of actors that are forgotten, too."""
        self._bytes_max = bytes_max
        self._count = 0
        self.nbytes = 0

    def __len__(self) -> int:
        return self._count

    def keep(self, actor: bytes, record: CallRecord) -> None:
        """Remember what became of a call, if its caller may make it again."""
        call = record.task.array
        calls = self._calls.get(actor, {})
        if comes_once(record.task.owner) or call in calls:
            return
        self._calls[actor] = calls
        kept = replace(record, task=replace(record.task, args=b"", deps=()), values=())
        calls[call] = kept
        self._order.append((actor, call))
        self._count += 1
        self.nbytes += record_bytes(kept)
        while self.nbytes > self._bytes_max:
            self._drop(*self._order.popleft())

    def of(self, actor: bytes) -> list[CallRecord]:
        """Return the calls of an actor, oldest first."""
        return list(self._calls.get(actor, {}).values())

    def forget(self, actor: bytes) -> None:
        """It does not start again."""
        for record in self._calls.pop(actor, {}).values():
            self._count -= 1
            self.nbytes -= record_bytes(record)
        if len(self._order) > 2 * self._count + 1_000:
            self._order = deque(
                (each, call) for each, call in self._order if call in self._calls.get(each, {})
            )

    def _drop(self, actor: bytes, call: bytes) -> None:
        record = self._calls.get(actor, {}).pop(call, None)
        if record is not None:
            self._count -= 1
            self.nbytes -= record_bytes(record)
