"""What a client has not sent to its node yet: tasks, calls, puts, releases and unpins.

Batching saves a frame per item. A batch leaves at once if nothing was sent for ``linger_s``
seconds, else with the next flush; at ``submit_batch_max`` tasks or puts it leaves too.
Consecutive calls of one method of an actor become one run (`call_batches`). Releases of short
results cost the node nothing but a little memory, so they wait longer: until there are
`UNHURRIED_MAX`, or for `UNHURRIED_S`.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from raytwin.runtime.control.client.owned_arrays import Entry
from raytwin.runtime.control.core.call_batches import RUN_MAX, run_of
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context, Timer
from raytwin.runtime.control.core.direct_calls import DirectWays
from raytwin.runtime.control.messages import (
    DirectCall,
    PutObjects,
    RangeResult,
    Release,
    SubmitTasks,
    TaskExtra,
    TaskSpec,
    Unpin,
)

RELEASE_BATCH_MAX = 256
UNHURRIED_MAX = 256
UNHURRIED_S = 0.02
UNHURRIED_BYTES_MAX = 1024
"""The node keeps a longer result no longer than it must: its release does not wait."""
_LOOK_MASK = 7
"""Of tasks submitted in a row, every eighth looks at the clock."""


class SendBuffer:
    """One client's batches for its node."""

    def __init__(
        self, ctx: Context, node: str, config: Config, entries: Mapping[bytes, Entry]
    ) -> None:
        """`node` is the node's address, `entries` the arrays that the client owns."""
        self._ctx = ctx
        self._node = node
        self._linger_s = config.linger_s
        self._batch_max = config.submit_batch_max
        self._entries = entries
        self.direct = DirectWays()
        self._submitted: list[TaskSpec] = []
        self.run_extra: TaskExtra | None = None
        """What the calls of the open run have in common: a call with the same one joins it."""
        self._run_spec: TaskSpec | None = None
        self._run_arrays: list[bytes] = []
        self._run_args: list[bytes] = []
        self._puts: list[RangeResult] = []
        self._released: list[bytes] = []
        self._unhurried: list[bytes] = []
        self._unhurried_timer: Timer | None = None
        self._unpinned: list[bytes] = []
        self._timer: Timer | None = None
        """Runs while anything but unhurried releases is held back."""
        self._flushed_s = float("-inf")
        self.answered = True
        """Whether a result has come since the last tasks were sent."""

    def begin_parent(self) -> None:
        """Another task begins, and what it submits is in a batch of its own."""
        if self._submitted or self._run_arrays:
            self.flush()

    # -- what is held back -------------------------------------------------------

    def submit(self, specs: list[TaskSpec]) -> None:
        """Send ranges of tasks behind the calls submitted before them."""
        if self._run_arrays:
            self._end_run()
        self._submitted += specs
        waiting = len(self._submitted)
        if waiting >= self._batch_max:
            self.flush()
        elif self._timer is None or not waiting & _LOOK_MASK:
            self._submit_soon()

    def begin_run(self, extra: TaskExtra, spec: TaskSpec) -> None:
        """Open a run: its calls share `extra`, the object itself, and all else in `spec`."""
        self._end_run()
        self.run_extra = extra
        self._run_spec = spec

    def call(self, array: bytes, args: bytes) -> None:
        """Add a call to the open run."""
        arrays = self._run_arrays
        arrays.append(array)
        self._run_args.append(args)
        if len(arrays) >= RUN_MAX:
            self.flush()
        elif self._timer is None or not len(arrays) & _LOOK_MASK:
            self._submit_soon()

    def _end_run(self) -> None:
        """Close the open run: what is submitted next goes behind it."""
        if self._run_spec is not None and self.run_extra is not None:
            run = run_of(self._run_spec, self.run_extra, self._run_arrays, self._run_args)
            if self.direct and len(self._run_arrays) == 1:
                self._send_ahead(run)
            self._submitted.append(run)
            self._run_arrays, self._run_args = [], []
            self._run_spec = self.run_extra = None

    def _send_ahead(self, call: TaskSpec) -> None:
        """Send the actor's worker a call directly if no other call of the actor is under way."""
        worker = self.direct.worker_for(call)
        if worker:
            assert call.extra is not None
            actor = self._entries.get(call.extra.call)
            if actor is not None and actor.holds == 1:
                call.extra = replace(call.extra, ahead=True)
                self._ctx.send(worker, DirectCall(call))

    def put(self, result: RangeResult) -> None:
        """Send a value that the client has made."""
        self._puts.append(result)
        if len(self._puts) >= self._batch_max:
            self.flush()
        else:
            self._flush_soon()

    def release(self, array: bytes) -> None:
        """Add an array to the releases; `release_soon` follows."""
        self._released.append(array)

    def release_soon(self) -> None:
        """Send the releases with the next batch, or now if there are many."""
        if len(self._released) >= RELEASE_BATCH_MAX:
            self.flush()
        else:
            self._flush_soon()

    def release_unhurried(self, array: bytes) -> None:
        """Release an array whose node loses little by hearing of it later."""
        self._unhurried.append(array)
        if len(self._unhurried) >= UNHURRIED_MAX:
            self._send_unhurried()
        elif self._unhurried_timer is None:
            self._unhurried_timer = self._ctx.after(UNHURRIED_S, self._send_unhurried)

    def unpin(self, oid: bytes) -> None:
        """Give back the pin of a large object."""
        self._unpinned.append(oid)
        self._flush_soon()

    # -- when it leaves ----------------------------------------------------------

    def flush(self) -> None:
        """Send all but the unhurried releases."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._puts:
            self._ctx.send(self._node, PutObjects(self._puts))
            self._puts = []
        if self._run_arrays:
            self._end_run()
        if self._submitted:
            self._ctx.send(self._node, SubmitTasks(self._submitted))
            self._submitted = []
            self.answered = False
        if self._released:
            self._ctx.send(self._node, Release(self._released))
            self._released = []
        if self._unpinned:
            self._ctx.send(self._node, Unpin(self._unpinned))
            self._unpinned = []
        self._flushed_s = self._ctx.now()

    def flush_all(self) -> None:
        """Send all, the unhurried releases included."""
        self.flush()
        if self._unhurried:
            self._send_unhurried()

    def flush_held(self) -> None:
        """`flush` if anything is held back."""
        if self._timer is not None:
            self.flush()

    def _flush_soon(self) -> None:
        if self._timer is not None:
            return
        if self._ctx.now() - self._flushed_s >= self._linger_s:
            self.flush()
        else:
            self._timer = self._ctx.after(self._linger_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.flush()

    def _submit_soon(self) -> None:
        """Flush at once if every result has come: a program that submits one task at a time
        and waits for it has nothing else for the batch."""
        if self._timer is None:
            if self.answered:
                self.flush()
            else:
                self._flush_soon()
        elif self._ctx.now() - self._flushed_s >= self._linger_s:
            self.flush()  # the program may keep the timer's thread from running

    def _send_unhurried(self) -> None:
        if self._unhurried_timer is not None:
            self._unhurried_timer.cancel()
            self._unhurried_timer = None
        self._ctx.send(self._node, Release(self._unhurried))
        self._unhurried = []
