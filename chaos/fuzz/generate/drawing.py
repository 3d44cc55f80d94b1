"""Draws random programs from a seed, with a few features each.

A body is drawn operation by operation; its scope decides which operations are possible. *Exact*
calls and tasks have the value of a sequential run, whatever fails: these are the calls of actors
with restarts and retries without end, whose values depend on all calls before, and the tasks that
call such actors. Their inputs cannot be lost:

- the inputs are *safe*: short puts, and results of tasks with retries without end and safe
  inputs. A large result may be lost with its node. Lineage reconstructs it unless one of its
  inputs was a put that the program has dropped: so the drawn task has no inputs;
- a value that an actor has made for its caller is no input of another task there: if the caller
  runs again, the value may be lost;
- an actor with checkpoints does not reconstruct the values of calls before a checkpoint: none of
  its values that an exact caller needs is large or yielded.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, field

from raytwin.chaos.fuzz.programs.program import (
    DEPTH_MAX,
    FIRST_HANDLE,
    LARGE_BYTES,
    RETRIES,
    ActorSpec,
    Body,
    Call,
    Op,
    Place,
)

ACTORS = 1_000_000
"""The first variable of an actor. Variables are dropped in ascending order, so a program drops its
actors after all values whose reconstruction may need them."""
SECONDS = (0.0, 0.0, 0.0, 0.001, 0.01, 0.05)

TASK_OPS = {"call": 10, "lend": 3, "give": 3, "map": 3, "put": 2, "pack": 2, "get": 2, "wait": 2,
            "drop": 2}  # fmt: skip
EXACT_OPS = {"call": 4, "map": 1, "put": 2, "get": 2, "wait": 1}
STREAM_OPS = {"stream": 2, "take": 4, "returns": 2}
EXACT_STREAM_OPS = {"stream": 2, "take": 4}


@dataclass
class Scope:
    """A body while it is drawn: of the driver, a task, or an actor's call."""

    depth: int = 0
    exact: bool = False
    """Whether no fault may fail the body."""
    of_call: bool = False
    """Whether the body is an actor's call, which is replayed without the values it has dropped."""
    actors: dict[int, ActorSpec] = field(default_factory=dict)
    """The actors that the body calls, by variable."""
    ops: list[Op] = field(default_factory=list)
    values: list[int] = field(default_factory=list)
    """Variables with one reference, which may be inputs."""
    puts: list[int] = field(default_factory=list)
    safe: set[int] = field(default_factory=set)
    of_actors: set[int] = field(default_factory=set)
    """Values made by an actor, or from such values: lineage may not reconstruct them."""
    streams: list[int] = field(default_factory=list)


@dataclass
class Shared:
    """An actor of several callers while the program is drawn."""

    at: int
    spec: ActorSpec
    called_by: list[int] = field(default_factory=list)
    """The variables of all tasks and calls that have called the actor."""


