"""The nodes among which a policy chooses: views of them, and the orders in which it looks them up.

`Candidates` is a sequence of views, so that a policy may look at all nodes. The built-in policies
need not: they ask it for the node with the least wait. It answers from sorted lists of keys, one
for each order that anyone has asked for, and a key is replaced when its node changes. The answer
is the one that a look at all nodes gives (`policies` has these rules, for plain sequences).

Cost, with n nodes: O(log n) comparisons for an answer or a changed node, which in addition moves up
to 8 n bytes in each list: 1 to 5 microseconds, for 10 to 10,000 nodes. With inputs an answer looks
at the nodes that have copies of them, and at one node for each length of queue that a better
connection of its node could still make up for.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any, overload

from raytwin.runtime.control.messages import Location

UNTIMED_TASK_S = 0.001
"""The assumed time of a task while none has been timed anywhere."""
UNTIMED_BANDWIDTH = 1e9
"""The assumed bytes/s of a transfer while none has been timed."""


class NodeView:
    """The global scheduler's view of one node that could run the task."""

    __slots__ = (
        "_queue", "_within", "bandwidth", "busy_s", "mean_task_s", "node", "remote_bytes", "slots",
    )  # fmt: skip

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
        self._within: Candidates | None = None
        self.node = node
        self._queue = queue
        self.slots = slots
        self.mean_task_s = mean_task_s
        self.remote_bytes = remote_bytes
        """Bytes of the task's inputs that are not there."""
        self.bandwidth = bandwidth
        self.busy_s = busy_s
        """The estimated seconds until a task that runs there ends; 0: there is room."""

    @property
    def queue(self) -> int:
        """Elements that wait or run there or are on their way.

        A policy that spreads a range adds each piece to it.
        """
        return self._queue

    @queue.setter
    def queue(self, queue: int) -> None:
        self._queue = queue
        if self._within is not None:
            self._within.touched.append(self)

    @property
    def queue_s(self) -> float:
        """Estimated wait in its queue: length x average task time, over slots.

        It is at least the estimated rest of the running tasks, unless no task was timed: then
        tasks are better spread evenly.
        """
        mean_s = self.mean_task_s
        slots = self.slots
        queue_s = self._queue * (mean_s or UNTIMED_TASK_S) / (slots if slots > 1 else 1)
        return self.busy_s if mean_s and self.busy_s > queue_s else queue_s

    @property
    def transfer_s(self) -> float:
        """Estimated time to bring the inputs there."""
        return self.remote_bytes / (self.bandwidth or UNTIMED_BANDWIDTH)


Key = tuple[Any, ...]
"""The sort key of a node in an `_Order`; its last item is the node's number."""


def _by_position(view: NodeView, position: int) -> Key:
    return position, view.node


def _by_wait(view: NodeView, position: int) -> Key:
    return view.queue_s, view.queue, position, view.node


def _by_queue(view: NodeView, position: int) -> Key:
    return view.queue_s, position, view.node


def _by_link(view: NodeView, position: int) -> Key:
    return view.queue_s, -(view.bandwidth or UNTIMED_BANDWIDTH), view.queue, position, view.node


def _by_turn(view: NodeView, position: int) -> Key:
    return view.queue // max(1, view.slots), view.node


class _Order:
    """The keys of nodes, sorted."""

    __slots__ = ("_key", "_of", "keys")

    def __init__(
        self, key: Callable[[NodeView, int], Key], items: Iterable[tuple[NodeView, int]]
    ) -> None:
        self._key = key
        self._of = {view.node: key(view, position) for view, position in items}
        self.keys = sorted(self._of.values())

    def put(self, view: NodeView, position: int) -> None:
        key, old = self._key(view, position), self._of.get(view.node)
        if key == old:
            return
        if old is not None:
            del self.keys[bisect_left(self.keys, old)]
        insort(self.keys, key)
        self._of[view.node] = key

    def drop(self, node: int) -> None:
        del self.keys[bisect_left(self.keys, self._of.pop(node))]


