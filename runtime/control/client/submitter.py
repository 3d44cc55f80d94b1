"""What a client makes: tasks, calls, puts, and questions to its node.

Tasks and puts wait for a batch (`flush`); calls in a row of one method of an actor
become one run, see `call_batches`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raytwin.runtime.control.client.owned_arrays import Entry, Waiter
from raytwin.runtime.control.client.waits import ClientWaits
from raytwin.runtime.control.core.call_batches import RUN_MAX
from raytwin.runtime.control.core.ids import (
    ARRAY_BYTES,
    STREAM_BASE,
    adopted,
    anew,
    array_id,
    job_of,
    put_id,
    split_object_id,
)
from raytwin.runtime.control.messages import (
    AbandonObject,
    AllocateObject,
    CancelTask,
    DescribeJob,
    ExportFunction,
    FindActor,
    KillActor,
    Query,
    RangeResult,
    TaskExtra,
    TaskSpec,
)
from raytwin.runtime.control.messages.errors import ActorDeath, DeathCause

_LOOK_MASK = 7
"""Every eighth of what is submitted in a row looks at the clock."""


class ClientSubmits(ClientWaits):
    """A client that submits."""

    def begin_task(self, task: bytes, tries: int = 0) -> None:
        """From here on, what is submitted is a child of `task`, which has failed so often.

        What a failed try has made it lets go of: values are gone by then, and actors have
        ended. So each try has children of its own.
        """
        self.job = self.job or job_of(task)
        self.parent = adopted(task, self.job)
        self._numbered_by = anew(self.parent, tries) if tries else self.parent
        self._submissions = 0
        self._own_puts = 0
        if self._submitted or self._run_arrays:
            self.flush()
        self.children.begin(self.parent)

    def describe_job(self, namespace: str, entrypoint: str, pid: int) -> None:
        """Tell the cluster what of a driver's job only it knows."""
        self.ctx.send(self.node, DescribeJob(namespace, entrypoint, pid))

    def next_array(self) -> bytes:
        """Return the ID of the next array that a driver submits."""
        self._submissions += 1
        return array_id(self._numbered_by, self._submissions)

    def next_child(self) -> bytes:
        """Return the ID of the next array that the current task submits; see `ids`."""
        array = self.next_array()
        self.children.add(array, self.entries.__contains__)
        return array

    def next_put(self) -> bytes:
        """Return the array ID of the current task's next put."""
        self._own_puts += 1
        return put_id(self._numbered_by, self._own_puts)

    def export(self, function: bytes, blob: bytes) -> None:
        """Make a function known to the cluster, once."""
        if function not in self._exported:
            self._exported.add(function)
            self.ctx.send(self.node, ExportFunction(function, blob))

    def submit(
        self,
        array: bytes,
        specs: list[TaskSpec],
        count: int,
        returns: int,
        holds: tuple[bytes, ...] = (),
        keeper: bytes = b"",
    ) -> Entry:
        """Submit an array, given as the ranges it starts out as.

        It holds its inputs until it is done, and the objects `holds` likewise, or
        whole arrays, of which references are inside arguments. An actor that may
        restart is rebuilt from them: with such a `keeper` (its array) arrays and large
        inputs are held as long as that; small ones are in its lineage.
        """
        entry = self.entries.get(array)
        if entry is None:
            entry = self._own(Entry(array, count, returns, count))
        if keeper:
            entry.keeper = keeper
        for spec in specs:
            if spec.deps:
                holds += spec.deps
        if holds:
            self._hold(entry, holds)
        if self._run_arrays:
            self._end_run()
        if count == 1 and specs[0].extra is None:
            entry.unhurried = True
        self._submitted += specs
        waiting = len(self._submitted)
        if waiting >= self.config.submit_batch_max:
            self.flush()
        elif self._timer is None or not waiting & _LOOK_MASK:
            self._submit_soon()
        return entry

    def call(
        self, array: bytes, extra: TaskExtra, name: str, retries: int, args: bytes,
        actor: bytes, keeper: bytes = b"",
    ) -> Entry:  # fmt: skip
        """Submit a call without inputs and with one value, as `submit` does.

        `actor` is an object that it holds. Calls with the same `extra`, the object
        itself, have name and retries in common too.
        """
        if extra is not self._run_extra:
            self._end_run()
            self._run_extra = extra
            self._run_spec = TaskSpec(
                b"", 0, 1, b"", b"", self.address, "", (), 1, retries, -1, name
            )
            self._run_deps = (actor,)
        entry = self.entries.get(array)
        if entry is None:
            entry = Entry(array, 1, 1, 1)
            if self.borrowing.loans:
                self._own(entry)
            else:
                self.entries[array] = entry
        entry.keeper = keeper
        entry.is_call = entry.unhurried = True
        if entry.deps:
            self._hold(entry, self._run_deps)
        else:
            entry.deps = self._run_deps
            self.hold(actor[:ARRAY_BYTES])
        arrays = self._run_arrays
        arrays.append(array)
        self._run_args.append(args)
        if len(arrays) >= RUN_MAX:
            self.flush()
        elif self._timer is None or not len(arrays) & _LOOK_MASK:
            self._submit_soon()
        return entry

    def cancel(self, oid: bytes, force: bool, recursive: bool) -> None:
        """The task of an object is not wanted any more, unless it is done."""
        array, index, _ = split_object_id(oid)
        entry = self.entries.get(array)
        index = 0 if index >= STREAM_BASE else index
        if entry is None or entry.find(index) is None:
            self.flush()
            self._cancel(array, index, 1, force, recursive)

    def cancel_children(self, task: bytes, force: bool) -> None:
        """Cancel all that a task of this worker has submitted and is not done."""
        task = adopted(task, self.job) if self.job else task
        if task != self.parent:
            return  # it has submitted nothing
        self.flush()
        for array in self.children.arrays:
            entry = self.entries.get(array)
            if entry is not None and entry.missing:
                self._cancel(entry.array, 0, entry.count, force, recursive=True)

    def _cancel(self, array: bytes, start: int, count: int, force: bool, recursive: bool) -> None:
        self._cancels += 1
        request = f"{self.address}/{self._cancels}"
        self.ctx.send(self.node, CancelTask(array, start, count, force, recursive, request=request))

    def put(self, result: RangeResult) -> Entry:
        """Take a value that this client made: inline, or sealed in the arena."""
        entry = Entry(result.array, 1, 1, 0, result)
        self._own(entry)
        self._puts.append(result)
        if len(self._puts) >= self.config.submit_batch_max:
            self.flush()
        else:
            self._flush_soon()
        return entry

    def _own(self, entry: Entry) -> Entry:
        """Begin to own an array; a reference to all of it may exist already."""
        self.entries[entry.array] = entry
        if entry.array in self.borrowing.loans:
            mine = [oid for oid in self.borrowed if oid[:ARRAY_BYTES] == entry.array]
            refs = sum(self.borrowed.pop(oid) for oid in mine)
            entry.refs += refs
            entry.holds += self.borrowing.own(entry.array) - refs
            here = [oid for oid in mine if oid in self.local]
            entry.local = here if entry.local is None else entry.local + here
        return entry

    def allocate(self, oid: bytes, size: int) -> Waiter:
        """Ask for room in the arena; `allocations` will say where, or -1."""
        waiter = Waiter()
        waiter.missing = 1
        self._object_waiters.setdefault(oid, []).append(waiter)
        self.ctx.send(self.node, AllocateObject(oid, size))
        return waiter

    def abandon(self, oid: bytes) -> None:
        """Give back room that will not be used."""
        self.ctx.send(self.node, AbandonObject(oid))

    def query(self, kind: str) -> tuple[int, Waiter]:
        """Ask the cluster; `replies` will hold the answer under the key."""
        self.flush()
        self._keys += 1
        waiter = Waiter()
        waiter.missing = 1
        self._object_waiters.setdefault(self._keys.to_bytes(8, "big"), []).append(waiter)
        self.ctx.send(self.node, Query(kind, self._keys, self.address))
        return self._keys, waiter

    def find_actor(
        self,
        namespace: str,
        name: str,
        create: TaskSpec | None,
        keeper: bytes = b"",
        holds: tuple[bytes, ...] = (),
    ) -> tuple[int, Waiter]:
        """Look an actor up, or create it; `replies` will hold an `ActorFound`."""
        self.flush()
        if create is not None and create.array not in self.entries:
            entry = self._own(Entry(create.array, 1, 1, 1))
            entry.keeper = keeper
            self._hold(entry, holds + create.deps)
        self._keys += 1
        waiter = Waiter()
        waiter.missing = 1
        self._object_waiters.setdefault(self._keys.to_bytes(8, "big"), []).append(waiter)
        self.ctx.send(self.node, FindActor(self._keys, self.address, namespace, name, create))
        return self._keys, waiter

    def disown(self, array: bytes) -> None:
        """What was to be created was there already, under another ID."""
        entry = self.entries[array]
        entry.missing = 0
        self.release_if_free(entry)

    def kill_actor(self, actor: bytes, restart: bool) -> None:
        """End an actor, after what was sent to it before."""
        self.flush()
        self.direct.forget(actor)
        self.ctx.send(self.node, KillActor(actor, ActorDeath(DeathCause.KILLED), restart))

    def ask_table(self, make: Callable[[int], Any]) -> tuple[int, Waiter]:
        """Send what `make` returns for a key; `replies` will hold the table's answer."""
        self._keys += 1
        waiter = Waiter()
        waiter.missing = 1
        self._object_waiters.setdefault(self._keys.to_bytes(8, "big"), []).append(waiter)
        self.ctx.send(self.node, make(self._keys))
        return self._keys, waiter