class Draw:
    """Draws one program. Its keys and variables are drawn in ascending order."""

    def __init__(self, rng: random.Random, features: Collection[str], large_stores: bool) -> None:
        """Without `large_stores`, a node's store may be too full for large values."""
        self.rng = rng
        self.features = features
        self.large_stores = large_stores
        self.number = 0
        self.last_actor = ACTORS
        self.shared: list[Shared] = []
        self.tallied: dict[int, tuple[ActorSpec, list[int]]] = {}
        """Actors with cancelled calls, and the variables of all of their calls."""
        self.concurrent: dict[int, tuple[ActorSpec, list[int]]] = {}

    def next(self) -> int:
        """Return an unused key or variable."""
        self.number += 1
        return self.number

    # -- bodies ------------------------------------------------------------------------

    def body(self, scope: Scope, most: int) -> Body:
        """Return a body of at most `most` operations."""
        for _ in range(self.rng.randint(1 + (most > 2), most)):
            self.step(scope)
        return Body(tuple(scope.ops))

    def step(self, scope: Scope) -> None:
        """Draw one operation."""
        weights = dict(EXACT_OPS if scope.exact else TASK_OPS)
        if "streams" in self.features:
            weights |= EXACT_STREAM_OPS if scope.exact else STREAM_OPS
        if scope.depth and scope.actors:
            weights |= {"tell": 10, "tells": 2, "forget": 2}
            if "streams" in self.features:
                weights["yields"] = 6
        do = self.rng.choices([*weights], [*weights.values()])[0]
        if do in ("get", "wait", "lend", "give", "pack", "drop") and not scope.values:
            do = "call"
        if do == "take" and not scope.streams:
            do = "stream"
        getattr(self, f"_{do}")(scope)

    def _call(self, scope: Scope, fewest: int = 0) -> None:
        inputs = scope.values
        if scope.exact:
            inputs = [i for i in inputs if i not in scope.of_actors and i not in scope.puts]
        most = min(3, len(inputs))
        ins = self.rng.sample(inputs, self.rng.randint(min(fewest, most), most))
        call = self.task(scope, ins)
        self._add(scope, Op("call", tuple(ins), self.next(), call))

    def _lend(self, scope: Scope, returns_refs: bool = False) -> None:
        ins = self.rng.sample(scope.values, self.rng.randint(1, min(3, len(scope.values))))
        self._add(
            scope,
            Op("lend", tuple(ins), self.next(), self.task(scope, ins, returns_refs=returns_refs)),
        )

    def _give(self, scope: Scope) -> None:
        self._lend(scope, returns_refs=True)

    def _map(self, scope: Scope) -> None:
        call = self.task(scope, (), nested=False)
        scope.ops.append(Op("map", (), self.next(), call, self.rng.choice([2, 5, 10, 20])))

    def _put(self, scope: Scope) -> None:
        nbytes = self.rng.choice([0, 8, 1000]) if scope.exact else self.nbytes()
        self._add(scope, Op("put", (), self.next(), nbytes=nbytes))
        scope.puts.append(self.number)

    def _pack(self, scope: Scope) -> None:
        ins = self.rng.sample(scope.values, self.rng.randint(1, min(3, len(scope.values))))
        self._add(scope, Op("pack", tuple(ins), self.next()))

    def _get(self, scope: Scope) -> None:
        scope.ops.append(Op("get", (self.rng.choice(scope.values),)))

    def _wait(self, scope: Scope) -> None:
        ins = self.rng.sample(scope.values, self.rng.randint(1, min(4, len(scope.values))))
        scope.ops.append(Op("wait", tuple(ins), count=self.rng.randint(1, len(ins))))

    def _drop(self, scope: Scope) -> None:
        may_go = [i for i in scope.values if i not in scope.of_actors]
        if may_go:
            scope.values.remove(chosen := self.rng.choice(may_go))
            scope.ops.append(Op("drop", (chosen,)))

    def _returns(self, scope: Scope) -> None:
        ins = self.rng.sample(scope.values, min(len(scope.values), self.rng.choice([0, 0, 1])))
        call = self.task(scope, ins, nested=False, parts=self.rng.randint(2, 4))
        outs = range(self.number + 1, self.number + 1 + call.parts)
        self.number += call.parts
        scope.ops.append(Op("returns", tuple(ins), outs[0], call))
        scope.values += outs
        if not scope.of_actors.isdisjoint(ins):
            scope.of_actors.update(outs)

    def _stream(self, scope: Scope) -> None:
        inputs = [] if scope.exact else [i for i in scope.values if i not in scope.of_actors]
        ins = self.rng.sample(inputs, min(len(inputs), self.rng.choice([0, 0, 1])))
        call = self.task(scope, ins, nested=False, parts=self.rng.randint(1, 8))
        scope.ops.append(Op("stream", tuple(ins), self.next(), call))
        scope.streams.append(self.number)

    def _take(self, scope: Scope) -> None:
        stream = self.rng.choice(scope.streams)
        scope.ops.append(Op("take", (stream,), self.next()))
        scope.values.append(self.number)
        if stream in scope.of_actors:
            scope.of_actors.add(self.number)
        if self.rng.random() < 0.1:
            gone = scope.streams.pop(self.rng.randrange(len(scope.streams)))
            scope.ops.append(Op("drop", (gone,)))

    def _add(self, scope: Scope, op: Op) -> None:
        """Add an operation that makes one value, and note whether a fault may lose the value."""
        scope.ops.append(op)
        scope.values.append(op.out)
        if not scope.of_actors.isdisjoint(op.ins):
            scope.of_actors.add(op.out)
        call = op.call
        if call is None:
            safe = op.do == "put" and (self.large_stores or op.nbytes < LARGE_BYTES)
        else:
            lasts = call.nbytes < LARGE_BYTES or (self.large_stores and not op.ins)
            plain = op.do == "call" and call.retries < 0 and call.body is None
            safe = lasts and plain and scope.safe.issuperset(op.ins)
        if safe:
            scope.safe.add(op.out)

    def task(
        self, scope: Scope, ins: Collection[int], nested: bool = True, returns_refs: bool = False,
        parts: int = 0,
    ) -> Call:  # fmt: skip
        """Return a task of a body."""
        rng = self.rng
        key = self.next()
        body = None
        if nested and not scope.exact and scope.depth < DEPTH_MAX and rng.random() < 0.25:
            body = self.body(Scope(scope.depth + 1), 4)
        may_be_large = not scope.exact or (
            self.large_stores and not ins and not (parts and scope.of_call)
        )
        may_be_large &= scope.of_actors.isdisjoint(ins)
        return Call(
            key,
            seconds=rng.choice([0.0, 0.001, 0.01, 0.05, 0.1, rng.random() * 0.3]),
            nbytes=self.nbytes() if may_be_large else rng.choice([0, 8, 1000]),
            fails=rng.random() < 0.06,
            retries=-1 if scope.exact else rng.choice(RETRIES),
            cpus=rng.choice([1.0, 1.0, 1.0, 0.5, 0.0]),
            gpus=0.0 if ins or body or returns_refs else self.gpus(),
            strategy=self.strategy(),
            body=body,
            returns_refs=returns_refs,
            parts=parts,
        )  # fmt: skip

    def gpus(self) -> float:
        """Return the GPUs of a task that waits for no other one, as it keeps them meanwhile."""
        if "gpus" not in self.features or self.rng.random() < 0.6:
            return 0.0
        return self.rng.choice([0.5, 1.0, 2.0])

    def strategy(self) -> str:
        """Return a scheduling strategy, mostly none."""
        return self.rng.choice(["SPREAD", "0", "1", "4"]) if self.rng.random() < 0.1 else ""

    def nbytes(self) -> int:
        """Return the size of a value, 0 for an integer."""
        return self.rng.choice([0, 0, 0, 8, 1000, LARGE_BYTES, LARGE_BYTES, 3 * LARGE_BYTES])

    # -- actors and their calls --------------------------------------------------------

    def start(self, scope: Scope, spec: ActorSpec, place: Place | None = None) -> int:
        """Start an actor; return its variable."""
        self.last_actor += 1
        scope.ops.append(Op("actor", (), self.last_actor, spec=spec, place=place))
        return self.last_actor

    def actor_spec(self, exact: float = 0.6, shared: bool = False) -> ActorSpec:
        """Return an actor that may be exact."""
        rng = self.rng
        if rng.random() < exact:
            return ActorSpec(self.next(), -1, -1, rng.choice([0, 0, 1, 3]), shared)
        restarts = rng.choice([0, 1, 3, -1])
        retries = rng.choice([0, 2]) if restarts else 0
        interval = rng.choice([0, 0, 1, 3]) if restarts else 0
        return ActorSpec(self.next(), restarts, retries, interval, shared)

    def _tell(self, scope: Scope) -> None:
        scope.values.append(self.tell(scope, self.rng.choice([*scope.actors])))
        scope.of_actors.add(scope.values[-1])

    def _tells(self, scope: Scope) -> None:
        """Call an actor many times in a row: such calls travel together."""
        rng = self.rng
        at = rng.choice([*scope.actors])
        count = rng.choice([2, 5, 20, 50])
        fails = rng.random() < 0.03
        call = Call(self.number + 1, rng.choice(SECONDS[:5]), 0, fails, scope.actors[at].retries)
        self.number += count
        scope.ops.append(Op("tells", (at,), self.next(), call, count))

    def tell(self, scope: Scope, at: int, handles: tuple[Shared, ...] = (), most: int = 2) -> int:
        """Call an actor with inputs of the scope; return the variable."""
        rng, spec = self.rng, scope.actors[at]
        only_safe = scope.exact or spec.exact or spec.folds
        inputs = [i for i in scope.values if not only_safe or i in scope.safe]
        ins = rng.sample(inputs, min(len(inputs), rng.choice([0, 0, 1, most])))
        key = self.next()
        body = None
        if handles:
            by_variable = {FIRST_HANDLE - n: each.spec for n, each in enumerate(handles)}
            body = self.body(Scope(DEPTH_MAX, spec.exact, True, by_variable), 4)
        elif not scope.depth and rng.random() < 0.3 and (spec.exact or not spec.folds):
            body = self.body(Scope(DEPTH_MAX, spec.exact, True), 5)
        call = Call(
            key,
            rng.choice(SECONDS),
            self.nbytes_of_call(scope, spec),
            rng.random() < 0.06,
            spec.retries,
            body=body,
        )
        out = self.next()
        given = tuple(each.at for each in handles)
        scope.ops.append(Op("tell", (at, *given, *ins), out, call, handles=len(handles)))
        if spec.exact and not scope.depth and not call.nbytes and rng.random() < 0.5:
            scope.safe.add(out)
        return out

    def nbytes_of_call(self, scope: Scope, spec: ActorSpec) -> int:
        """Return the size of a call's value."""
        lost = scope.depth and spec.exact and (spec.interval or scope.of_call)
        large = 8 if lost or (scope.depth and not self.large_stores) else LARGE_BYTES
        return self.rng.choice([0, 0, 0, 8, large])

    def _forget(self, scope: Scope) -> None:
        """Call an actor, and drop the value once the call has taken effect."""
        out = self.tell(scope, self.rng.choice([*scope.actors]))
        scope.safe.discard(out)
        scope.ops += [Op("wait", (out,), count=1), Op("drop", (out,))]

    def _yields(self, scope: Scope) -> None:
        rng = self.rng
        at = rng.choice([*scope.actors])
        spec = scope.actors[at]
        if spec.shared or (spec.interval and (spec.exact or spec.restarts < 0)):
            return self._stream(scope)
        large = LARGE_BYTES if self.large_stores and not (scope.of_call and scope.exact) else 8
        call = Call(
            self.next(),
            rng.choice(SECONDS),
            rng.choice([0, 0, 8, large]),
            rng.random() < 0.06,
            spec.retries,
            parts=rng.randint(1, 8),
        )
        scope.ops.append(Op("yields", (at,), self.next(), call))
        scope.streams.append(self.number)
        scope.of_actors.add(self.number)
        return None

    # -- features of drivers: each method draws one round of a feature --------------------

    def actors(self, scope: Scope) -> None:
        """Start an actor, or call some, from the driver."""
        rng = self.rng
        for _ in range(rng.choice([0, 1, 2, 4])):
            if not scope.actors or (len(scope.actors) < 3 and rng.random() < 0.15):
                spec = self.actor_spec()
                scope.actors[self.start(scope, spec)] = spec
            elif rng.random() < 0.04:
                dropped = rng.choice([*scope.actors])
                del scope.actors[dropped]
                scope.ops.append(Op("drop", (dropped,)))
            elif "streams" in self.features and rng.random() < 0.3:
                self._yields(scope)
            elif rng.random() < 0.15:
                self._tells(scope)
            else:
                self._tell(scope)

    def callers(self, scope: Scope) -> None:
        """Draw a task or an actor's call that calls actors: its own, or shared ones."""
        rng = self.rng
        if not self.shared or (len(self.shared) < 3 and rng.random() < 0.3):
            spec = self.actor_spec(0.7, shared=True)
            self.shared.append(Shared(self.start(scope, spec), spec))
            return
        do = rng.choice(("shared", "shared", "actor", "own", "alone"))
        if do in ("own", "alone"):
            self._task_of_one(scope, starts=do == "own")
            return
        # An actor calls only younger ones, so that no cycle of calls deadlocks.
        first = rng.randrange(len(self.shared))
        caller = self.shared[first]
        exact = caller.spec.exact
        alike = [each for each in self.shared[first + 1 :] if each.spec.exact == exact]
        if do == "shared":
            called = (caller, *rng.sample(alike, min(len(alike), rng.choice([0, 1]))))
            out = self._task_of(scope, called)
        elif alike:
            called = tuple(rng.sample(alike, min(len(alike), rng.choice([1, 1, 2]))))
            actors, scope.actors = scope.actors, {caller.at: caller.spec}
            out = self.tell(scope, caller.at, called)
            scope.actors = actors
            scope.safe.discard(out)
            called = (caller, *called)
        else:
            return
        for each in called:
            each.called_by.append(out)

    def _task_of_one(self, scope: Scope, starts: bool) -> None:
        """Draw a task that is the only caller of an actor; with `starts` it also starts it."""
        spec = self.actor_spec(1.0 if starts else 0.7)
        if not starts:
            at = self.start(scope, spec)
            self._task_of(scope, (Shared(at, spec),))
            return
        inner = Scope(DEPTH_MAX - 1, exact=True)
        inner.actors[self.start(inner, spec)] = spec
        self._task_of(scope, (), inner)

    def _task_of(self, scope: Scope, called: tuple[Shared, ...], inner: Scope | None = None) -> int:
        """Draw a task that gets the handles of actors; return its variable."""
        rng = self.rng
        key = self.next()
        if inner is None:
            exact = all(each.spec.exact for each in called)
            by_variable = {FIRST_HANDLE - n: each.spec for n, each in enumerate(called)}
            inner = Scope(DEPTH_MAX - 1, exact, actors=by_variable)
        call = Call(
            key,
            rng.choice(SECONDS),
            rng.choice([0, 0, 8, LARGE_BYTES if self.large_stores else 8]),
            not inner.exact and rng.random() < 0.06,
            -1 if inner.exact else rng.choice([0, 1, 3]),
            rng.choice([1.0, 1.0, 0.5, 0.0]),
            self.body(inner, rng.choice([2, 4, 8])),
        )
        out = self.next()
        ins = tuple(each.at for each in called)
        scope.ops.append(Op("call", ins, out, call, handles=len(ins)))
        return out

    def cancels(self, scope: Scope) -> None:
        """Submit tasks or calls of one actor, and cancel some.

        Only tasks that fail with the same error have their values as inputs.
        """
        rng = self.rng
        begun: list[Op] = []
        at = 0
        if rng.random() < 0.7:
            if not self.tallied or (len(self.tallied) < 2 and rng.random() < 0.2):
                forever = -1 if rng.random() < 0.3 else 0
                interval = rng.choice([0, 1, 3]) if forever else 0
                spec = ActorSpec(self.next(), forever, forever, interval, shared=True)
                self.tallied[self.start(scope, spec)] = spec, []
            at = rng.choice([*self.tallied])
        for _ in range(rng.choice([1, 3, 10])):
            key = self.next()
            seconds = rng.choice(SECONDS[:5])
            if at:
                spec, submitted = self.tallied[at]
                call = Call(key, seconds, fails=rng.random() < 0.03, retries=spec.retries)
                begun.append(Op("tell", (at,), key, call))
                submitted.append(key)
            else:
                nbytes = rng.choice([0, 0, 8, LARGE_BYTES if self.large_stores else 8])
                body = self.body(Scope(DEPTH_MAX), 3) if rng.random() < 0.3 else None
                call = Call(key, 5 * seconds, nbytes, retries=rng.choice(RETRIES), body=body)
                ins = (begun[-1].out,) if begun and rng.random() < 0.2 else ()
                begun.append(Op("call", ins, key, call))
            scope.ops.append(begun[-1])
            if rng.random() < 0.3:
                unwanted = rng.choice(begun[-2:])
                scope.ops.append(Op("cancel", (unwanted.out,), call=unwanted.call))
            if rng.random() < 0.6:
                scope.ops.append(Op("get", (rng.choice(begun[-2:]).out,)))

    def concurrent_calls(self, scope: Scope) -> None:
        """Call an actor whose calls run concurrently.

        Some calls wait for the effect of a later one: if fewer calls run than may, they never end.
        """
        rng = self.rng
        if not self.concurrent or (len(self.concurrent) < 2 and rng.random() < 0.3):
            restarts, retries = rng.choice([(-1, -1), (-1, -1), (-1, -1), (0, 0), (0, 0), (3, 2)])
            started = ActorSpec(
                self.next(), restarts, retries, shared=True, most=rng.choice([2, 2, 3, 10]),
                coroutines=rng.random() < 0.5,
            )  # fmt: skip
            self.concurrent[self.start(scope, started)] = started, []
        at = rng.choice([*self.concurrent])
        spec, submitted = self.concurrent[at]
        for _ in range(rng.choice([1, 3, 6])):
            first, second = self.next(), self.next()
            pair = spec.restarts <= 0 and rng.random() < 0.3
            nbytes = rng.choice(
                [0, 0, 8, LARGE_BYTES if self.large_stores and not spec.exact else 8]
            )
            call = Call(
                first, rng.choice(SECONDS), nbytes, not pair and rng.random() < 0.06,
                spec.retries, awaits=second if pair else 0,
            )  # fmt: skip
            calls = [call]
            if pair:
                calls.append(Call(second, rng.choice(SECONDS), retries=spec.retries))
            for each in calls:
                scope.ops.append(Op("tell", (at,), each.key, each))
                submitted.append(each.key)
            if rng.random() < 0.3:
                scope.ops.append(Op("get", (rng.choice(submitted),)))

    def ends(self, scope: Scope) -> None:
        """Kill an actor that may restart, or draw an actor with calls before and after its end.

        Calls after the end are errors. Calls before it have their values, or the same error if
        they were not finished in time.
        """
        rng = self.rng
        restarting = [at for at, spec in scope.actors.items() if spec.restarts]
        if restarting and rng.random() < 0.5:
            scope.ops.append(Op("kill", (rng.choice(restarting),), count=1))
            return
        leaves = rng.random() < 0.5
        key = self.next()
        # After a crash an actor may come back without the call that was to end it.
        restarts, mortal = rng.choice([(-1, False), (0, True), (0 if leaves else 2, leaves)])
        interval = rng.choice([0, 0, 1, 3]) if restarts < 0 else 0
        spec = ActorSpec(key, restarts, restarts, interval, mortal=mortal)
        at = self.start(scope, spec)
        before: list[int] = []
        for _ in range(rng.choice([0, 1, 3, 6])):
            before.append(self.short_tell(scope, at, spec))
            if rng.random() < 0.3:
                scope.ops.append(Op("get", (rng.choice(before),)))
            elif spec.restarts and rng.random() < 0.15:
                scope.ops.append(Op("kill", (at,), count=1))
        gone = []
        if leaves:
            gone.append(self.short_tell(scope, at, spec, leaves=True))
        else:
            scope.ops.append(Op("kill", (at,)))
        for _ in range(rng.choice([1, 2])):
            gone.append(self.short_tell(scope, at, spec))
        scope.ops += [Op("gone", tuple(gone)), Op("drop", tuple(gone))]

    def short_tell(self, scope: Scope, at: int, spec: ActorSpec, leaves: bool = False) -> int:
        """Call an actor without inputs; return the variable."""
        rng = self.rng
        key = self.next()
        nbytes = rng.choice([0, 0, 8, LARGE_BYTES if self.large_stores and not spec.exact else 8])
        fails = not leaves and rng.random() < 0.05
        call = Call(key, rng.choice(SECONDS[:5]), nbytes, fails, spec.retries, leaves=leaves)
        scope.ops.append(Op("tell", (at,), key, call))
        return key

    def singly(self, scope: Scope) -> None:
        """Call an actor that never restarts and await each call; tasks need some of the values."""
        rng = self.rng
        spec = ActorSpec(self.next(), 0, 0, mortal=True)
        at = self.start(scope, spec)
        for _ in range(rng.choice([3, 12])):
            out = self.short_tell(scope, at, spec)
            scope.of_actors.add(out)
            later = Op("get", (out,))
            if rng.random() < 0.2:
                early = rng.random() < 0.5
                needs = Op("call", (out,), self.next(), self.task(scope, [out]))
                scope.ops += [needs, later] if early else [later, needs]
            else:
                scope.ops.append(later)

    def finish(self, scope: Scope) -> None:
        """Query the shared actors for all calls that have taken effect."""
        for each in self.shared:
            self._sum_up(scope, each.at, each.spec, each.called_by)
        for at, (spec, submitted) in self.concurrent.items():
            self._sum_up(scope, at, spec, submitted)
        for at, (spec, submitted) in self.tallied.items():
            call = Call(self.next(), retries=spec.retries, sums_up=True)
            scope.ops.append(Op("tally", (at, *submitted), call=call))

    def _sum_up(self, scope: Scope, at: int, spec: ActorSpec, after: list[int]) -> None:
        call = Call(self.next(), retries=spec.retries, sums_up=spec.exact)
        scope.ops.append(Op("tell", (at, *after), call.key, call))