class Candidates(Sequence[NodeView]):
    """The views of some nodes, in a fixed order; see the module.

    `NodeView.remote_bytes` of what it returns is right until the next call of `locate`.
    """

    def __init__(self, views: Iterable[NodeView] = ()) -> None:
        self._views: dict[int, NodeView] = {}
        self._positions: dict[int, int] = {}
        self._sequence = _Order(_by_position, ())
        self._orders: dict[Callable[[NodeView, int], Key], _Order] = {}
        """By its key: each other order that was asked for."""
        self.touched: list[NodeView] = []
        """Views whose queues have changed since the last look-up."""
        self._input_bytes = 0
        self._local_bytes: Mapping[int, int] = {}
        """By node: the bytes of inputs that are there; without nodes that have none."""
        self._quickest = 0.0
        """No node has had a higher bandwidth, bytes/s."""
        for position, view in enumerate(views):
            self.put(view, position)

    # -- a sequence ----------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._views)

    @overload
    def __getitem__(self, at: int) -> NodeView: ...
    @overload
    def __getitem__(self, at: slice) -> list[NodeView]: ...
    def __getitem__(self, at: int | slice) -> NodeView | list[NodeView]:
        if isinstance(at, slice):
            return [self._seen(node) for _, node in self._sequence.keys[at]]
        return self._seen(self._sequence.keys[at][1])

    def __iter__(self) -> Iterator[NodeView]:
        for _, node in self._sequence.keys:
            yield self._seen(node)

    # -- which nodes ---------------------------------------------------------------

    def put(self, view: NodeView, position: int) -> None:
        """Add a node or replace its view; `position` is its place in the sequence."""
        node = view.node
        view._within = self
        self._views[node] = view
        self._quickest = max(self._quickest, view.bandwidth or UNTIMED_BANDWIDTH)
        if self._positions.get(node) != position:
            self._positions[node] = position
            self._sequence.put(view, position)
        for order in self._orders.values():
            order.put(view, position)

    def drop(self, node: int) -> None:
        """Remove a node, if it is there."""
        if self._views.pop(node, None) is None:
            return
        del self._positions[node]
        self._sequence.drop(node)
        for order in self._orders.values():
            order.drop(node)

    def at(self, node: int) -> NodeView | None:
        """Return the view of a node, None if it is no candidate."""
        return self._seen(node) if node in self._views else None

    def locate(self, inputs: Collection[Location]) -> None:
        """Take the inputs of the range that is placed next, whose views are right from now on."""
        if self.touched:
            self._settle()
        if not inputs and not self._input_bytes:
            return
        self._input_bytes = 0
        local: dict[int, int] = {}
        for location in inputs:
            self._input_bytes += location.size
            for node in location.nodes:
                local[node] = local.get(node, 0) + location.size
        self._local_bytes = local

    # -- what policies look up -------------------------------------------------------

    def least_wait(self) -> NodeView:
        """Return the node with the least wait in its queue and for inputs.

        Among equals it is the one with the shortest queue, then the first.
        """
        if not self._input_bytes:
            return self._seen(self._order(_by_wait).keys[0][-1])
        # A node that has copies of inputs waits no longer than if it had none.
        best = self._least_without_copies()
        for node in self._local_bytes:
            if node in self._views:
                view = self._seen(node)
                wait_s = view.queue_s + view.transfer_s
                best = min(best, (wait_s, view.queue, self._positions[node], node))
        return self._seen(best[-1])

    def _least_without_copies(self) -> Key:
        """Return (wait, queue, position, node) of the least wait, if no node has any inputs."""
        nbytes, at = self._input_bytes, 0
        best: Key = (inf,)
        keys = self._order(_by_link).keys
        while at < len(keys) and keys[at][0] + nbytes / self._quickest <= best[0]:
            queue_s, minus_bandwidth, *rest = keys[at]
            wait_s = queue_s + nbytes / -minus_bandwidth
            best = min(best, (wait_s, *rest))
            # Of the nodes with this wait in their queues the next has less bandwidth. It may be
            # an equal all the same: sums may round a difference in the last bits away.
            next_to = (queue_s, inf) if wait_s > best[0] else (queue_s, minus_bandwidth, inf)
            at = bisect_right(keys, next_to, at)
        return best

    def least_queue(self, rng: random.Random) -> NodeView:
        """Return the node with the least wait in its queue, drawn at random among equals."""
        keys = self._order(_by_queue).keys
        equals = bisect_right(keys, (keys[0][0], inf))
        return self._seen(keys[rng.randrange(equals)][-1])

    def next_in_turn(self, last: int) -> NodeView:
        """Return the node whose slots have the fewest elements each; among equals the next number
        after `last`."""
        keys = self._order(_by_turn).keys
        level = keys[0][0]
        at = bisect_right(keys, (level, last))
        return self._seen(keys[at if at < len(keys) and keys[at][0] == level else 0][-1])

    def _settle(self) -> None:
        """Sort the nodes anew to whose queues a policy has added."""
        for view in self.touched:
            if self._views.get(view.node) is view:
                for order in self._orders.values():
                    order.put(view, self._positions[view.node])
        self.touched.clear()

    def _order(self, key: Callable[[NodeView, int], Key]) -> _Order:
        if self.touched:
            self._settle()
        found = self._orders.get(key)
        if found is None:
            items = ((view, self._positions[node]) for node, view in self._views.items())
            found = self._orders[key] = _Order(key, items)
        return found

    def _seen(self, node: int) -> NodeView:
        view = self._views[node]
        view.remote_bytes = self._input_bytes - self._local_bytes.get(node, 0)
        return view
