"""Scheduling policies, which choose the node of a task: one small class each, chosen by name.

A policy answers two questions. The local scheduler asks `keep`: how many
elements of this range stay on their node? The global scheduler asks `spread`:
which of these nodes gets which piece of this range? By default that is `choose`
once a piece. To add a policy, subclass `Policy` and name it by import path:
``init(policy="my_module:MyPolicy")``.

Whatever the policy: if actors have all CPUs of a node, a task would wait there for an actor to
end. It goes to a node with CPUs for tasks, if there is one (`without_wait_for_actors`). Otherwise
it waits on its owner's node, where a CPU becomes free when the owner blocks on its result.

Cost: `keep` is one comparison a range; `choose` is O(nodes) a piece, `spread` of
bottom-up O(log nodes).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from heapq import heapify, heapreplace
from importlib import import_module

from raytwin.runtime.control.core.config import Config

UNTIMED_TASK_S = 0.001
"""The assumed time of a task while none has been timed anywhere."""
UNTIMED_BANDWIDTH = 1e9
"""The assumed bytes/s of a transfer while none has been timed."""


class LocalView:
    """A local scheduler's view of its node when it decides."""

    __slots__ = ("alone", "busy_s", "feasible", "mean_task_s", "queue", "slots")

    def __init__(
        self,
        *,
        alone: bool,
        feasible: bool,
        queue: int,
        slots: int,
        mean_task_s: float,
        busy_s: float = 0.0,
    ) -> None:
        self.alone = alone
        """Whether no other node is alive."""
        self.feasible = feasible
        """Whether the node's total resources meet the demand."""
        self.queue = queue
        self.slots = slots
        """How many such tasks it can run at once with the resources that no actor has; 0: none
        as long as these actors live."""
        self.mean_task_s = mean_task_s
        """The mean time of this function's tasks; 0 while none has ended."""
        self.busy_s = busy_s
        """The estimated seconds until a task that runs here ends; 0: there is room."""


class NodeView:
    """The global scheduler's view of one node that could run the task."""

    __slots__ = ("bandwidth", "busy_s", "mean_task_s", "node", "queue", "remote_bytes", "slots")

    def __init__(
        self,
        node: int,
        queue: int,
        slots: int,
        mean_task_s: float,
        remote_bytes: int,
        bandwidth: float,
        busy_s: float = 0.0,
    ) -> None:
        self.node = node
        self.queue = queue
        """Elements that wait or run there or are on their way."""
        self.slots = slots
        self.mean_task_s = mean_task_s
        self.remote_bytes = remote_bytes
        """Bytes of the task's inputs that are not there."""
        self.bandwidth = bandwidth
        self.busy_s = busy_s
        """The estimated seconds until a task that runs there ends; 0: there is room."""

    @property
    def queue_s(self) -> float:
        """Estimated wait in its queue: length x average task time, over slots.

        It is at least the estimated rest of the running tasks, unless no task was timed: then
        tasks are better spread evenly.
        """
        queue_s = self.queue * (self.mean_task_s or UNTIMED_TASK_S) / max(1, self.slots)
        return max(queue_s, self.busy_s) if self.mean_task_s else queue_s

    @property
    def transfer_s(self) -> float:
        """Estimated time to bring the inputs there."""
        return self.remote_bytes / (self.bandwidth or UNTIMED_BANDWIDTH)


class Policy:
    """Base class of all policies; its defaults are the paper's rules."""

    name = ""
    uses_locations = True
    """Whether `choose` looks at `NodeView.remote_bytes`, which costs a look-up."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def keep(self, view: LocalView, count: int) -> int:
        """Return how many of `count` elements stay on the node: 0 to `count`.

        The rest goes to the global scheduler.
        """
        if not view.feasible:
            return 0
        if view.alone:
            return count
        if view.busy_s >= self.config.spill_wait_s:
            return 0
        if view.mean_task_s > 0:
            room = int(self.config.spill_wait_s * view.slots / view.mean_task_s)
        else:
            room = 0
        room = max(room, self.config.spill_tasks_per_slot * view.slots)
        return max(0, min(count, room - view.queue))

    def choose(self, nodes: Sequence[NodeView], rng: random.Random) -> NodeView:
        """Return the node for a range; `nodes` is not empty."""
        return min(nodes, key=_wait)

    def spread(
        self, nodes: Sequence[NodeView], pieces: Sequence[int], rng: random.Random
    ) -> list[NodeView]:
        """Return the node for each piece of a range, given as numbers of elements.

        Each piece is in its node's queue before the next is placed; `nodes` is
        not empty.
        """
        chosen = []
        for count in pieces:
            view = self.choose(nodes, rng)
            view.queue += count
            chosen.append(view)
        return chosen


def _wait(node: NodeView) -> tuple[float, int]:
    return node.queue_s + node.transfer_s, node.queue


class BottomUp(Policy):
    """The paper's bottom-up scheduling."""

    name = "bottom-up"

    def spread(
        self, nodes: Sequence[NodeView], pieces: Sequence[int], rng: random.Random
    ) -> list[NodeView]:
        # Only the node that was chosen last has changed: a heap finds the next.
        # Among equals it is the first, as in `choose`.
        heap = [(*_wait(node), at) for at, node in enumerate(nodes)]
        heapify(heap)
        chosen = []
        for count in pieces:
            at = heap[0][2]
            view = nodes[at]
            view.queue += count
            chosen.append(view)
            heapreplace(heap, (*_wait(view), at))
        return chosen


