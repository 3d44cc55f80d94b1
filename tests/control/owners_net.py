"""Owners, borrowers and nodes that hand references on, under every order of messages.

`Net` has the real `Client`, `ReferenceCounter` and `ContainedReferences`, and nothing else: no
tasks run, but their messages travel. Each link keeps its order; which link delivers next, and
which timer fires, is drawn. The rule that is held against it at every step: whoever has a
reference can read what it leads to, because the owner, if it lives, has not released it. At
the end nobody has anything left.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from raytwin.runtime.control.client.client import Client
from raytwin.runtime.control.core.addresses import node_of
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.ids import ARRAY_BYTES, object_id, root_task_id
from raytwin.runtime.control.core.membership import Membership
from raytwin.runtime.control.messages import (
    OK,
    SYSTEM_ERROR,
    BorrowersGone,
    FreeObjects,
    NodeInfo,
    PutObjects,
    RangeResult,
    RefUpdates,
    Release,
    ResultRefs,
    SubmitTasks,
    TaskResults,
    TaskSpec,
)
from raytwin.runtime.control.messages.errors import WorkerCrash, pack
from raytwin.runtime.control.ownership.contained_references import ContainedReferences

CLIENTS = ("driver:0.0", "worker:0.1", "worker:1.1", "worker:1.2", "worker:2.1")

CRASHED = pack(WorkerCrash("task"))


class Ctx:
    """`Context` of one address in a `Net`."""

    def __init__(self, net: Net, address: str) -> None:
        self.rng = random.Random(0)
        self._net = net
        self._address = address

    def now(self) -> float:
        return 0.0

    def send(self, to: str, message: Any) -> None:
        self._net.links.setdefault((self._address, to), deque()).append(message)

    def after(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(callback)
        self._net.timers.append(timer)
        return timer


class Timer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Net:
    """Owners and borrowers on three nodes; with what `ContainedReferences` needs of a node."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.links: dict[tuple[str, str], deque[Any]] = {}
        self.timers: list[Timer] = []
        self.clients: dict[str, Client] = {}
        self.nodes: dict[int, ContainedReferences] = {}
        self.members: dict[int, Membership] = {}
        self.held: dict[str, Counter[bytes]] = {address: Counter() for address in CLIENTS}
        """References that programs have."""
        self.values: dict[bytes, list[tuple[bytes, str]]] = {}
        """By array: references that its value has inside, with owners as they are pickled."""
        self.owners: dict[bytes, str] = {}
        self.targets: dict[bytes, str] = {}
        """By array: which worker has the task."""
        self.running: dict[str, list[tuple[TaskSpec, list[bytes]]]] = {a: [] for a in CLIENTS}
        self.stuck: set[tuple[str, str]] = set()
        """Links that deliver nothing for now."""
        self.unheld: set[bytes] = set()
        """Arrays inside the arguments of unfinished tasks whose submitter, who held them, died."""
        config = Config(linger_s=0.0)
        for node in range(3):
            self.members[node] = members = Membership(node, 1)
            for other in range(3):
                members.update(NodeInfo(other, "", 0, {}, incarnation=1))
            ctx = Ctx(self, f"node:{node}")
            self.nodes[node] = ContainedReferences(
                ctx, node, 1, members, lent=lambda array: None, lives=lambda client: True,
            )  # fmt: skip
        for address in CLIENTS:
            client = Client(Ctx(self, address), address, node_of(address), config)
            client.submitter.begin_task(root_task_id(address))
            self.clients[address] = client

    # -- messages --------------------------------------------------------------

    def deliver(self) -> bool:
        """Deliver a message, or let a timer fire; return whether there was one."""
        self.timers = [timer for timer in self.timers if timer.callback is not None]
        busy = [link for link, queue in self.links.items() if queue and link not in self.stuck]
        if not busy and not self.timers:
            return False
        if busy and (not self.timers or self.rng.random() < 0.9):
            source, to = self.rng.choice(busy)
            message = self.links[source, to].popleft()
            if to in self.clients:
                self._to_client(to, message)
            elif to.startswith("node:") and node_of(to) in self.nodes:
                self._to_node(node_of(to), source, message)
        else:
            timer = self.timers.pop(self.rng.randrange(len(self.timers)))
            if timer.callback is not None:
                timer.callback()
        self.check()
        return True

    def send(self, source: str, to: str, message: Any) -> None:
        self.links.setdefault((source, to), deque()).append(message)

    def _to_client(self, address: str, message: Any) -> None:
        if isinstance(message, SubmitTasks):
            for spec in message.tasks:
                self.begin(address, spec)
        else:
            self.clients[address].handle(self.clients[address].node, message)

    def _lives(self, address: str) -> bool:
        return address in self.clients

    def _to_node(self, node: int, source: str, message: Any) -> None:
        if source.startswith("worker:") and not self._lives(source):
            # As in `NodeManager.handle`; what it was given has failed.
            if isinstance(message, TaskResults):
                for result in message.results:
                    self._fail(node, result.array, message.owner)
            return
        contained_references, me = self.nodes[node], f"node:{node}"
        if isinstance(message, RefUpdates):
            if node_of(message.owner) != node or self._lives(message.owner):
                contained_references.on_updates(source, message)
        elif isinstance(message, SubmitTasks):
            for spec in message.tasks:
                to = spec.name
                there = to if node_of(to) == node else f"node:{node_of(to)}"
                if not self._lives(to):
                    self._fail(node, spec.array, spec.owner)
                else:
                    self.send(me, there, SubmitTasks([spec]))
        elif isinstance(message, PutObjects):
            for result in message.results:
                if result.refs is not None:
                    contained_references.reported(source, result)
                    contained_references.keep(result)
        elif isinstance(message, Release):
            for array in message.arrays:
                contained_references.release(array)
                for other in self.nodes:
                    if other != node:
                        self.send(me, f"node:{other}", FreeObjects([array]))
        elif isinstance(message, FreeObjects):
            for array in message.arrays:
                contained_references.release(array)
        elif isinstance(message, TaskResults):
            for result in message.results:
                self._result(node, source, message.owner, result)

    def _result(self, node: int, source: str, owner: str, result: RangeResult) -> None:
        contained_references, me = self.nodes[node], f"node:{node}"
        here = node_of(owner) == node
        owned = self._lives(owner) and result.array in self.clients[owner].entries
        if source.startswith("node:"):
            if result.refs is not None:
                result = contained_references.receive(result, owner, owned)
        elif result.refs is not None:
            contained_references.reported(source, result)
            contained_references.pass_on(result, owner)
            if owned:
                contained_references.keep(result)
            else:
                contained_references.drop(result)
        if not here:
            self.send(me, f"node:{node_of(owner)}", TaskResults(owner, [result]))
        elif owned:
            self.send(me, owner, TaskResults(owner, [result]))

    def _fail(self, node: int, array: bytes, owner: str) -> None:
        error = RangeResult(array, 0, 1, SYSTEM_ERROR, CRASHED, node)
        self._result(node, f"node:{node}", owner, error)

    # -- what programs do ------------------------------------------------------

    def _refs(self, address: str, into: bytes = b"") -> list[tuple[bytes, str]]:
        """Some references that a program has, pickled; none that make a ring of values."""
        mine = [oid for oid in sorted(self.held[address]) if not self._reaches(oid, into)]
        chosen = self.rng.sample(mine, self.rng.randint(0, min(3, len(mine))))
        owner_of = self.clients[address].references.counter.owner_of
        return [(oid, owner_of(oid[:ARRAY_BYTES])) for oid in chosen]

    def _reaches(self, oid: bytes, array: bytes) -> bool:
        found = oid[:ARRAY_BYTES]
        return found == array or any(
            self._reaches(inside, array) for inside, _ in self.values.get(found, ())
        )

    def _hand_over(self, address: str, inside: list[tuple[bytes, str]]) -> ResultRefs | None:
        borrowing = self.clients[address].references.counter
        if not inside:
            return None
        arrays = dict.fromkeys(oid[:ARRAY_BYTES] for oid, _ in inside)
        return ResultRefs((), borrowing.pin_contained(arrays), borrowing.keeper)

    def _unpickle(self, address: str, inside: list[tuple[bytes, str]]) -> list[bytes]:
        client = self.clients[address]
        for oid, owner in inside:
            client.references.counter.receive(oid[:ARRAY_BYTES], owner)
            client.references.add_ref(oid)
            self.held[address][oid] += 1
        return [oid[:ARRAY_BYTES] for oid, _ in inside]

    def put(self, address: str) -> None:
        client = self.clients[address]
        inside = self._refs(address)
        array = client.submitter.next_put()
        result = RangeResult(array, 0, 1, OK, b"", node_of(address))
        result.refs = self._hand_over(address, inside)
        self.values[array], self.owners[array] = inside, address
        client.submitter.put(result)
        client.references.add_ref(object_id(array, 0, 0))
        self.held[address][object_id(array, 0, 0)] += 1

    def submit(self, address: str, to: str) -> None:
        client = self.clients[address]
        inside = self._refs(address)
        array = client.submitter.next_array()
        args = b"".join(oid + owner.encode().ljust(16) for oid, owner in inside)
        holds = tuple(dict.fromkeys(oid[:ARRAY_BYTES] for oid, _ in inside))
        self.owners[array], self.targets[array] = address, to
        spec = TaskSpec(array, 0, 1, b"", args, address, name=to)
        client.submitter.submit(array, [spec], 1, 1, holds)
        client.references.add_ref(object_id(array, 0, 0))
        self.held[address][object_id(array, 0, 0)] += 1

    def begin(self, address: str, spec: TaskSpec) -> None:
        """A task's arguments are unpickled."""
        size = len(object_id(spec.array, 0, 0)) + 16
        parts = [spec.args[at : at + size] for at in range(0, len(spec.args), size)]
        inside = [(part[: size - 16], part[size - 16 :].decode().strip()) for part in parts]
        if not self._lives(spec.owner):
            self.unheld.update(oid[:ARRAY_BYTES] for oid, _ in inside)
        arrays = self._unpickle(address, inside)
        self.clients[address].references.counter.contained_in_arguments(spec.array, arrays)
        self.running[address].append((spec, [oid for oid, _ in inside]))

    def end(self, address: str) -> None:
        """A task returns a value; it may have kept what it was given."""
        if not self.running[address]:
            return
        spec, given = self.running[address].pop(0)
        client = self.clients[address]
        inside = self._refs(address, spec.array)
        result = RangeResult(spec.array, 0, 1, OK, b"", node_of(address))
        result.refs = self._hand_over(address, inside)
        self.values[spec.array] = inside
        for oid in given:
            if self.rng.random() < 0.7 and self.held[address][oid]:
                self.drop(address, oid)
        kept = client.references.counter.kept_by(spec.array)
        if kept:
            refs = result.refs or ResultRefs()
            result.refs = ResultRefs(kept, refs.contained, refs.keeper)
        client.buffer.flush()
        client.ctx.send(client.node, TaskResults(spec.owner, [result]))

    def read(self, address: str) -> None:
        """Read a value whose result has come to its owner."""
        for oid in sorted(self.held[address]):
            array = oid[:ARRAY_BYTES]
            owner = self.clients.get(self.owners[array])
            entry = owner.entries.get(array) if owner is not None else None
            if entry is None or entry.result is None or entry.result.status != OK:
                continue
            inside = self.values[array]
            if inside and self.rng.random() < 0.5:
                arrays = self._unpickle(address, inside)
                self.clients[address].references.counter.contained_in_value(array, arrays)

    def drop(self, address: str, oid: bytes) -> None:
        self.held[address][oid] -= 1
        if not self.held[address][oid]:
            del self.held[address][oid]
        self.clients[address].references.drop_ref(oid)

    def kill(self, address: str) -> None:
        """A worker dies with all that it owns."""
        node = node_of(address)
        self.clients.pop(address)
        self.held[address].clear()
        for array in self._owned(address):
            self.nodes[node].release(array)
            for other in self.nodes:
                self.send(f"node:{node}", f"node:{other}", FreeObjects([array]))
        self.nodes[node].worker_gone(address)
        for spec, _ in self.running.pop(address):
            self._fail(node, spec.array, spec.owner)
        self.running[address] = []
        for (_, to), queue in list(self.links.items()):
            if to == address:
                for message in queue:
                    if isinstance(message, SubmitTasks):
                        for spec in message.tasks:
                            self._fail(node, spec.array, spec.owner)
                queue.clear()

    def _owned(self, address: str) -> list[bytes]:
        for tasks in self.running.values():
            for spec, inside in tasks:
                if spec.owner == address:
                    self.unheld.update(oid[:ARRAY_BYTES] for oid in inside)
        return [array for array, owner in self.owners.items() if owner == address]

    def kill_node(self, node: int) -> None:
        """A node dies with its clients; what it has sent still arrives at some."""
        for address in [a for a in self.clients if node_of(a) == node]:
            self.clients.pop(address)
            for array in self._owned(address):
                for other in self.nodes:
                    self.send("gcs:0", f"node:{other}", FreeObjects([array]))
            self.held[address].clear()
            self.running[address] = []
        del self.nodes[node]
        for (source, to), queue in list(self.links.items()):
            ends = {node_of(source), node_of(to)}
            if node in ends and (node_of(to) == node or self.rng.random() < 0.5):
                queue.clear()
        dead = NodeInfo(node, "", 0, {}, alive=False, incarnation=1)
        for number in self.nodes:
            self.members[number].update(dead)
        for address, client in self.clients.items():
            self.send(f"node:{node_of(address)}", address, BorrowersGone(node, 1))
            for entry in list(client.entries.values()):
                if entry.missing and node_of(self.targets[entry.array]) == node:
                    error = RangeResult(entry.array, 0, 1, SYSTEM_ERROR, CRASHED, 0)
                    self.send(f"node:{node_of(address)}", address, TaskResults(address, [error]))

    # -- what must hold --------------------------------------------------------

    def check(self) -> None:
        for address, refs in self.held.items():
            for oid in refs:
                owner = self.owners[oid[:ARRAY_BYTES]]
                if owner in self.clients and oid[:ARRAY_BYTES] not in self.unheld:
                    entries = self.clients[owner].entries
                    assert oid[:ARRAY_BYTES] in entries, f"{address} has what {owner} released"

    def step(self) -> None:
        address = self.rng.choice(sorted(self.clients))
        do = self.rng.choice(["put", "submit", "submit", "end", "end", "read", "read", "drop"])
        if do == "put":
            self.put(address)
        elif do == "submit":
            workers = [a for a in sorted(self.clients) if a.startswith("worker:")]
            if workers:
                self.submit(address, self.rng.choice(workers))
        elif do == "end":
            self.end(address)
        elif do == "read":
            self.read(address)
        elif self.held[address]:
            self.drop(address, self.rng.choice(sorted(self.held[address])))
        self.check()
        for _ in range(self.rng.randint(0, 6)):
            self.deliver()

    def finish(self) -> None:
        """Let everything end, and look at what is left."""
        for _ in range(10_000):
            while self.deliver():
                pass
            for address in self.clients:
                while self.running[address]:
                    self.end(address)
                for oid in list(self.held[address].elements()):
                    self.drop(address, oid)
            if not any(self.links.values()) and not any(t.callback for t in self.timers):
                break
        for address, client in self.clients.items():
            assert not client.entries, f"{address} still owns {client.entries}"
            assert not client.references.counter.loans, f"{address} still borrows"
            assert not client.references.counter.guarded
        for number, contained_references in self.nodes.items():
            assert not len(contained_references), (
                f"node {number} still keeps {contained_references.contained}"
            )


def run(seed: int, fault: str) -> None:
    net = Net(seed)
    for step in range(40):
        net.step()
        if step == 25 and fault == "worker":
            net.kill(net.rng.choice(["worker:0.1", "worker:1.1", "worker:2.1"]))
        if step == 25 and fault == "node":
            net.kill_node(net.rng.choice([1, 2]))
    net.finish()
