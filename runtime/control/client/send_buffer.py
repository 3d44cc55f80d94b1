"""Messages that a client has not sent to its node yet: tasks, calls, puts, releases, unpins.

Batching saves a frame per item. A batch leaves at once if nothing was sent for ``linger_s``
seconds, else with the next flush; at ``submit_batch_max`` tasks or puts it leaves too. The first
task of a batch leaves at once, with the releases that are held back, if a result has come since
the last batch: the node may have nothing else to run, and a program that submits one task at a
time and waits for it has nothing else for the batch. Consecutive calls of one method of an actor
become one batch (`call_batches`).
"""

from __future__ import annotations

from raytwin.runtime.control.core.call_batches import BATCH_MAX, batch_of
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context, Timer
from raytwin.runtime.control.messages import (
    PutObjects,
    RangeResult,
    Release,
    SubmitTasks,
    TaskExtra,
    TaskSpec,
    Unpin,
)

RELEASE_BATCH_MAX = 256
_CLOCK_MASK = 7
"""The buffer reads the clock at every eighth of consecutive submissions."""


class SendBuffer:
    """One client's batches for its node."""

    def __init__(self, ctx: Context, node: str, config: Config) -> None:
        """`node` is the node's address."""
        self._ctx = ctx
        self._node = node
        self._linger_s = config.linger_s
        self._batch_max = config.submit_batch_max
        self._submitted: list[TaskSpec] = []
        self.batch_extra: TaskExtra | None = None
        """The common fields of the calls of the open batch: a call with the same object joins
        it."""
        self._batch_spec: TaskSpec | None = None
        self._batch_arrays: list[bytes] = []
        self._batch_args: list[bytes] = []
        self._puts: list[RangeResult] = []
        self._released: list[bytes] = []
        self._unpinned: list[bytes] = []
        self._timer: Timer | None = None
        """Runs while the buffer is not empty."""
        self._flushed_s = float("-inf")
        self.answered = True
        """Whether a result has arrived since the buffer last sent tasks."""
        self.effects = 0
        """How many messages were sent whose effect others may see: all but releases and unpins."""
        self.last = b""
        """The array of the last of these, if it was a submission: once its result has arrived, the
        node has handled all of them."""

    @property
    def has_tasks(self) -> bool:
        """Whether tasks or calls are not sent yet."""
        return bool(self._submitted or self._batch_arrays)

    def note_effect(self) -> None:
        """A message that is no submission goes to the node beside the buffer."""
        self.effects += 1
        self.last = b""

    def begin_parent(self) -> None:
        """Another task begins: its calls begin a new batch."""
        if self._submitted or self._batch_arrays:
            self.flush()

    # -- adding to the batches ---------------------------------------------------

    def submit(self, specs: list[TaskSpec]) -> None:
        """Add ranges of tasks, after the calls submitted before them."""
        if self._batch_arrays:
            self._end_batch()
        first = not self._submitted
        self._submitted += specs
        waiting = len(self._submitted)
        if waiting >= self._batch_max or (first and self.answered):
            self.flush()
        elif self._timer is None or not waiting & _CLOCK_MASK:
            self._submit_soon()

    def begin_batch(self, extra: TaskExtra, spec: TaskSpec) -> None:
        """Open a batch: its calls share the object `extra` and all other fields of `spec`."""
        self._end_batch()
        self.batch_extra = extra
        self._batch_spec = spec

    def call(self, array: bytes, args: bytes) -> None:
        """Add a call to the open batch."""
        arrays = self._batch_arrays
        first = not (arrays or self._submitted)
        arrays.append(array)
        self._batch_args.append(args)
        if len(arrays) >= BATCH_MAX or (first and self.answered):
            self.flush()
        elif self._timer is None or not len(arrays) & _CLOCK_MASK:
            self._submit_soon()

    def _end_batch(self) -> None:
        """Close the open batch: later submissions follow it."""
        if self._batch_spec is not None and self.batch_extra is not None:
            batch = batch_of(
                self._batch_spec, self.batch_extra, self._batch_arrays, self._batch_args
            )
            self._submitted.append(batch)
            self._batch_arrays, self._batch_args = [], []
            self._batch_spec = self.batch_extra = None

    def put(self, result: RangeResult) -> None:
        """Add a value that the client has made."""
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

    def unpin(self, oid: bytes) -> None:
        """End the pin of a large object."""
        self._unpinned.append(oid)
        self._flush_soon()

    # -- sending the batches -----------------------------------------------------

    def flush(self) -> None:
        """Send all batches."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._puts:
            self._ctx.send(self._node, PutObjects(self._puts))
            self._puts = []
            self.effects += 1
        if self._batch_arrays:
            self._end_batch()
        if self._submitted:
            self._ctx.send(self._node, SubmitTasks(self._submitted))
            self.effects += 1
            self.last = self._submitted[-1].array
            self._submitted = []
            self.answered = False
        if self._released:
            self._ctx.send(self._node, Release(self._released))
            self._released = []
        if self._unpinned:
            self._ctx.send(self._node, Unpin(self._unpinned))
            self._unpinned = []
        self._flushed_s = self._ctx.now()

    def flush_held(self) -> None:
        """`flush` unless the buffer is empty."""
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
        if self._timer is None:
            self._flush_soon()
        elif self._ctx.now() - self._flushed_s >= self._linger_s:
            self.flush()  # The program may keep the timer's thread from running.
