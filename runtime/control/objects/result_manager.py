"""The results of a node: made here, or sent to clients of this node.

When a range of tasks has ended here the node does one of these::

    owner on another node ──> keeps the values, sends TaskResults to the owner's node
    owner here ─────────────> keeps the values, sends TaskResults to the owner
    the owner released it, other nodes need it ──> keeps the values
    the owner died ─────────> frees the values

The result of an actor's call goes to the owner's node with its small values; only large values
stay on the actor's node. The reply cache and the actor's log have the result with the places of its
large values. Once the value's owner has released it, its place may have another object. So the
owner of a repeated call gets::

    small values ────────────────────────────────> the same
    large ones, in memory here ──────────────────> the same, with their present places
    large ones that were made here, gone ────────> ObjectLostError
    large ones that were made elsewhere ─────────> the same: a fetch checks their places
    the items of a stream, cached ───────────────> each of them as above
    the items of a stream, not cached ───────────> ObjectLostError
    a reply that the cache has dropped ──────────> ObjectLostError

The call does not run again: the state of its actor has changed since. When an actor is
reconstructed, the replay makes the large values again (`ResultManager.replayed`) for owners that
live, and for the GCS, which knows whether lost values descend from what was released.

The node keeps and delivers consecutive results that a worker reports as one batch in one step if
each is new here and only its owner waits for it; else one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from msgspec.structs import replace

from raytwin.runtime.control.core.addresses import is_gcs, node_of
from raytwin.runtime.control.core.call_batches import results_of, split
from raytwin.runtime.control.core.context import Context, Handlers
from raytwin.runtime.control.core.failed_values import failed_result, is_lost
from raytwin.runtime.control.core.ids import STREAM_BASE, job_of, object_id
from raytwin.runtime.control.core.range_set import Ranges
from raytwin.runtime.control.core.task_ranges import part_of
from raytwin.runtime.control.messages import (
    SYSTEM_ERROR,
    ForwardResults,
    Missing,
    ObjectsMissing,
    RangeResult,
    ResultsMissing,
    TaskResults,
    TaskSpec,
)
from raytwin.runtime.control.messages.errors import Loss, LossCause, Refusal
from raytwin.runtime.control.objects.gcs_write_log import GcsWriteLog
from raytwin.runtime.control.objects.node_objects import NodeObjects
from raytwin.runtime.control.ownership.contained_references import ContainedReferences
from raytwin.runtime.control.ownership.owner_table import NOBODY


class ResultManager:
    """Keeps the results of one node, logs them, and delivers them to their owners."""

    def __init__(
        self,
        ctx: Context,
        node: int,
        objects: NodeObjects,
        log: GcsWriteLog,
        contained_references: ContainedReferences,
        received: Callable[[bytes], bool],
        all_received: Callable[[Sequence[bytes]], bool],
        any_awaited: Callable[[Sequence[bytes]], bool],
        created: Collection[bytes],
        is_over: Callable[[bytes], bool],
    ) -> None:
        """`received` removes a call from those under way from this node, and returns whether it
        was one; `all_received` does so for several calls if all are under way; `any_awaited`
        returns whether any of several calls is; `created` are the actors that clients of this
        node created; `is_over` returns whether an array's job has ended."""
        self._ctx = ctx
        self._node = node
        self._objects = objects
        self._log = log
        self._contained_references = contained_references
        self._received = received
        self._all_received = all_received
        self._any_awaited = any_awaited
        self._created = created
        self._is_over = is_over
        self._for_others: set[bytes] = set()
        """Arrays that their owner here has released, and that other nodes still need."""
        self.claims: dict[bytes, dict[str, None]] = {}
        """By array: clients that have taken it over, besides the owner in its task specs."""
        self._gathered: list[RangeResult] | None = None
        """Results of the worker's report that the node is handling; None: it handles none."""

    def handlers(self) -> Handlers:
        return {TaskResults: self.on_results}

    # -- delivery ------------------------------------------------------------------

    def gather(self) -> None:
        """Buffer results until `flush`, so that each owner gets one message per report."""
        self._gathered = []

    def flush(self) -> None:
        """Deliver the gathered results."""
        gathered, self._gathered = self._gathered, None
        if gathered:
            self._deliver(gathered)

    def _ended(self, results: list[RangeResult]) -> None:
        """Deliver results, or gather them."""
        if self._gathered is None:
            self._deliver(results)
        else:
            self._gathered += results

    def _deliver(self, results: list[RangeResult]) -> None:
        """Send results to the clients of this node that own them now."""
        of_owner: dict[str, list[RangeResult]] = {}
        for result in results:
            for owner in self._objects.owners.owners_of(result.array):
                of_owner.setdefault(owner, []).append(result)
        for owner, results in of_owner.items():
            self._ctx.send(owner, TaskResults(owner, results))

    def deliver_again(self, result: RangeResult) -> None:
        """Deliver a result that its worker, which has died, may not have sent to the driver."""
        self._deliver([result])

    def _send(self, owner: str, results: list[RangeResult]) -> None:
        """Send results to an owner, or to the owner's node."""
        to = owner if node_of(owner) == self._node else f"node:{node_of(owner)}"
        self._ctx.send(to, TaskResults(owner, results))

    # -- results -------------------------------------------------------------------

    def keep_for_others(self, array: bytes) -> None:
        """Keep a released array's results until the GCS frees them."""
        self._for_others.add(array)

    def made_again(self, array: bytes, owner: str) -> None:
        """A run after the first ends, whose owner here may have released it meanwhile: a lost value
        for which another node waits may descend from it, which the GCS knows."""
        if node_of(owner) == self._node and array not in self._objects.owners:
            self.keep_for_others(array)

    def released(self, arrays: Sequence[bytes]) -> None:
        """Forget the claims on arrays that their owners here released."""
        if self.claims:
            for array in arrays:
                self.claims.pop(array, None)

    def freed(self, array: bytes) -> None:
        """The GCS frees an array."""
        self._for_others.discard(array)

    def end_job(self, job: bytes) -> None:
        """Forget the claims of a job that ended."""
        for array in [array for array in self.claims if job_of(array) == job]:
            del self.claims[array]
        self._for_others = {array for array in self._for_others if job_of(array) != job}

    def finish(self, result: RangeResult, owner: str, answered: bool = False) -> None:
        """A range ended on this node: keep its values, and deliver the result.

        `answered`: the worker sends the result to the owner, a driver of this node, itself.
        """
        if result.offsets:
            self._objects.memory.seal(result)
        if result.refs is not None:
            self._take_refs(result, owner)
        if node_of(owner) != self._node:
            new = self._add(result)
            self._log.finish(result)
            self._ctx.send(f"node:{node_of(owner)}", TaskResults(owner, [result]))
            if result.array in self._objects.owners:
                # The owner's task runs again here, and waits for the result, too.
                self._ended(new)
        elif result.array in self._objects.owners:
            new = self._add(result)
            self._log.finish(result)
            if not answered:
                self._ended(new)
        elif result.array in self._for_others:
            self._log.expose(result.array)
            self._objects.add(result)
            self._log.finish(result)
        else:
            # The owner died: no client can ask for the values.
            self._objects.memory.discard(result)
        for claimant in self.claims.get(result.array, ()) if self.claims else ():
            if claimant != owner and node_of(claimant) != self._node:
                self._send(claimant, [result])

    def is_kept(self, array: bytes, owner: str) -> bool:
        """Whether the node keeps results for an owner; not if the owner died."""
        return (
            node_of(owner) != self._node
            or array in self._objects.owners
            or array in self._for_others
        )

    def _add(self, result: RangeResult) -> list[RangeResult]:
        """Keep a result, unless better ones are here; return the results to deliver."""
        if not self._objects.results.is_obsolete_error(result):
            self._objects.add(result)
            return [result]
        # The first run's values are here, so its inputs were released, and this run failed. A
        # client that still iterates the stream gets the error: no more items will arrive.
        self._objects.results.ended_again(result)
        if result.start >= STREAM_BASE:
            return [result]
        # The results here may be copies, which the node did not deliver to a new owner.
        end = result.start + result.count
        here = self._objects.results.of(result.array)
        return [r for r in here if r.start < end and result.start < r.start + r.count]

    def _take_refs(self, result: RangeResult, owner: str) -> None:
        """Keep the references inside the values as long as these are here; see `ownership`."""
        self._contained_references.pass_on(result, owner)
        for claimant in self.claims.get(result.array, ()):
            if claimant != owner:
                self._contained_references.pass_on(result, claimant)
        if self.is_kept(result.array, owner):
            self._contained_references.keep(result)
        else:
            self._contained_references.drop(result)

    def on_results(self, source: str, message: TaskResults) -> None:
        """Take results from another node for a client of this one."""
        owners = self._objects.owners
        results = []
        for sent in self._take_batches(message):
            result = sent
            if result.node == self._node and any(result.sizes):
                # A reconstructed actor sends a reply whose large values were made here.
                result = with_present_places(result, self._objects, self._node)
            # The items of a stream arrive before the call's own result.
            called = result.start < STREAM_BASE and self._received(result.array)
            if result.refs is not None:
                wanted = result.array in owners
                result = self._contained_references.receive(result, message.owner, wanted)
            if result.array not in owners:
                if any(result.sizes) and not self._objects.has_array(result.array):
                    # The owner died or released it, maybe before a reconstructed actor made it
                    # again: the GCS must free the values on their nodes. Values here have another
                    # owner, which releases them.
                    self._log.disown(result.array)
                continue
            if called:
                if any(result.sizes):
                    self._log.made_elsewhere(result.array)
                else:
                    # The owner's node has the only copy of small values.
                    owner = owners[result.array]
                    self._called(result, owner or f"node:{self._node}", b"")
                    self._log.finish(result)
            elif source == "global":
                # Cancelled before its placement: the owner's node keeps the result for borrowers.
                self._log.finish(result)
            elif result.array in self._created and self._objects.has_array(result.array):
                continue  # the actor was created once more
            elif self._objects.results.has_failed(result):
                # From a node that was declared dead: the owner has the error.
                continue
            if result.start >= STREAM_BASE and self._any_awaited((result.array,)):
                self._called_item(result, owners[result.array])
            if is_gcs(source) and not self._objects.results.has_small(result):
                self._objects.add(result)
                results.append(result)
            else:
                results += self._add(result)
        self._deliver(results)

    def on_forward(self, source: str, message: ForwardResults) -> None:
        """The GCS forwards the claim of a new owner to a dead owner's array that is made here."""
        if node_of(message.owner) == self._node and message.array not in self._objects.owners:
            return  # released, and the GCS does not know it yet
        end = message.start + message.count
        results = [
            result
            for result in self._objects.results.of(message.array)
            if (result.start < end and message.start < result.start + result.count)
            or result.start >= STREAM_BASE
        ]
        self.claims.setdefault(message.array, {})[message.owner] = None
        failed = [result for result in results if is_lost(result)]
        if failed:
            # These inputs were lost with the first owner, and the new owner makes them again.
            results = [result for result in results if result not in failed]
            self._make_again(failed, message.owner)
        to = node_of(message.owner)
        if to != self._node:
            # The owner's node has large values itself, or the GCS resubmits those that it has
            # freed: a result here may have the place of a freed one.
            results = [r for r in results if r.node != to or not any(r.sizes)]
        if results and to == self._node:
            self._deliver(results)
        elif results:
            for result in results:
                self._contained_references.pass_on(result, message.owner)
            self._send(message.owner, results)
        made = Ranges()
        for result in results:
            made.add(result.start, result.count)
        for result in failed:
            made.add(result.start, result.count)
        gaps = made.missing(message.start, message.count)
        if gaps and to == self._node and message.array in self._objects.owners:
            missing = [(message.array, start, count) for start, count in gaps]
            self._ctx.send("gcs", ResultsMissing(self._node, missing))

    def report(self, spec: TaskSpec) -> list[TaskSpec]:
        """Report to the GCS the results here of a range that it is about to run again; return the
        parts without any.

        A dead node has sent them, and had not reported them itself. Its large values are lost.
        """
        there = self._objects.received(spec.array)
        here = [r for r in there if r.node == self._node or not any(r.sizes)]
        made = Ranges()
        for result in here:
            if result.start < STREAM_BASE:
                made.add(result.start, result.count)
        gaps = made.missing(spec.start, spec.count)
        if is_stream(spec) and (gaps or len(here) < len(there)):
            return [spec]  # a run makes all items again
        end = spec.start + spec.count
        for result in here:
            low, high = max(spec.start, result.start), min(end, result.start + result.count)
            if result.start >= STREAM_BASE:
                low, high = result.start, result.start + result.count
            if low < high:
                self._log.expose(spec.array)
                self._log.finish(replace(result, start=low, count=high - low))
        return [part_of(spec, start, count) for start, count in gaps]

    def claim(self, array: bytes, start: int, end: int) -> None:
        """A client of this node repeats the submission of a range that failed for another owner.

        The range failed because its inputs were lost; the client makes them again.
        """
        lost = [result for result in self._objects.results.of(array) if is_lost(result)]
        self._drop_failed([r for r in lost if r.start < end and start < r.start + r.count])

    def _make_again(self, failed: list[RangeResult], owner: str) -> None:
        """Have the GCS resubmit ranges that failed because their first owner's inputs were lost."""
        self._drop_failed(failed)
        missing = [(result.array, result.start, result.count) for result in failed]
        self._ctx.send("gcs", ResultsMissing(node_of(owner), missing))

    def _drop_failed(self, failed: list[RangeResult]) -> None:
        """Forget errors of lost inputs, here and in the GCS."""
        if failed:
            self._log.flush()  # the GCS must not hear of the errors after this
        for result in failed:
            self._objects.results.drop_failed(result)
            oids = [
                object_id(result.array, index, 0)
                for index in range(result.start, result.start + result.count)
            ]
            self._ctx.send("gcs", ObjectsMissing(self._node, oids, Missing.INPUTS_MADE_AGAIN))

    def finish_call(
        self, result: RangeResult, owner: str, actor: bytes = b"", fresh: bool = True
    ) -> None:
        """An actor's call ended here: keep large values, and send the result to its owner.

        A result that is not `fresh` was reported before, and other objects may have its places in
        the arena now; see `with_present_places`.
        """
        if self._is_over(result.array):
            # An actor of another job has run the call; the caller's job has ended.
            self._received(result.array)
            if fresh:
                self._discard(result)
            return
        if not fresh:
            if node_of(owner) == self._node and result.array not in self._objects.owners:
                self._received(result.array)
                return  # released meanwhile
            result = self._contained_references.again(
                with_present_places(result, self._objects, self._node)
            )
        if node_of(owner) == self._node:
            awaited = self._received(result.array)
            if not self._objects.results.find(result.array, 0):
                if any(result.sizes) and result.node != self._node:
                    self._replied_again(result)
                    return
                self._called(result, owner, actor)
                self.finish(result, owner)
            else:
                self._contained_references.drop(result)
                # A replay made the large values before the repeated call, or another owner's call
                # did. The owner gets them even if the actor has died since.
                if not fresh and any(result.sizes):
                    self._log_call(result.array, owner, actor)
                if not fresh or result.status == SYSTEM_ERROR:
                    self._deliver(self._objects.results.of(result.array))
                elif awaited:
                    self._deliver([result])
        else:
            self._send_away(result, owner, actor)

    def _send_away(self, result: RangeResult, owner: str, actor: bytes) -> None:
        """Send the result of a call to an owner on another node; large values stay here."""
        self._contained_references.pass_on(result, owner)
        if any(result.sizes) and result.node == self._node:
            self.remade(result, owner, actor)
        else:
            self._contained_references.drop(result)
        self._ctx.send(f"node:{node_of(owner)}", TaskResults(owner, [result]))

    def _called(self, result: RangeResult, owner: str, actor: bytes) -> None:
        """A call of a client here ended: log it, since this node has the result."""
        if result.array in self._objects.owners:
            self._log_call(result.array, owner, actor)
            if result.status == SYSTEM_ERROR:
                # The call may have taken effect, and another node may have its large values.
                self._log.made_elsewhere(result.array)

    def _log_call(self, array: bytes, owner: str, actor: bytes) -> None:
        """Notify the GCS of the owner of a call's result.

        This is the owner on this node, if there is one: the reply to a repeated call names the
        client that was the last caller when the call was logged.
        """
        if owner != NOBODY and node_of(owner) == self._node:
            owner = self._objects.owners.get(array) or owner
        self._log.called(array, owner, actor)

    def _called_item(self, result: RangeResult, owner: str) -> None:
        """An actor on another node has yielded an item for a client of this one: log it."""
        if any(result.sizes):
            # The owner may release the stream before its end.
            self._log.made_elsewhere(result.array)
        else:
            self._log_call(result.array, owner or f"node:{self._node}", b"")
            self._log.finish(result)

    def _replied_again(self, result: RangeResult) -> None:
        """Take the reply to a repeated call whose large values are on another node."""
        if result.array in self._objects.owners:
            self._contained_references.keep(result)
            self._log.made_elsewhere(result.array)
            self._objects.add(result)
            self._deliver([result])
        else:
            self._contained_references.drop(result)

    def finish_item(
        self,
        result: RangeResult,
        owner: str,
        actor: bytes,
        fresh: bool = True,
        replayed: bool = False,
    ) -> None:
        """Keep and deliver an item of a call that runs, as `finish_call` does with results."""
        if not fresh:
            here = node_of(owner) == self._node
            if self._is_over(result.array) or (here and result.array not in self._objects.owners):
                return  # released meanwhile
            result = with_present_places(result, self._objects, self._node)
            if here and self._objects.results.find(result.array, result.start):
                if any(result.sizes):
                    self._log_call(result.array, owner, actor)
                self._deliver([result])
                return
            result = self._contained_references.again(result)
        if self._is_over(result.array):
            self._discard(result)
        elif node_of(owner) != self._node:
            self._send_away(result, owner, actor)
        elif replayed and any(result.sizes) and result.array not in self._objects.owners:
            self.remade(result, NOBODY, actor)  # as in `replayed`
        else:
            if result.array in self._objects.owners:
                self._log_call(result.array, owner, actor)
            self.finish(result, owner)

    def _discard(self, result: RangeResult) -> None:
        """Free the values of a call's result that is not kept."""
        self._objects.memory.seal(result)
        self._objects.memory.discard(result)
        self._contained_references.drop(result)

    def replayed(self, result: RangeResult, owner: str, actor: bytes) -> bool:
        """A call was replayed: keep its large values if they are missing here.

        Returns whether they were missing, and its owner has not released them.
        """
        at: Iterable[int] = [r for r, offset in enumerate(result.offsets) if offset >= 0]
        if result.status == SYSTEM_ERROR:
            at = range(result.returns)  # no memory for the values: the callers get that error
        here = all(self._objects.memory.lookup(object_id(result.array, 0, r)) for r in at)
        if here:
            self._discard(result)
            return False
        # An owner of an earlier incarnation of this node is dead; its task may run again.
        is_mine = self._contained_references.is_of_here(owner)
        if is_mine and result.array not in self._objects.owners:
            # The GCS frees what the owner has released, unless lost values descend from it.
            self.remade(result, NOBODY, actor)
            return False
        if node_of(owner) == self._node:
            self.remade(result, owner, actor)
        else:
            self._send_away(result, owner, actor)
        return True

    def remade(self, result: RangeResult, owner: str, actor: bytes) -> None:
        """Keep and log large values that a call made here for an owner, if it has one."""
        self._objects.memory.seal(result)
        self._log.expose(result.array)
        self._contained_references.keep(result)
        self._objects.add(result)
        self._log_call(result.array, owner, actor)
        self._log.finish(result)

    # -- batches -----------------------------------------------------------------

    def _take_batches(self, message: TaskResults) -> list[RangeResult]:
        """Take the batches of a message that need no split; return all other results, singly."""
        if not any(result.calls for result in message.results):
            return message.results
        others = []
        for result in message.results:
            if not result.calls:
                others.append(result)
            elif not self._take_batch(result, message.owner):
                others += results_of(result)
        return others

    def _take_batch(self, batch: RangeResult, owner: str) -> bool:
        arrays = split(batch.calls)
        if self._end_calls(batch, arrays, owner, b""):
            return True
        if self._any_awaited(arrays) or not self._keep_batch(batch, arrays, owner):
            return False
        self._ctx.send(owner, TaskResults(owner, [batch]))
        return True

    def _keep_batch(self, batch: RangeResult, arrays: Sequence[bytes], owner: str | None) -> bool:
        """Keep a batch if no result in it needs a decision of its own."""
        if self.claims or not self._objects.may_add_batch(arrays, owner):
            return False
        self._objects.results.add_batch(batch, arrays)
        return True

    def finish_call_batch(self, batch: RangeResult, owner: str, actor: bytes) -> None:
        """`finish_call` of a batch: small results, reported for the first time."""
        if not self._is_over(batch.array):
            if node_of(owner) != self._node:
                self._ctx.send(f"node:{node_of(owner)}", TaskResults(owner, [batch]))
                return
            if self._end_calls(batch, split(batch.calls), owner, actor):
                return
        for result in results_of(batch):
            self.finish_call(result, owner, actor)

    def _end_calls(
        self, batch: RangeResult, arrays: Sequence[bytes], owner: str, actor: bytes
    ) -> bool:
        """Keep and deliver a batch of calls if no result in it needs a decision of its own."""
        if self.claims or not self._objects.may_add_batch(arrays, owner):
            return False
        if not self._all_received(arrays):
            return False
        self._objects.results.add_batch(batch, arrays)
        self._log.finish_all(arrays, (owner, actor))
        self._ended([batch])
        return True

    def finish_batch(self, batch: RangeResult, owner: str) -> None:
        """`finish` of a batch of tasks."""
        arrays = split(batch.calls)
        here = node_of(owner) == self._node
        if not self._keep_batch(batch, arrays, owner if here else None):
            for result in results_of(batch):
                self.finish(result, owner)
            return
        self._log.finish_all(arrays)
        if not here:
            self._ctx.send(f"node:{node_of(owner)}", TaskResults(owner, [batch]))
        else:
            self._ended([batch])


def with_present_places(result: RangeResult, objects: NodeObjects, node: int) -> RangeResult:
    """Return a result with the places that its large values have on this node now.

    If one of them is gone, return the error that it is lost.
    """
    large = [
        (ret, object_id(result.array, result.start, ret))
        for ret, size in enumerate(result.sizes)
        if size
    ]
    if not large:
        return result
    offsets = [-1] * len(result.sizes)
    for ret, oid in large:
        value = objects.memory.lookup(oid)
        if value is not None and value.size:
            offsets[ret] = value.offset
        elif oid not in objects.memory.on_disk:
            return result if result.node != node else lost(result, oid, node)
    return replace(result, node=node, offsets=tuple(offsets))


def lost(result: RangeResult, oid: bytes, node: int) -> RangeResult:
    """Return the result of a repeated call whose object is lost."""
    loss = Loss(LossCause.EARLIER_RUN, refusal=Refusal.ACTOR_WENT_ON, object=oid)
    return replace(failed_result(result, loss, node), count=1)


def is_stream(spec: TaskSpec) -> bool:
    """Whether a call yields items, which go to its owner before its result."""
    return spec.extra is not None and bool(spec.extra.stream)
