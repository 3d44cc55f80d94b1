"""The deaths of a simulated cluster, each charged to the tasks and actors that it hit.

A retry is used up by a death, so an error for lack of retries is legitimate only if more deaths hit
that task than it had retries. `Deaths` observes the simulation, not the control plane's own
records, which a defect could falsify:

- the plan kills a worker: this hits the task that runs there, the one that its node believes to
  run there, and the worker's actor;
- a node dies, or the GCS declares it dead: this hits the tasks and actors that were submitted or
  assigned to this incarnation, since they were queued or ran there, or it had their values. An
  assignment counts when the scheduler decides it: the node may die before it leaves.

So the charges of an element are at least the retries that the faults may cost it, and at most the
deaths of the few processes that it has met. Each run again costs one retry at most: `Deaths` also
sees how many are left in whatever is sent, and finds where they are fewer, or more than the deaths
of workers leave.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any

from raytwin.chaos.fuzz.oracle.findings import Finding, Kind
from raytwin.runtime.control.core.addresses import RELAY, node_of
from raytwin.runtime.control.core.turns import Received
from raytwin.runtime.control.messages import (
    AssignTasks,
    PlaceTasks,
    RunTasks,
    SubmitTasks,
    TaskExtra,
    TasksMoved,
    TaskSpec,
    TasksPlaced,
    TaskUpdates,
)
from raytwin.runtime.control.replication.state_machine import decode_frames

FINDINGS_MAX = 10
_SCHEDULERS = ("global", "gcs")
"""The components that assign tasks to nodes."""
Element = tuple[bytes, int]
"""array, index"""
Visit = tuple[bytes, int, int, int, int]
"""array, start, count, node, incarnation"""


class Deaths:
    """Observes one simulated cluster."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self.nodes: dict[tuple[int, int], float] = {}
        """{(node, incarnation): time of its death}"""
        self._undeclared: set[tuple[int, int]] = set()
        """(node, incarnation) of those that have died, and of which the GCS has not announced it,
        nor a later incarnation."""
        self._killed_s: list[float] = []
        """When the plan has killed each worker."""
        self._kills: defaultdict[str, list[tuple[Element, float]]] = defaultdict(list)
        """By name: what killed workers ran, and when they were killed."""
        self._visits: defaultdict[str, list[Visit]] = defaultdict(list)
        self._left: dict[str, int] = {}
        """By name: the fewest retries that an element had left when it was sent, if fewer than its
        name says."""
        self.found: list[Finding] = []
        self._outputs: dict[tuple[int, bytes], None] = {}
        """Outputs of chains to nodes, not decoded yet: each with the node's incarnation, 0 for
        the relay. All replicas of a chain have the same."""
        cluster.on_kill.append(self._on_kill)
        cluster.on_end.append(self._on_end)
        cluster.on_membership.append(self._on_membership)
        cluster.on_frame.append(self._on_frame)
        cluster.on_output.append(self._on_output)
        cluster.on_turn.append(self._on_turn)

    @property
    def total(self) -> int:
        """The number of deaths so far."""
        return len(self.nodes) + len(self._killed_s)

    @property
    def first_s(self) -> float:
        """The time of the first death."""
        return min((*self.nodes.values(), *self._killed_s), default=inf)

    def hits(self, name: str, before_s: float = inf) -> int:
        """Return the most deaths before a time that hit one element of that name."""
        self._decode()
        found: defaultdict[Element, int] = defaultdict(int)
        for element, at_s in self._kills.get(name, ()):
            found[element] += at_s <= before_s
        visited: set[tuple[Element, int, int]] = set()
        for array, start, count, node, incarnation in self._visits.get(name, ()):
            died_s = self.nodes.get((node, incarnation))
            if died_s is not None and died_s <= before_s:
                visited.update(((array, i), node, incarnation) for i in range(start, start + count))
        for element, _, _ in visited:
            found[element] += 1
        return max(found.values(), default=0)

    def left(self, name: str) -> int:
        """Return the fewest retries that an element of that name was seen to have left."""
        self._decode()
        return self._left.get(name, retries_of(name))

    # -- what happens --------------------------------------------------------------------

    def _on_kill(self, address: str) -> None:
        """The plan is about to kill a worker."""
        now_s, node = self._cluster.env.now, self._cluster.node_managers[node_of(address)]
        self._killed_s.append(now_s)
        worker = node.dispatcher.workers.get(address)
        running = [self._cluster.workers[address].executor.running]
        if worker is not None:
            running += list(worker.assigned)[:1]
            if worker.actor and worker.actor in node.actors.actors:
                running.append(node.actors.actors[worker.actor].spec)
        hit: dict[str, set[Element]] = defaultdict(set)
        for spec in filter(None, running):
            hit[spec.name].update(_elements(spec))
        for name, elements in hit.items():
            self._kills[name] += [(element, now_s) for element in sorted(elements)]

    def _on_end(self, node: int) -> None:
        """A node's processes are about to end."""
        key = (node, self._cluster.incarnations[node])
        if key not in self.nodes:
            self.nodes[key] = self._cluster.env.now
            self._undeclared.add(key)

    def _on_membership(self, node: int, alive: bool) -> None:
        """The GCS has announced that a node has joined or is dead: maybe it was only slow."""
        incarnation = self._cluster.known[node].incarnation
        if not alive:
            self.nodes.setdefault((node, incarnation), self._cluster.env.now)
        over = incarnation - alive
        self._undeclared = {(n, i) for n, i in self._undeclared if n != node or i > over}

    def _on_frame(self, destination: str, messages: list[Any]) -> None:
        for message in messages:
            kind = type(message)
            if kind is SubmitTasks:
                self._visit(node_of(destination), message.tasks, self._believed(destination))
            elif kind is RunTasks:
                for assignment in message.tasks:
                    self._note(assignment.spec)
            elif kind is TasksMoved or kind is PlaceTasks:
                for spec in message.tasks:
                    self._note(spec)

    def _on_turn(self, address: str, _: Received, sent: Mapping[str, Sequence[Any]]) -> None:
        """The scheduler has placed tasks."""
        if not address.startswith(_SCHEDULERS):
            return
        for destination, messages in sent.items():
            for message in messages:
                kind = type(message)
                if kind is AssignTasks:
                    self._assigned(destination, message, self._believed(destination))
                elif kind is TasksPlaced:
                    self._visit(message.node, message.tasks, (message.incarnation,))
                elif kind is TaskUpdates:
                    # The GCS may refuse a placement: the node has died meanwhile, and the
                    # assignment never leaves.
                    self._visit(message.node, message.added, (message.incarnation,))

    def _on_output(self, client: str, born: float, body: bytes) -> None:
        if client == RELAY:
            self._outputs[0, body] = None  # what passes there names the incarnation
        elif client.startswith("node:"):
            self._outputs[int(born), body] = None

    def _believed(self, destination: str) -> tuple[int, ...]:
        """Return the incarnations of a node of which a sender may think now."""
        node = node_of(destination)
        present = self._cluster.incarnations[node]
        return (*sorted(i for n, i in self._undeclared if n == node and i < present), present)

    def _decode(self) -> None:
        """Read what the chains have put out: only where it matters, since decoding takes long."""
        outputs, self._outputs = self._outputs, {}
        for incarnation, body in outputs:
            for frame in decode_frames(body):
                for message in frame.messages:
                    if type(message) is AssignTasks and incarnation:
                        self._assigned(frame.destination, message, (incarnation,))
                    elif type(message) is TasksPlaced:
                        self._visit(message.node, message.tasks, (message.incarnation,))

    def _assigned(self, destination: str, message: AssignTasks, believed: tuple[int, ...]) -> None:
        """Note an assignment, which may name the incarnation that it is for."""
        if message.incarnation:
            believed = (message.incarnation,)
        self._visit(node_of(destination), message.tasks, believed)

    def _visit(self, node: int, specs: Sequence[TaskSpec], incarnations: tuple[int, ...]) -> None:
        """Note that ranges were given to a node, in one of these incarnations."""
        for spec in specs:
            self._note(spec)
            for incarnation in incarnations:
                visit = (spec.array, spec.start, spec.count, node, incarnation)
                self._visits[spec.name].append(visit)

    def _note(self, spec: TaskSpec) -> None:
        """Note how many retries elements have left.

        Each run again has cost one at most, and after the death of a worker just one. What the
        owner has freed, and others need, runs again at no cost.
        """
        if not spec.name.startswith("k") or spec.retries < 0:
            return
        used = retries_of(spec.name) - spec.retries
        extra = spec.extra or TaskExtra()
        if used:
            self._left[spec.name] = min(spec.retries, self._left.get(spec.name, spec.retries))
        again = extra.attempt + extra.crashes + extra.tries
        if not extra.crashes + extra.tries <= used <= again and len(self.found) < FINDINGS_MAX:
            text = (
                f"{spec.name} has lost {used} retries: {extra.crashes} by deaths of workers,"
                f" {extra.tries} by errors, {extra.attempt} at most by those of nodes"
            )
            self.found.append(Finding(Kind.RETRIES, text))


def retries_of(name: str) -> int:
    """Return the retries of a task or actor, with which its name ends."""
    return int(name.rpartition("r")[2])


def _elements(spec: TaskSpec) -> Iterator[Element]:
    return ((spec.array, index) for index in range(spec.start, spec.start + spec.count))
