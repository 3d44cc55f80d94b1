"""Pending calls: the callers' side of actors, from a call's submission to its result.

A node sends its clients' calls to the actors' nodes, and sends or fails them when an actor's worker
or node has died.

All clients of a node share one `CallRoute` to an actor, which keeps their calls in order::

    submit ──> WAITING ──actor is ALIVE──> SENT ──the result comes──> done
                  ↑                          │
                  │   the actor restarts:    ├── retries left: sent again, first
                  │                          └── none left: ActorUnavailableError at once, as
                  │                              new calls without retries until it is ALIVE
                  ├─ the actor is being reconstructed: its node is asked for the reply
                  │  (`actor_reconstruction`), if the call may have taken effect before
                  └─ the actor is DEAD: ActorDiedError for all, once its node has
                     sent all replies that it has (`DrainCalls`)

So a call with retries is lost neither with the actor's worker nor with its node, and it never
takes effect twice: the actor's node knows the calls of its incarnation (`ReplyCache`), and the
GCS those of earlier incarnations.

A caller that runs again repeats its calls. If it ran on another node meanwhile, the actor's node
has replied to that node's client, which called last. So this node sends a call without a reply
once more. On the actor's node the repeated call replaces the first one, or gets its reply.

Cost: two dictionary entries a call, one message an actor and turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from raytwin.runtime.control.core.addresses import may_repeat_calls
from raytwin.runtime.control.core.batching import cut, task_bytes
from raytwin.runtime.control.core.bounded_map import BoundedMap
from raytwin.runtime.control.core.call_batches import is_batch, singles
from raytwin.runtime.control.core.context import Context, Handlers
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
from raytwin.runtime.control.messages.errors import (
    ActorUnavailable,
    Failure,
)

DEAD_ROUTES_MAX = 65_536
"""How many dead actors a node remembers, at most; it asks the GCS again about others."""


class CallRoute:
    """The location of one actor, and the calls to it by this node's clients."""

    def __init__(self, actor: bytes) -> None:
        self.actor = actor
        self.state = PENDING
        self.node = -1
        self.incarnation = -1
        self.logged = False
        self.killed = False
        """Whether a client here has killed it for good: no later call may reach it, however late
        the GCS gets to know, and whichever incarnation it reports until then."""
        self.reason: Failure | None = None
        """Why it is dead or restarts; None if it is alive, or starts for the first time."""
        self.waiting: list[TaskSpec] = []
        self.sent: dict[bytes, TaskSpec] = {}
        """Calls without a result, by array, in order."""
        self.out: list[TaskSpec] = []
        """Calls to send with this turn."""
        self.cancelled: list[bytes] = []
        """Calls to cancel as soon as the actor accepts calls: they may have begun before."""
        self.asked: set[bytes] = set()
        """Calls that the actor's node was asked to cancel: a later incarnation is asked again."""
        self.starting: tuple[int, int] | None = None
        """Node and incarnation of an actor that is being reconstructed, once it has its lineage."""
        self.early: list[TaskSpec] = []
        """Calls to send to that node at the end of the turn, for replies from the lineage."""

    @property
    def restarts(self) -> bool:
        """Whether the actor has failed and is not alive again: only calls with retries wait."""
        return self.state in (PENDING, STARTING) and self.reason is not None

    def split_batches(self) -> None:
        """Split all batches into single calls."""
        batches = {id(spec): spec for spec in (*self.sent.values(), *self.out) if is_batch(spec)}
        if not batches:
            return
        calls = {
            key: {call.array: call for call in singles([batch])} for key, batch in batches.items()
        }
        for call, spec in self.sent.items():
            if id(spec) in calls:
                self.sent[call] = calls[id(spec)][call]
        out: list[TaskSpec] = []
        for spec in self.out:
            out += calls[id(spec)].values() if id(spec) in calls else [spec]
        self.out = out

    def submit_again(self, spec: TaskSpec) -> None:
        """Take a call without a result that its caller repeats."""
        call = spec.array
        self.split_batches()
        old = self.sent.get(call)
        if old is None:
            self.waiting = [spec if other.array == call else other for other in self.waiting]
            return
        # Retries count the actor's failures, however often its caller runs.
        spec.retries = old.retries
        if self.state == ALIVE:
            self.sent[call] = spec
            self.out = [other for other in self.out if other is not old] + [spec]
        else:
            del self.sent[call]
            self.waiting.append(spec)


