"""Waiting: when a task gives up its CPU, and what `wait` returns.

The thread that runs a task gives up the task's CPU while it waits in `get` or `wait`, and
takes it back before it goes on. A wait of any other thread keeps the CPU, which the task
uses meanwhile; so does a wait that stands for another thread's in virtual time
(`keeping_cpu`), and the runtime's own wait for room in the store or for a reply (`block`).

A long list is kept from one `wait` to the next: see `wait_group`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from raytwin.runtime.api.refs import ObjectRef
from raytwin.runtime.api.streams import ObjectRefGenerator
from raytwin.runtime.control.client.owned_arrays import Waiter
from raytwin.runtime.control.core.stream_ids import item_id
from raytwin.runtime.control.worker.executor import Executor
from raytwin.runtime.session.session_references import SessionReferences
from raytwin.runtime.session.wait_group import KEPT_MIN, WaitGroup


class Waits:
    """Lets time pass until a value, an item of a stream or a reply is there."""

    def __init__(self, references: SessionReferences) -> None:
        self.world = references.world
        self.client = references.client
        self._references = references
        self._keeps_cpu = False

    def wait(
        self,
        refs: Sequence[ObjectRef],
        num_returns: int,
        timeout_s: float | None,
        fetch_local: bool,
    ) -> tuple[list[ObjectRef], list[ObjectRef]]:
        self._references.check_open(refs)
        client = self.client
        if len(refs) >= KEPT_MIN:
            with self.world:
                self._references.keep_group(None)
                group = WaitGroup(client, refs, fetch_local)
            return self._wait_in(group, num_returns, timeout_s)
        here = client.waits.value if fetch_local else client.waits.made

        def ready_now() -> list[int]:
            ready = []
            for position, ref in enumerate(refs):
                if here(ref.binary()):
                    ready.append(position)
                    if len(ready) == num_returns:
                        break
            return ready

        with self.world:
            self._references.collect()
            self.world.charge("wait", 1)
            client.buffer.flush()
            ready = ready_now()
            waiter = None
            if len(ready) < num_returns:
                # Without time to wait, too: what is not here is fetched for the next call.
                oids = [ref.binary() for ref in refs]
                waiter = client.waits.watch(oids, fetch_local)
                awaited = client.pins.begin_get(oids)
        if waiter is not None:
            may_miss = len(refs) - num_returns
            try:
                if timeout_s != 0:
                    self.until(lambda: waiter.missing <= may_miss, timeout_s)
            finally:
                with self.world:
                    client.waits.unwatch(oids, waiter)
                    ready = ready_now()
                    client.pins.end_get(awaited)
        chosen = set(ready)
        return (
            [refs[position] for position in ready],
            [ref for position, ref in enumerate(refs) if position not in chosen],
        )

    def wait_mixed(
        self,
        waitables: Sequence[ObjectRef | ObjectRefGenerator],
        num_returns: int,
        timeout_s: float | None,
        fetch_local: bool,
    ) -> tuple[list[Any], list[Any]]:
        client = self.client
        refs = [w for w in waitables if isinstance(w, ObjectRef)]
        self._references.check_open(refs)
        here = client.waits.value if fetch_local else client.waits.made

        def is_ready(waitable: ObjectRef | ObjectRefGenerator) -> bool:
            if isinstance(waitable, ObjectRef):
                return bool(here(waitable.binary()))
            array, index = waitable.position()
            entry = client.entries[array]
            return entry.result is not None or client.waits.made(item_id(array, index))

        def enough() -> bool:
            return sum(map(is_ready, waitables)) >= num_returns

        oids = [ref.binary() for ref in refs]
        with self.world:
            self._references.collect()
            self.world.charge("wait", 1)
            client.buffer.flush()
            waiter = client.waits.watch(oids, fetch_local)
            awaited = client.pins.begin_get(oids)
        try:
            if timeout_s != 0:
                self.until(enough, timeout_s)
        finally:
            with self.world:
                client.waits.unwatch(oids, waiter)
                ready = [at for at, w in enumerate(waitables) if is_ready(w)][:num_returns]
                client.pins.end_get(awaited)
        chosen = set(ready)
        return (
            [waitables[at] for at in ready],
            [w for at, w in enumerate(waitables) if at not in chosen],
        )

    def wait_again(
        self,
        refs: list[ObjectRef],
        num_returns: int,
        timeout_s: float | None,
        fetch_local: bool,
    ) -> tuple[list[ObjectRef], list[ObjectRef]] | None:
        references = self._references
        group = references.wait_group
        if group is None or references.closed:
            return None
        with self.world:
            # Another thread may have been quicker.
            if references.wait_group is not group or not group.accepts(refs, fetch_local):
                return None
            if not 1 <= num_returns <= len(group):
                return None
            references.wait_group = None
            if group.ready() >= num_returns:
                # In a loop over many that are done nothing else happens.
                self._references.collect()
                self.world.charge("wait", 1)
                found = group.take(num_returns)
                self._references.keep_group(group)
                return found
        return self._wait_in(group, num_returns, timeout_s)

    def _wait_in(
        self, group: WaitGroup, num_returns: int, timeout_s: float | None
    ) -> tuple[list[ObjectRef], list[ObjectRef]]:
        """Wait for references of a group that no other thread uses, and keep the group."""
        world = self.world
        with world:
            self._references.collect()
            world.charge("wait", 1)
            if group.ready() >= num_returns:
                found = group.take(num_returns)
                self._references.keep_group(group)
                return found
            self.client.buffer.flush()
        done = False
        try:
            if timeout_s != 0:
                self.until(lambda: group.ready() >= num_returns, timeout_s)
            done = True
        finally:
            with world:
                group.ready()
                if done:
                    found = group.take(num_returns)
                    self._references.keep_group(group)
                else:
                    group.dissolve()
        return found

    # -- giving up the CPU -----------------------------------------------------

    @contextmanager
    def keeping_cpu(self) -> Iterator[None]:
        """Let the running task keep its CPU while it waits in this context."""
        before, self._keeps_cpu = self._keeps_cpu, True
        try:
            yield
        finally:
            self._keeps_cpu = before

    def until(self, ready: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait as user code does: the running task gives up its CPU meanwhile.

        Return whether the condition came true. Raises RaySystemError if the cluster is gone,
        KeyboardInterrupt if the calling task was cancelled.
        """
        world = self.world
        executor = world.executor
        if executor is None or executor.running is None or not world.on_task_thread():
            return world.block(ready, timeout_s)
        with world:
            if ready():
                return True
            # A signal's handler may wait within a wait.
            if not self._keeps_cpu and not executor.suspended:
                executor.block()
        try:
            done = world.block(lambda: ready() or executor.interrupt, timeout_s)
        finally:
            self._take_cpu_back(executor)
        self.interrupt_here()
        return done

    def _take_cpu_back(self, executor: Executor) -> None:
        """Return once the node has given the CPU back."""
        with self.world:
            if not executor.suspended:
                return
            resumes = executor.resumes
            executor.unblock()
        self.world.block(lambda: executor.resumes != resumes, None)

    def interrupt_here(self) -> None:
        """Raise KeyboardInterrupt if the calling task was cancelled; a safe place for it."""
        executor = self.world.executor
        if executor is not None and executor.interrupt and self.world.on_task_thread():
            executor.interrupt = False
            raise KeyboardInterrupt

    def block(self, waiter: Waiter, timeout_s: float | None) -> bool:
        """Wait for the runtime itself: the task keeps its CPU."""
        if not waiter.missing:
            return True
        return self.world.block(lambda: not waiter.missing, timeout_s)
