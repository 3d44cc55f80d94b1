"""The callers' side of actors on a node: sends its clients' calls to the actors' nodes.

All clients of a node share one `CallRoute` to an actor, which keeps their calls in order::

    submit ──> WAITING ──actor is ALIVE──> SENT ──the result comes──> done
                  ↑                          │
                  │   the actor starts anew: ├── retries left: sent again, first
                  │                          └── none left: a probe: its result if
                  │                              it took effect, else an error
                  ├─ the actor is being reconstructed: its node is asked for the reply
                  │  (`reconstruction`), if the call may have taken effect before
                  └─ the actor is DEAD: ActorDiedError for all, once its node has
                     sent all replies that it has (`DrainCalls`)

So a call is lost neither with the actor's worker nor with its node, and it never takes effect
twice: the actor's node knows the calls of the incarnation (`ReplyCache`), and the GCS those
of the ones before.

Cost: two dictionary entries a call, one message an actor and turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from raytwin.runtime.control.actors.call_route import CallRoute
from raytwin.runtime.control.core.addresses import may_call_again
from raytwin.runtime.control.core.batching import cut, task_bytes
from raytwin.runtime.control.core.bounded_map import BoundedMap
from raytwin.runtime.control.core.call_batches import singles
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.context import Context, Handlers
from raytwin.runtime.control.core.direct_calls import is_ahead
from raytwin.runtime.control.core.failed_values import call_failed, cancelled_result
from raytwin.runtime.control.gcs.actor_table import ALIVE, DEAD, PENDING, STARTING
from raytwin.runtime.control.messages import (
    ActorCalls,
    ActorChanged,
    CallsDrained,
    CancelCall,
    DrainCalls,
    RangeResult,
    TaskSpec,
    WatchActors,
)
from raytwin.runtime.control.messages.errors import Failure

BURIED_MAX = 65_536
"""How many dead actors a node remembers, at most; of others it asks the GCS again."""


class CallSubmitter:
    """Sends calls to actors, and sends them again to new incarnations."""

    def __init__(
        self,
        ctx: Context,
        node: int,
        config: Config,
        deliver: Callable[[ActorCalls], None],
        fail: Callable[[RangeResult, str], None],
        dead: Callable[[bytes, Failure], None],
        cancel: Callable[[CancelCall], None],
    ) -> None:
        self._ctx = ctx
        self._node = node
        self._config = config
        self._deliver = deliver
        """Passes calls on to actors of this node."""
        self._fail = fail
        """Ends a call with an error: result and owner."""
        self._cancel = cancel
        """Cancels a call of an actor of this node."""
        self.on_alive: Callable[[bytes], None] = lambda actor: None
        """Called with an actor that takes calls now, also if a client creates it once more."""
        self._dead = dead
        """Called with an actor that is dead, and the reason."""
        self._routes: dict[bytes, CallRoute] = {}
        """By actor, without those in `_buried`."""
        self._buried: BoundedMap[bytes, CallRoute] = BoundedMap(BURIED_MAX)
        """By actor: dead ones that have sent all replies."""
        self._under_way: dict[bytes, CallRoute] = {}
        """By call."""
        self._draining: dict[bytes, CallRoute] = {}
        """By actor: dead ones whose node may still send replies."""
        self._dead_nodes: set[int] = set()
        self.unsent: dict[bytes, CallRoute] = {}
        """Routes that have something to send at the end of the turn."""
        self.unwatched: list[bytes] = []
        """Actors to ask the GCS about at the end of the turn."""

    def handlers(self) -> Handlers:
        return {
            ActorChanged: lambda _, m: self.on_changed(m),
            CallsDrained: lambda _, m: self.on_drained(m.actor),
        }

    def submit(self, spec: TaskSpec) -> None:
        """Send a call of a client of this node, as soon as its actor takes calls."""
        assert spec.extra is not None
        actor = spec.extra.call
        route = self.watch(actor)
        if route.state == ALIVE:
            self._send(route, spec)
        elif route.state == DEAD:
            self._end(spec, route.reason)
        else:
            self._under_way[spec.array] = route
            route.waiting.append(spec)
            self._ask(route, [spec])

    def submit_again(self, spec: TaskSpec) -> None:
        """Send once more a call that has no result, for its caller of now; see `CallRoute`."""
        route = self._under_way.get(spec.array)
        if route is not None:
            route.submit_again(spec)
            self.unsent[route.actor] = route
            self._ask(route, [spec])

    def submit_run(self, spec: TaskSpec, arrays: Sequence[bytes]) -> None:
        """Send a run of calls, one by one if they have to wait."""
        assert spec.extra is not None
        route = self.watch(spec.extra.call)
        if route.state == ALIVE:
            self._under_way.update(dict.fromkeys(arrays, route))
            route.sent.update(dict.fromkeys(arrays, spec))
            route.out.append(spec)
            self.unsent[route.actor] = route
        else:
            for single in singles([spec]):
                self.submit(single)

    def watch(self, actor: bytes) -> CallRoute:
        """Have the GCS report where an actor is; return its route."""
        route = self._routes.get(actor) or self._buried.get(actor)
        if route is None:
            route = self._routes[actor] = CallRoute(actor)
            self.unwatched.append(actor)
        return route

    def created(self, actor: bytes) -> None:
        """A client of this node creates the actor, maybe once more: ask the GCS where it is."""
        self._buried.pop(actor, None)
        if self.watch(actor).state == ALIVE:
            self.on_alive(actor)

    def killed(self, actor: bytes) -> None:
        """A client of this node kills the actor.

        Later calls wait until the GCS reports whether the actor is dead or starts again.
        """
        route = self._routes.get(actor)
        if route is not None and route.state == ALIVE:
            route.state = PENDING

    def cancel(self, call: bytes) -> bool:
        """Cancel a call of a client of this node; return False if it is no call under way."""
        route = self._under_way.get(call)
        if route is None:
            return False
        route.take_apart()
        specs = [*route.waiting, *route.sent.values()]
        spec = next(spec for spec in specs if spec.array == call)
        new = [*route.waiting, *route.out[route.again :]]
        if not is_ahead(spec) and any(other is spec for other in new):
            route.out = [other for other in route.out if other is not spec]
            self.forget(call)
            self._fail(cancelled_result(spec, self._node), spec.owner)
        elif route.state == ALIVE:
            # The worker may run it. The cancellation goes behind the call itself:
            self._send_calls(route)
            route.asked.add(call)
            message = CancelCall(route.actor, call)
            if route.node == self._node:
                self._cancel(message)
            else:
                self._ctx.send(f"node:{route.node}", message)
        else:
            route.cancelled.append(call)
        return True

    def received(self, call: bytes) -> bool:
        """A result has come; return whether it is that of a call under way."""
        route = self._under_way.pop(call, None)
        if route is None:
            return False
        if route.sent.pop(call, None) is None and route.waiting:
            route.waiting = [spec for spec in route.waiting if spec.array != call]
        if route.logged:
            route.probed.discard(call)
            route.asked.discard(call)
        return True

    def all_received(self, calls: Sequence[bytes]) -> bool:
        """`received` for each of these if all are under way; else do nothing."""
        under_way = self._under_way
        routes = set(map(under_way.get, calls))
        route = routes.pop()
        if routes or route is None or route.logged:
            return False
        sent = route.sent
        for call in calls:
            del under_way[call]
            sent.pop(call, None)
        return True

    def any_under_way(self, calls: Sequence[bytes]) -> bool:
        """Whether any of these is a call that has no result yet."""
        return not self._under_way.keys().isdisjoint(calls)

    def forget(self, call: bytes) -> None:
        """The owner released a call, or died: no client waits for the result."""
        route = self._under_way.pop(call, None)
        if route is not None:
            route.sent.pop(call, None)
            route.probed.discard(call)
            route.asked.discard(call)
            route.waiting = [spec for spec in route.waiting if spec.array != call]

    def forget_all(self, arrays: Sequence[bytes]) -> None:
        """`forget` those of these that are calls under way."""
        if not self._under_way.keys().isdisjoint(arrays):
            for array in arrays:
                self.forget(array)

    def on_changed(self, message: ActorChanged) -> None:
        """The GCS reports that an actor is alive, starts, or is dead."""
        route = self._routes.get(message.actor) or self._buried.get(message.actor)
        if route is None:
            return
        if route.state == DEAD:
            if message.state != DEAD and message.incarnation > route.incarnation:
                # Its creator has run again.
                self.created(message.actor)
            return
        if message.state != DEAD and message.incarnation < route.incarnation:
            return
        anew = message.incarnation != route.incarnation
        route.state, route.reason = message.state, message.reason
        route.starting = None
        route.take_apart()
        if route.state == DEAD:
            # Calls that were to leave at the end of this turn do not.
            route.out, route.probes, route.again = [], [], 0
            there = route.node not in (-1, self._node) and route.node not in self._dead_nodes
            if route.sent and there:
                # The GCS's message may have overtaken replies from the actor's node.
                self._draining[route.actor] = route
                self._ctx.send(f"node:{route.node}", DrainCalls(route.actor, route.incarnation))
            else:
                self._bury(route)
        elif route.state == ALIVE and anew:
            route.node, route.incarnation = message.node, message.incarnation
            route.logged = message.logged
            self._send_again(route)
            self._cancel_late(route)
            self.on_alive(route.actor)
        elif route.state == ALIVE:
            # A kill was refused.
            self.unsent[route.actor] = route
            waiting, route.waiting = route.waiting, []
            for spec in waiting:
                self._send(route, spec)
            self._cancel_late(route)
        elif route.state == STARTING and message.incarnation and message.node >= 0:
            route.starting = message.node, message.incarnation
            route.logged = message.logged
            self._ask(route, [*route.sent.values(), *route.waiting])

    def _ask(self, route: CallRoute, calls: Sequence[TaskSpec]) -> None:
        """Ask an actor that is being reconstructed for replies; see `reconstruction`.

        It sends, without arguments, calls that may have taken effect for an earlier run of
        their caller.
        """
        if route.starting is not None:
            asked = [call for call in calls if may_call_again(call.owner)]
            route.early += [replace(call, args=b"", deps=()) for call in asked]
            self.unsent[route.actor] = route

    def _send_early(self, route: CallRoute) -> None:
        early, route.early = route.early, []
        if early and route.starting is not None:
            node, incarnation = route.starting
            for piece in cut(early, task_bytes):
                calls = ActorCalls(route.actor, incarnation, [], [], early=piece)
                if node == self._node:
                    self._deliver(calls)
                else:
                    self._ctx.send(f"node:{node}", calls)

    def _cancel_late(self, route: CallRoute) -> None:
        cancelled, route.cancelled = route.cancelled, []
        for call in cancelled:
            self.cancel(call)

    def on_drained(self, actor: bytes) -> None:
        """A dead actor's node has sent all replies."""
        route = self._draining.pop(actor, None)
        if route is not None:
            self._bury(route)

    def on_node_changed(self, node: int, alive: bool) -> None:
        """A dead node sends no more replies of dead actors."""
        if alive:
            self._dead_nodes.discard(node)
            return
        self._dead_nodes.add(node)
        for actor in [actor for actor, route in self._draining.items() if route.node == node]:
            self.on_drained(actor)

    def end_turn(self) -> None:
        """Send the calls of this turn, one message an actor."""
        if self.unwatched:
            self._ctx.send("gcs", WatchActors(self.unwatched))
            self.unwatched = []
        while self.unsent:
            dirty, self.unsent = self.unsent, {}
            for route in dirty.values():
                self._send_early(route)
                self._send_calls(route)

    def _send_calls(self, route: CallRoute) -> None:
        route.send_repeated()
        out, route.out = route.out, []
        probes, route.probes = route.probes, []
        again, route.again = route.again, 0
        if not out and not probes:
            return
        if route.node == self._node:
            self._deliver(
                ActorCalls(
                    route.actor, route.incarnation, out, probes, again, [], route.unwanted(probes)
                )
            )
            return
        for piece in cut(out, task_bytes):
            # Calls that are sent again are the first.
            calls = ActorCalls(route.actor, route.incarnation, piece, [], min(again, len(piece)))
            again -= calls.again
            self._ctx.send(f"node:{route.node}", calls)
        for piece in cut(probes, task_bytes):
            unwanted = route.unwanted(piece)
            calls = ActorCalls(route.actor, route.incarnation, [], piece, 0, [], unwanted)
            self._ctx.send(f"node:{route.node}", calls)

    def _send(self, route: CallRoute, spec: TaskSpec) -> None:
        self._under_way[spec.array] = route
        route.sent[spec.array] = spec
        route.out.append(spec)
        self.unsent[route.actor] = route

    def _send_again(self, route: CallRoute) -> None:
        again, route.sent = list(route.sent.values()), {}
        waiting, route.waiting = route.waiting, []
        # Calls that were to leave at the end of this turn are in `sent`, too.
        fresh = {spec.array for spec in route.out}
        route.out, route.probes, route.again = [], [], 0
        route.probed, route.repeated = set(), {}
        for spec in again:
            if spec.array in fresh or (spec.retries != 0 and spec.array not in route.asked):
                if spec.array not in fresh:
                    # Fresh calls are the last ones.
                    route.again += 1
                    if spec.retries > 0:
                        spec.retries -= 1
                self._send(route, spec)
            else:
                route.sent[spec.array] = spec
                route.probes.append(spec)
                route.probed.add(spec.array)
                self.unsent[route.actor] = route
        for spec in waiting:
            self._send(route, spec)

    def _bury(self, route: CallRoute) -> None:
        ended = [*route.sent.values(), *route.waiting]
        route.sent, route.waiting, route.out, route.probes = {}, [], [], []
        route.probed, route.repeated, route.asked = set(), {}, set()
        route.again, route.cancelled = 0, []
        for spec in ended:
            self._under_way.pop(spec.array, None)
            self._end(spec, route.reason)
        self._buried[route.actor] = self._routes.pop(route.actor)
        assert route.reason is not None
        self._dead(route.actor, route.reason)

    def _end(self, spec: TaskSpec, failure: Failure | None) -> None:
        assert failure is not None, "its actor is dead for no reason"
        self._fail(call_failed(spec, failure, self._node), spec.owner)