class LocalityBlind(Policy):
    """Bottom-up scheduling that ignores the locations of inputs."""

    name = "locality-blind"
    uses_locations = False

    def choose(self, nodes: Sequence[NodeView], rng: random.Random) -> NodeView:
        return _least_queue(nodes, rng)


class Centralized(BottomUp):
    """Every task goes through the global scheduler."""

    name = "centralized"

    def keep(self, view: LocalView, count: int) -> int:
        return 0


class Random(Policy):
    """Every task goes to a node drawn at random."""

    name = "random"
    uses_locations = False

    def keep(self, view: LocalView, count: int) -> int:
        return 0

    def choose(self, nodes: Sequence[NodeView], rng: random.Random) -> NodeView:
        return nodes[rng.randrange(len(nodes))]


class PowerOfTwo(Random):
    """Every task goes to the less loaded of two nodes drawn at random."""

    name = "power-of-two"

    def choose(self, nodes: Sequence[NodeView], rng: random.Random) -> NodeView:
        return _least_queue([nodes[rng.randrange(len(nodes))] for _ in range(2)], rng)


def _least_queue(nodes: Sequence[NodeView], rng: random.Random) -> NodeView:
    """Return the node with the least wait, drawn at random among equals.

    A fixed order among equals would prefer one node, and so the inputs that happen
    to be there.
    """
    least = min(n.queue_s for n in nodes)
    equals = [n for n in nodes if n.queue_s == least]
    return equals[rng.randrange(len(equals))]


def without_wait_for_actors(views: list[NodeView], demand: str, home: int) -> list[NodeView]:
    """Return the nodes where a range need not wait for an actor to end, else its owner's node."""
    if not demand:
        return views
    return (
        [view for view in views if view.slots]
        or [view for view in views if view.node == home]
        or views
    )


POLICIES: dict[str, Callable[[Config], Policy]] = {
    p.name: p for p in (BottomUp, LocalityBlind, Centralized, Random, PowerOfTwo)
}


def make_policy(config: Config) -> Policy:
    """Return the policy that `config.policy` names.

    Raises ValueError for a name that is neither built in nor the import path
    ``module:Class`` of a `Policy`.
    """
    name = config.policy
    if name in POLICIES:
        return POLICIES[name](config)
    module, colon, attribute = name.partition(":")
    if not colon:
        known = ", ".join(POLICIES)
        raise ValueError(f"no policy {name!r}; there are {known}, or module:Class")
    try:
        made = getattr(import_module(module), attribute)(config)
    except (ImportError, AttributeError, TypeError) as error:
        raise ValueError(f"policy {name!r} cannot be made: {error}") from error
    if not isinstance(made, Policy):
        raise ValueError(f"policy {name!r} is not a subclass of {__name__}.Policy")
    return made


class BatchSampling(Random):
    """Sparrow's batch sampling: a batch goes to the least loaded of the nodes drawn for all of it.

    For m tasks it draws d x m nodes, `PROBES` for each task, and places the tasks one after
    another where the wait is least. So a task whose own draws were bad gets a node of the others;
    a single task is placed as by `power-of-two`. A batch is what is placed at once: a task array.
    Sparrow's tasks wait at all of their nodes for the first that is idle (late binding); here they
    go where the queue is shortest when they are placed. Ousterhout, Wendell, Zaharia and Stoica,
    "Sparrow: distributed, low latency scheduling", SOSP 2013.
    """

    name = "batch-sampling"
    PROBES = 2
    """For each task: where Sparrow's authors saw the shortest response times."""

    def choose(self, nodes: Sequence[NodeView], rng: random.Random) -> NodeView:
        return min(self._probed(nodes, 1, rng), key=_wait)

    def spread(
        self, nodes: Sequence[NodeView], pieces: Sequence[int], rng: random.Random
    ) -> list[NodeView]:
        return BottomUp(self.config).spread(self._probed(nodes, sum(pieces), rng), pieces, rng)

    def _probed(self, nodes: Sequence[NodeView], tasks: int, rng: random.Random) -> list[NodeView]:
        count = min(len(nodes), self.PROBES * tasks)
        return [nodes[at] for at in rng.sample(range(len(nodes)), count)]


POLICIES[BatchSampling.name] = BatchSampling
