"""Scheduling policies, which choose the node of a task: one small class each, chosen by name.

A policy answers two questions. The local scheduler asks `keep`: how many
elements of this range stay on their node? The global scheduler asks `spread`:
which of these nodes gets which piece of this range? By default that is `choose`
once a piece. If the policy `steals`, idle nodes also fetch ranges from others
(`stealing`). To add a policy, subclass `Policy` and name it by import path:
``init(policy="my_module:MyPolicy")``.

Whatever the policy: if actors have all CPUs of a node, a task would wait there for an actor to
end. It goes to a node with CPUs for tasks, if there is one (`node_views.AbleNodes.allowed`).
Otherwise it waits on its owner's node, where a CPU becomes free when the owner blocks on its
result.

Cost: `keep` is one comparison a range. `choose` looks at no more nodes than it names: the least
wait comes from an index (`candidates`), O(log nodes) a piece. A policy of a user's own may look at
all nodes, which are a sequence, at O(nodes) a piece.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from heapq import heapify, heapreplace
from importlib import import_module

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.scheduling.candidates import Candidates
from raytwin.runtime.control.scheduling.candidates import NodeView as NodeView


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


def kept(view: LocalView, count: int, spill_wait_s: float, spill_tasks_per_slot: int) -> int:
    """Return how many of `count` elements stay where a queue has room for this wait, or for so many
    tasks a slot, whichever are more."""
    if view.busy_s >= spill_wait_s:
        return 0
    room = int(spill_wait_s * view.slots / view.mean_task_s) if view.mean_task_s > 0 else 0
    room = max(room, spill_tasks_per_slot * view.slots) - view.queue
    return count if room >= count else max(0, room)


class Policy:
    """Base class of all policies; its defaults are the paper's rules."""

    name = ""
    uses_locations = True
    """Whether `choose` looks at `NodeView.remote_bytes`, which costs a look-up."""
    steals = False
    """Whether a node with idle workers and an empty queue asks other nodes for ranges."""
    on_threshold: Callable[[LocalView, int], None] | None = None
    """Called with what `keep` is about to compare with ``spill_wait_s``; see `near_threshold`."""

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
        if self.on_threshold is not None:
            self.on_threshold(view, count)
        config = self.config
        return kept(view, count, config.spill_wait_s, config.spill_tasks_per_slot)

    def choose(self, nodes: Sequence[NodeView], rng: random.Random) -> NodeView:
        """Return the node for a range; `nodes` is not empty, and in a fixed order."""
        return nodes.least_wait() if isinstance(nodes, Candidates) else min(nodes, key=_wait)

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
    if isinstance(nodes, Candidates):
        return nodes.least_queue(rng)
    least = min(n.queue_s for n in nodes)
    equals = [n for n in nodes if n.queue_s == least]
    return equals[rng.randrange(len(equals))]


class BatchSampling(Policy):
    """Sparrow's batch sampling: a batch goes to the least loaded of the nodes drawn for all of it.

    For m tasks it draws d x m nodes, `PROBES` for each task, and places the tasks one after
    another where the wait is least. So a task whose own draws were bad gets a node of the others;
    a single task is placed as by `power-of-two`. A batch is what is placed at once: a task array.
    Sparrow's tasks wait at all of their nodes for the first that is idle (late binding); here they
    go where the queue is shortest when they are placed. Ousterhout, Wendell, Zaharia and Stoica,
    "Sparrow: distributed, low latency scheduling", SOSP 2013.
    """

    name = "batch-sampling"
    uses_locations = False
    PROBES = 2
    """For each task: where Sparrow's authors saw the shortest response times."""

    def keep(self, view: LocalView, count: int) -> int:
        return 0

    def choose(self, nodes: Sequence[NodeView], rng: random.Random) -> NodeView:
        return min(self._probed(nodes, 1, rng), key=_wait)

    def spread(
        self, nodes: Sequence[NodeView], pieces: Sequence[int], rng: random.Random
    ) -> list[NodeView]:
        probed = self._probed(nodes, sum(pieces), rng)
        # Only the node that was chosen last has changed: a heap finds the next.
        heap = [(*_wait(view), at) for at, view in enumerate(probed)]
        heapify(heap)
        chosen = []
        for count in pieces:
            at = heap[0][-1]
            view = probed[at]
            view.queue += count
            chosen.append(view)
            heapreplace(heap, (*_wait(view), at))
        return chosen

    def _probed(self, nodes: Sequence[NodeView], tasks: int, rng: random.Random) -> list[NodeView]:
        count = min(len(nodes), self.PROBES * tasks)
        return [nodes[at] for at in rng.sample(range(len(nodes)), count)]


class WorkStealing(Policy):
    """Every task stays on its node until an idle node, which asks others at random, takes it.

    Nodes place nothing: a task leaves its node only for one that has a worker for it, so nobody
    needs to know how long the queues are. `stealing` says who asks whom, and for how much.
    Whatever cannot run on its node goes to a node drawn at random, from which others steal.
    Blumofe and Leiserson, "Scheduling multithreaded computations by work stealing", JACM 46(5),
    1999; half at a time as by Hendler and Shavit, "Non-blocking steal-half work queues", PODC 2002.
    """

    name = "work-stealing"
    uses_locations = False
    steals = True

    def keep(self, view: LocalView, count: int) -> int:
        return count if view.feasible and (view.slots or view.alone) else 0

    def choose(self, nodes: Sequence[NodeView], rng: random.Random) -> NodeView:
        return nodes[rng.randrange(len(nodes))]


POLICIES: dict[str, Callable[[Config], Policy]] = {
    policy.name: policy
    for policy in (
        BottomUp, LocalityBlind, Centralized, Random, PowerOfTwo, BatchSampling, WorkStealing,
    )
}  # fmt: skip


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
