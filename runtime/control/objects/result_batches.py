"""What becomes of a run of results: of consecutive calls or tasks, reported as one.

All that is decided for each result (see `results`) comes out alike for those of a run, as
long as nobody but its owner waits for them and all are new here: then they are kept and
told in one step. Else each is taken by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from raytwin.runtime.control.core.addresses import node_of
from raytwin.runtime.control.core.call_batches import results_of, split
from raytwin.runtime.control.core.context import Context
from raytwin.runtime.control.messages import RangeResult, TaskResults
from raytwin.runtime.control.objects.gcs_write_log import TaskLog
from raytwin.runtime.control.objects.object_directory import ObjectDirectory
from raytwin.runtime.control.objects.result_delivery import OwnerNews


class ResultRuns:
    """Runs of results that are made on one node, or come to it."""

    def __init__(
        self,
        ctx: Context,
        node: int,
        objects: ObjectDirectory,
        log: TaskLog,
        news: OwnerNews,
        heirs: Mapping[bytes, Collection[str]],
        all_received: Callable[[Sequence[bytes]], bool],
        any_awaited: Callable[[Sequence[bytes]], bool],
        is_over: Callable[[bytes], bool],
        finish: Callable[[RangeResult, str], None],
        finish_call: Callable[[RangeResult, str, bytes], None],
    ) -> None:
        """`heirs` are those who wait for an array besides its owner; the others are as those
        of `Results`, whose `finish` and `finish_call` take a result by itself."""
        self._ctx = ctx
        self._node = node
        self._objects = objects
        self._log = log
        self._news = news
        self._heirs = heirs
        self._all_received = all_received
        self._any_awaited = any_awaited
        self._is_over = is_over
        self._finish = finish
        self._finish_call = finish_call

    def take(self, message: TaskResults) -> list[RangeResult]:
        """Take what has come of runs of calls as such; return all other results."""
        if not any(result.calls for result in message.results):
            return message.results
        others = []
        for result in message.results:
            if not result.calls:
                others.append(result)
            elif not self._take_run(result, message.owner):
                others += results_of(result)
        return others

    def _take_run(self, run: RangeResult, owner: str) -> bool:
        """Take a run from another node, of calls or of tasks, or leave it as it is."""
        arrays = split(run.calls)
        if self._end_calls(run, arrays, owner, b""):
            return True
        if self._heirs or self._any_awaited(arrays):
            return False
        if not self._objects.may_add_batch(arrays, owner):
            return False
        self._objects.results.add_batch(run, arrays)
        self._ctx.send(owner, TaskResults(owner, [run]))
        return True

    def finish_calls(self, run: RangeResult, owner: str, actor: bytes) -> None:
        """`finish_call` of a run of results: small ones, reported for the first time."""
        arrays = split(run.calls)
        if not self._is_over(run.array):
            if node_of(owner) != self._node:
                self._ctx.send(f"node:{node_of(owner)}", TaskResults(owner, [run]))
                return
            if self._end_calls(run, arrays, owner, actor):
                return
        for result in results_of(run):
            self._finish_call(result, owner, actor)

    def _end_calls(
        self, run: RangeResult, arrays: Sequence[bytes], owner: str, actor: bytes
    ) -> bool:
        """Keep a run of results and tell its owner, if nothing is to be decided call by call."""
        if self._heirs or not self._objects.may_add_batch(arrays, owner):
            return False
        if not self._all_received(arrays):
            return False
        self._objects.results.add_batch(run, arrays)
        self._log.called_all(arrays, owner, actor)
        self._news.run_ended(run, owner)
        return True

    def finish_together(self, run: RangeResult, owner: str) -> None:
        """`finish` of a run of results of tasks."""
        arrays = split(run.calls)
        here = node_of(owner) == self._node
        waiting = owner if here else None
        if self._heirs or not self._objects.may_add_batch(arrays, waiting):
            for result in results_of(run):
                self._finish(result, owner)
            return
        self._objects.results.add_batch(run, arrays)
        self._log.finish_all(arrays)
        if not here:
            self._ctx.send(f"node:{node_of(owner)}", TaskResults(owner, [run]))
        else:
            self._news.run_ended(run, owner)