class PendingCalls:
    """Sends calls to actors, and sends them again to new incarnations."""

    def __init__(
        self,
        ctx: Context,
        node: int,
        deliver: Callable[[ActorCalls], None],
        fail: Callable[[RangeResult, str], None],
        dead: Callable[[bytes, Failure], None],
        cancel: Callable[[CancelCall], None],
    ) -> None:
        self._ctx = ctx
        self._node = node
        self._deliver = deliver
        """Delivers calls to actors of this node."""
        self._fail = fail
        """Ends a call with an error: result and owner."""
        self._cancel = cancel
        """Cancels a call of an actor of this node."""
        self.on_alive: Callable[[bytes], None] = lambda actor: None
        """Called with an actor that accepts calls from now on, also if it was created again."""
        self._dead = dead
        """Called with an actor that is dead, and the reason."""
        self._routes: dict[bytes, CallRoute] = {}
        """By actor, except those in `_dead_routes`."""
        self._dead_routes: BoundedMap[bytes, CallRoute] = BoundedMap(DEAD_ROUTES_MAX)
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
        """Send a call of a client of this node, as soon as its actor accepts calls."""
        assert spec.extra is not None
        actor = spec.extra.call
        route = self.watch(actor)
        if route.state == ALIVE:
            self._send(route, spec)
        elif route.state == DEAD:
            self._end(spec, route.reason)
        elif route.restarts and spec.retries == 0:
            self._end(spec, ActorUnavailable(spec.name, actor))
        else:
            self._under_way[spec.array] = route
            route.waiting.append(spec)
            self._ask(route, [spec])

    def submit_again(self, spec: TaskSpec) -> None:
        """Send a call without a result once more, for the client that has repeated it."""
        route = self._under_way.get(spec.array)
        if route is not None:
            route.submit_again(spec)
            self.unsent[route.actor] = route
            self._ask(route, [spec])

    def submit_batch(self, spec: TaskSpec, arrays: Sequence[bytes]) -> None:
        """Send a batch of calls, one by one if they have to wait."""
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
        """Subscribe to an actor's changes at the GCS; return its route."""
        route = self._routes.get(actor) or self._dead_routes.get(actor)
        if route is None:
            route = self._routes[actor] = CallRoute(actor)
            self.unwatched.append(actor)
        return route

    def created(self, actor: bytes) -> None:
        """A client of this node creates the actor, maybe again: subscribe to its changes."""
        self._dead_routes.pop(actor, None)
        if self.watch(actor).state == ALIVE:
            self.on_alive(actor)

    def killed(self, actor: bytes, restart: bool) -> None:
        """A client of this node kills the actor.

        Later calls wait until the GCS reports that the actor is dead or, with `restart`, starts
        again.
        """
        route = self._routes.get(actor)
        if route is not None:
            route.killed = route.killed or not restart
            if route.state == ALIVE:
                route.state = PENDING

    def cancel(self, call: bytes) -> bool:
        """Cancel a call of a client of this node; return False if no such call is under way."""
        route = self._under_way.get(call)
        if route is None:
            return False
        route.split_batches()
        if call not in route.sent:
            spec = next(spec for spec in route.waiting if spec.array == call)
            self.forget(call)
            self._fail(cancelled_result(spec, self._node), spec.owner)
        elif route.state == ALIVE:
            # The worker may run it, so the cancellation must follow the call itself.
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
        """A result has arrived; return whether it is that of a call under way."""
        route = self._under_way.pop(call, None)
        if route is None:
            return False
        if route.sent.pop(call, None) is None and route.waiting:
            route.waiting = [spec for spec in route.waiting if spec.array != call]
        if route.logged:
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
            route.asked.discard(call)
            route.waiting = [spec for spec in route.waiting if spec.array != call]

    def forget_all(self, arrays: Sequence[bytes]) -> None:
        """`forget` each of these that is a call under way."""
        if not self._under_way.keys().isdisjoint(arrays):
            for array in arrays:
                self.forget(array)

    def on_changed(self, message: ActorChanged) -> None:
        """The GCS reports that an actor is alive, starts, or is dead."""
        route = self._routes.get(message.actor) or self._dead_routes.get(message.actor)
        if route is None:
            return
        if route.state == DEAD:
            if message.state != DEAD and message.incarnation > route.incarnation:
                # Its creator has run again.
                self.created(message.actor)
            return
        if message.state != DEAD and (route.killed or message.incarnation < route.incarnation):
            return
        anew = message.incarnation != route.incarnation
        route.state, route.reason = message.state, message.reason
        route.starting = None
        route.split_batches()
        if route.restarts:
            self._end_without_retries(route)
        if route.state == DEAD:
            # Calls queued for the end of this turn stay here.
            route.out = []
            there = route.node not in (-1, self._node) and route.node not in self._dead_nodes
            if route.sent and there:
                # The GCS's message may have overtaken replies from the actor's node.
                self._draining[route.actor] = route
                self._ctx.send(f"node:{route.node}", DrainCalls(route.actor, route.incarnation))
            else:
                self._retire(route)
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

    def _end_without_retries(self, route: CallRoute) -> None:
        """The actor has failed: end calls without retries, which may have taken effect if sent.

        Calls to an actor that has never been alive wait for its start, however often it fails.
        """
        ended = [spec for spec in route.sent.values() if spec.retries == 0]
        route.sent = {call: spec for call, spec in route.sent.items() if spec.retries}
        route.out = [spec for spec in route.out if spec.retries]
        if route.incarnation >= 0:
            # A client here has killed the actor, and called it before this report.
            ended += [spec for spec in route.waiting if spec.retries == 0]
            route.waiting = [spec for spec in route.waiting if spec.retries]
        for spec in ended:
            del self._under_way[spec.array]
            route.asked.discard(spec.array)
            self._end(spec, ActorUnavailable(spec.name, route.actor))

    def _ask(self, route: CallRoute, calls: Sequence[TaskSpec]) -> None:
        """Ask an actor that is being reconstructed for replies; see `actor_reconstruction`.

        This sends, without arguments, calls that may have taken effect for an earlier run of
        their caller.
        """
        if route.starting is not None:
            asked = [call for call in calls if may_repeat_calls(call.owner)]
            route.early += [replace(call, args=b"", deps=()) for call in asked]
            self.unsent[route.actor] = route

    def _send_early(self, route: CallRoute) -> None:
        early, route.early = route.early, []
        if early and route.starting is not None:
            node, incarnation = route.starting
            for piece in cut(early, task_bytes):
                calls = ActorCalls(route.actor, incarnation, [], piece)
                if node == self._node:
                    self._deliver(calls)
                else:
                    self._ctx.send(f"node:{node}", calls)

    def _cancel_late(self, route: CallRoute) -> None:
        cancelled, route.cancelled = route.cancelled, []
        for call in dict.fromkeys(cancelled):
            self.cancel(call)

    def on_drained(self, actor: bytes) -> None:
        """A dead actor's node has sent all replies."""
        route = self._draining.pop(actor, None)
        if route is not None:
            self._retire(route)

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
        out, route.out = route.out, []
        if route.node == self._node:
            if out:
                self._deliver(ActorCalls(route.actor, route.incarnation, out))
            return
        for piece in cut(out, task_bytes):
            calls = ActorCalls(route.actor, route.incarnation, piece)
            self._ctx.send(f"node:{route.node}", calls)

    def _send(self, route: CallRoute, spec: TaskSpec) -> None:
        self._under_way[spec.array] = route
        route.sent[spec.array] = spec
        route.out.append(spec)
        self.unsent[route.actor] = route

    def _send_again(self, route: CallRoute) -> None:
        """Send a new incarnation the calls without a result that have retries left."""
        sent, route.sent = list(route.sent.values()), {}
        waiting, route.waiting = route.waiting, []
        # Calls queued for the end of this turn are in `sent`, too.
        fresh = {spec.array for spec in route.out}
        route.out = []
        for spec in sent:
            if spec.array in fresh:
                self._send(route, spec)
                continue
            if spec.array in route.asked:
                # The call may have taken effect: the actor replies to the call, or cancels it.
                route.cancelled.append(spec.array)
            if spec.retries == 0:
                self.forget(spec.array)
                self._end(spec, ActorUnavailable(spec.name, route.actor))
            else:
                spec.retries -= spec.retries > 0
                self._send(route, spec)
        for spec in waiting:
            self._send(route, spec)

    def _retire(self, route: CallRoute) -> None:
        ended = [*route.sent.values(), *route.waiting]
        route.sent, route.waiting, route.out = {}, [], []
        route.asked, route.cancelled = set(), []
        for spec in ended:
            self._under_way.pop(spec.array, None)
            self._end(spec, route.reason)
        self._dead_routes[route.actor] = self._routes.pop(route.actor)
        assert route.reason is not None
        self._dead(route.actor, route.reason)

    def _end(self, spec: TaskSpec, failure: Failure | None) -> None:
        assert failure is not None, "its actor is dead for no reason"
        self._fail(call_failed(spec, failure, self._node), spec.owner)
