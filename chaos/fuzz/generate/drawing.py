"""Random programs: drawn from a seed, of a few features each.

A body is drawn operation by operation; which are drawn depends on its scope. What must come out
as in a sequential run, whatever fails, is *exact*: the calls of actors that restart and retry
without end, whose values tell all calls before, and the tasks that call such actors. What is
drawn for them cannot be lost:

- inputs of such calls are *safe*: short puts, and results of tasks that are retried without end,
  whose inputs are safe. A large result may be lost with its node, and is made again only if it
  is not made of a put that the program has dropped: so it has no inputs;
- what an actor has made for its caller is no input of anything else there: where the caller runs
  again nobody may have it any more;
- an actor with checkpoints does not make again what a call before a checkpoint has made: none of
  its values is large or yielded where an exact caller needs it.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, field

from raytwin.chaos.fuzz.programs.program import (
    DEPTH_MAX,
    HANDED,
    LARGE_BYTES,
    RETRIES,
    Body,
    Call,
    Op,
    Place,
    Teller,
)

ACTORS = 1_000_000
"""Variables of actors begin here: at the end a program drops them after all values, and with them
the tasks that may have to run again."""
SECONDS = (0.0, 0.0, 0.0, 0.001, 0.01, 0.05)

TASK_OPS = {"call": 10, "lend": 3, "give": 3, "map": 3, "put": 2, "pack": 2, "get": 2, "wait": 2,
            "drop": 2}  # fmt: skip
EXACT_OPS = {"call": 4, "map": 1, "put": 2, "get": 2, "wait": 1}
STREAM_OPS = {"stream": 2, "take": 4, "returns": 2}
EXACT_STREAM_OPS = {"stream": 2, "take": 4}


@dataclass
class Scope:
    """A body while it is drawn: the driver's, a task's, or that of an actor's call."""

    depth: int = 0
    exact: bool = False
    """No fault may fail the body."""
    of_call: bool = False
    """The body is an actor's call, which is replayed without what it has dropped."""
    actors: dict[int, Teller] = field(default_factory=dict)
    """The actors that the body calls, by variable."""
    ops: list[Op] = field(default_factory=list)
    values: list[int] = field(default_factory=list)
    """Variables that hold one reference, and may be inputs."""
    puts: list[int] = field(default_factory=list)
    safe: set[int] = field(default_factory=set)
    of_actors: set[int] = field(default_factory=set)
    """Values made by an actor, or of such: they are not made again once those were dropped."""
    streams: list[int] = field(default_factory=list)


@dataclass
class Shared:
    """An actor of several callers while the program is drawn."""

    at: int
    teller: Teller
    called_by: list[int] = field(default_factory=list)
    """Variables that are there only when their calls have ended."""


class Draw:
    """Draws one program. All keys and variables rise through it."""

    def __init__(self, rng: random.Random, features: Collection[str], roomy: bool) -> None:
        """Unless it is `roomy`, a node's store may be too full for large values."""
        self.rng = rng
        self.features = features
        self.roomy = roomy
        self.number = 0
        self.last_actor = ACTORS
        self.shared: list[Shared] = []
        self.tallied: dict[int, tuple[Teller, list[int]]] = {}
        """Actors of which some calls are cancelled, with the variables of all calls."""
        self.concurrent: dict[int, tuple[Teller, list[int]]] = {}

    def next(self) -> int:
        """Return a key or variable that nothing has."""
        self.number += 1
        return self.number

    # -- bodies ------------------------------------------------------------------------

    def body(self, scope: Scope, most: int) -> Body:
        """Return a body of so many operations at most."""
        for _ in range(self.rng.randint(1 + (most > 2), most)):
            self.step(scope)
        return Body(tuple(scope.ops))

    def step(self, scope: Scope) -> None:
        """Draw one operation."""
        weights = dict(EXACT_OPS if scope.exact else TASK_OPS)
        if "streams" in self.features:
            weights |= EXACT_STREAM_OPS if scope.exact else STREAM_OPS
        if scope.depth and scope.actors:
            weights |= {"tell": 10, "forget": 2}
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

    def _lend(self, scope: Scope, gives: bool = False) -> None:
        ins = self.rng.sample(scope.values, self.rng.randint(1, min(3, len(scope.values))))
        self._add(scope, Op("lend", tuple(ins), self.next(), self.task(scope, ins, gives=gives)))

    def _give(self, scope: Scope) -> None:
        self._lend(scope, gives=True)

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
        """Add an operation that makes one value, and note whether a fault may take it away."""
        scope.ops.append(op)
        scope.values.append(op.out)
        if not scope.of_actors.isdisjoint(op.ins):
            scope.of_actors.add(op.out)
        call = op.call
        if call is None:
            safe = op.do == "put" and (self.roomy or op.nbytes < LARGE_BYTES)
        else:
            lasts = call.nbytes < LARGE_BYTES or (self.roomy and not op.ins)
            plain = op.do == "call" and call.retries < 0 and call.body is None
            safe = lasts and plain and scope.safe.issuperset(op.ins)
        if safe:
            scope.safe.add(op.out)

    def task(
        self, scope: Scope, ins: Collection[int], nested: bool = True, gives: bool = False,
        parts: int = 0,
    ) -> Call:  # fmt: skip
        """Return a task of a body."""
        rng = self.rng
        key = self.next()
        body = None
        if nested and not scope.exact and scope.depth < DEPTH_MAX and rng.random() < 0.25:
            body = self.body(Scope(scope.depth + 1), 4)
        may_be_large = not scope.exact or (self.roomy and not ins and not (parts and scope.of_call))
        may_be_large &= scope.of_actors.isdisjoint(ins)
        return Call(
            key,
            seconds=rng.choice([0.0, 0.001, 0.01, 0.05, 0.1, rng.random() * 0.3]),
            nbytes=self.nbytes() if may_be_large else rng.choice([0, 8, 1000]),
            fails=rng.random() < 0.06,
            retries=-1 if scope.exact else rng.choice(RETRIES),
            cpus=rng.choice([1.0, 1.0, 1.0, 0.5, 0.0]),
            body=body,
            gives=gives,
            parts=parts,
        )  # fmt: skip

    def nbytes(self) -> int:
        """Return the bytes of any value, 0 for an integer."""
        return self.rng.choice([0, 0, 0, 8, 1000, LARGE_BYTES, LARGE_BYTES, 3 * LARGE_BYTES])

    # -- actors and their calls --------------------------------------------------------

    def start(self, scope: Scope, teller: Teller, place: Place | None = None) -> int:
        """Start an actor; return its variable."""
        self.last_actor += 1
        scope.ops.append(Op("actor", (), self.last_actor, teller=teller, place=place))
        return self.last_actor

    def teller(self, exact: float = 0.6, shared: bool = False) -> Teller:
        """Return an actor that may be exact."""
        rng = self.rng
        if rng.random() < exact:
            return Teller(self.next(), -1, -1, rng.choice([0, 0, 1, 3]), shared)
        restarts = rng.choice([0, 1, 3, -1])
        retries = rng.choice([0, 2]) if restarts else 0
        interval = rng.choice([0, 0, 1, 3]) if restarts else 0
        return Teller(self.next(), restarts, retries, interval, shared)

    def _tell(self, scope: Scope) -> None:
        scope.values.append(self.tell(scope, self.rng.choice([*scope.actors])))
        scope.of_actors.add(scope.values[-1])

    def tell(self, scope: Scope, at: int, hands: tuple[Shared, ...] = (), most: int = 2) -> int:
        """Call an actor with inputs of the scope; return the variable."""
        rng, teller = self.rng, scope.actors[at]
        only_safe = scope.exact or teller.exact or teller.folds
        inputs = [i for i in scope.values if not only_safe or i in scope.safe]
        ins = rng.sample(inputs, min(len(inputs), rng.choice([0, 0, 1, most])))
        key = self.next()
        body = None
        if hands:
            handed = {HANDED - n: each.teller for n, each in enumerate(hands)}
            body = self.body(Scope(DEPTH_MAX, teller.exact, True, handed), 4)
        elif not scope.depth and rng.random() < 0.3 and (teller.exact or not teller.folds):
            body = self.body(Scope(DEPTH_MAX, teller.exact, True), 5)
        call = Call(
            key,
            rng.choice(SECONDS),
            self.nbytes_of_call(scope, teller),
            rng.random() < 0.06,
            teller.retries,
            body=body,
        )
        out = self.next()
        handed_on = tuple(each.at for each in hands)
        scope.ops.append(Op("tell", (at, *handed_on, *ins), out, call, hands=len(hands)))
        if teller.exact and not scope.depth and not call.nbytes and rng.random() < 0.5:
            scope.safe.add(out)
        return out

    def nbytes_of_call(self, scope: Scope, teller: Teller) -> int:
        """Return the bytes of a call's value."""
        lost = scope.depth and teller.exact and (teller.interval or scope.of_call)
        large = 8 if lost or (scope.depth and not self.roomy) else LARGE_BYTES
        return self.rng.choice([0, 0, 0, 8, large])

    def _forget(self, scope: Scope) -> None:
        """Call an actor, and drop the value when the call has taken effect."""
        out = self.tell(scope, self.rng.choice([*scope.actors]))
        scope.safe.discard(out)
        scope.ops += [Op("wait", (out,), count=1), Op("drop", (out,))]

    def _yields(self, scope: Scope) -> None:
        rng = self.rng
        at = rng.choice([*scope.actors])
        teller = scope.actors[at]
        if teller.shared or (teller.interval and (teller.exact or teller.restarts < 0)):
            return self._stream(scope)
        large = LARGE_BYTES if self.roomy and not (scope.of_call and scope.exact) else 8
        call = Call(
            self.next(),
            rng.choice(SECONDS),
            rng.choice([0, 0, 8, large]),
            rng.random() < 0.06,
            teller.retries,
            parts=rng.randint(1, 8),
        )
        scope.ops.append(Op("yields", (at,), self.next(), call))
        scope.streams.append(self.number)
        scope.of_actors.add(self.number)
        return None

    # -- what only drivers do: each method is a feature, and draws one round of it -------

    def actors(self, scope: Scope) -> None:
        """Start an actor of the driver's, or call some."""
        rng = self.rng
        for _ in range(rng.choice([0, 1, 2, 4])):
            if not scope.actors or (len(scope.actors) < 3 and rng.random() < 0.15):
                teller = self.teller()
                scope.actors[self.start(scope, teller)] = teller
            elif rng.random() < 0.04:
                dropped = rng.choice([*scope.actors])
                del scope.actors[dropped]
                scope.ops.append(Op("drop", (dropped,)))
            elif "streams" in self.features and rng.random() < 0.3:
                self._yields(scope)
            else:
                self._tell(scope)

    def callers(self, scope: Scope) -> None:
        """Let a task or an actor's call call actors: alone, or shared with others."""
        rng = self.rng
        if not self.shared or (len(self.shared) < 3 and rng.random() < 0.3):
            teller = self.teller(0.7, shared=True)
            self.shared.append(Shared(self.start(scope, teller), teller))
            return
        do = rng.choice(("shared", "shared", "actor", "own", "alone"))
        if do in ("own", "alone"):
            self._task_of_one(scope, starts=do == "own")
            return
        # Never in a circle: an actor calls only younger ones.
        first = rng.randrange(len(self.shared))
        caller = self.shared[first]
        exact = caller.teller.exact
        alike = [each for each in self.shared[first + 1 :] if each.teller.exact == exact]
        if do == "shared":
            called = (caller, *rng.sample(alike, min(len(alike), rng.choice([0, 1]))))
            out = self._task_of(scope, called)
        elif alike:
            called = tuple(rng.sample(alike, min(len(alike), rng.choice([1, 1, 2]))))
            actors, scope.actors = scope.actors, {caller.at: caller.teller}
            out = self.tell(scope, caller.at, called)
            scope.actors = actors
            scope.safe.discard(out)
            called = (caller, *called)
        else:
            return
        for each in called:
            each.called_by.append(out)

    def _task_of_one(self, scope: Scope, starts: bool) -> None:
        """Draw a task that calls an actor which it has started itself, or has for itself."""
        teller = self.teller(1.0 if starts else 0.7)
        if not starts:
            at = self.start(scope, teller)
            self._task_of(scope, (Shared(at, teller),))
            return
        inner = Scope(DEPTH_MAX - 1, exact=True)
        inner.actors[self.start(inner, teller)] = teller
        self._task_of(scope, (), inner)

    def _task_of(self, scope: Scope, called: tuple[Shared, ...], inner: Scope | None = None) -> int:
        """Draw a task that gets the handles of actors; return its variable."""
        rng = self.rng
        key = self.next()
        if inner is None:
            exact = all(each.teller.exact for each in called)
            handed = {HANDED - n: each.teller for n, each in enumerate(called)}
            inner = Scope(DEPTH_MAX - 1, exact, actors=handed)
        call = Call(
            key,
            rng.choice(SECONDS),
            rng.choice([0, 0, 8, LARGE_BYTES if self.roomy else 8]),
            not inner.exact and rng.random() < 0.06,
            -1 if inner.exact else rng.choice([0, 1, 3]),
            rng.choice([1.0, 1.0, 0.5, 0.0]),
            self.body(inner, rng.choice([2, 4, 8])),
        )
        out = self.next()
        ins = tuple(each.at for each in called)
        scope.ops.append(Op("call", ins, out, call, hands=len(ins)))
        return out

    def cancels(self, scope: Scope) -> None:
        """Submit tasks or calls of one actor, and cancel some.

        Nothing else needs their values, except for tasks that end with the same error.
        """
        rng = self.rng
        begun: list[Op] = []
        at = 0
        if rng.random() < 0.7:
            if not self.tallied or (len(self.tallied) < 2 and rng.random() < 0.2):
                forever = -1 if rng.random() < 0.3 else 0
                interval = rng.choice([0, 1, 3]) if forever else 0
                teller = Teller(self.next(), forever, forever, interval, shared=True)
                self.tallied[self.start(scope, teller)] = teller, []
            at = rng.choice([*self.tallied])
        for _ in range(rng.choice([1, 3, 10])):
            key = self.next()
            seconds = rng.choice(SECONDS[:5])
            if at:
                teller, told = self.tallied[at]
                call = Call(key, seconds, fails=rng.random() < 0.03, retries=teller.retries)
                begun.append(Op("tell", (at,), key, call))
                told.append(key)
            else:
                nbytes = rng.choice([0, 0, 8, LARGE_BYTES if self.roomy else 8])
                call = Call(key, 5 * seconds, nbytes, retries=rng.choice(RETRIES))
                ins = (begun[-1].out,) if begun and rng.random() < 0.2 else ()
                begun.append(Op("call", ins, key, call))
            scope.ops.append(begun[-1])
            if rng.random() < 0.3:
                unwanted = rng.choice(begun[-2:])
                scope.ops.append(Op("cancel", (unwanted.out,), call=unwanted.call))
            if rng.random() < 0.6:
                scope.ops.append(Op("get", (rng.choice(begun[-2:]).out,)))

    def beside(self, scope: Scope) -> None:
        """Call an actor whose calls run concurrently.

        Some calls wait for the effect of a later one: where fewer run than may, they never end.
        """
        rng = self.rng
        if not self.concurrent or (len(self.concurrent) < 2 and rng.random() < 0.3):
            restarts, retries = rng.choice([(-1, -1), (-1, -1), (-1, -1), (0, 0), (0, 0), (3, 2)])
            started = Teller(
                self.next(), restarts, retries, shared=True, most=rng.choice([2, 2, 3, 10]),
                coroutines=rng.random() < 0.5,
            )  # fmt: skip
            self.concurrent[self.start(scope, started)] = started, []
        at = rng.choice([*self.concurrent])
        teller, told = self.concurrent[at]
        for _ in range(rng.choice([1, 3, 6])):
            first, second = self.next(), self.next()
            pair = teller.restarts <= 0 and rng.random() < 0.3
            nbytes = rng.choice([0, 0, 8, LARGE_BYTES if self.roomy and not teller.exact else 8])
            call = Call(
                first, rng.choice(SECONDS), nbytes, not pair and rng.random() < 0.06,
                teller.retries, awaits=second if pair else 0,
            )  # fmt: skip
            calls = [call]
            if pair:
                calls.append(Call(second, rng.choice(SECONDS), retries=teller.retries))
            for each in calls:
                scope.ops.append(Op("tell", (at,), each.key, each))
                told.append(each.key)
            if rng.random() < 0.3:
                scope.ops.append(Op("get", (rng.choice(told),)))

    def ends(self, scope: Scope) -> None:
        """Kill an actor that may restart, or draw the life of one up to its end and beyond.

        Calls after the end are errors. Those before have their values, or the error if they
        were not asked for in time.
        """
        rng = self.rng
        restarting = [at for at, teller in scope.actors.items() if teller.restarts]
        if restarting and rng.random() < 0.5:
            scope.ops.append(Op("kill", (rng.choice(restarting),), count=1))
            return
        leaves = rng.random() < 0.5
        key = self.next()
        # One that crashes may come back without the call that was to end it.
        restarts, mortal = rng.choice([(-1, False), (0, True), (0 if leaves else 2, leaves)])
        interval = rng.choice([0, 0, 1, 3]) if restarts < 0 else 0
        teller = Teller(key, restarts, restarts, interval, mortal=mortal)
        at = self.start(scope, teller)
        before: list[int] = []
        for _ in range(rng.choice([0, 1, 3, 6])):
            before.append(self.short_tell(scope, at, teller))
            if rng.random() < 0.3:
                scope.ops.append(Op("get", (rng.choice(before),)))
            elif teller.restarts and rng.random() < 0.15:
                scope.ops.append(Op("kill", (at,), count=1))
        gone = []
        if leaves:
            gone.append(self.short_tell(scope, at, teller, leaves=True))
        else:
            scope.ops.append(Op("kill", (at,)))
        for _ in range(rng.choice([1, 2])):
            gone.append(self.short_tell(scope, at, teller))
        scope.ops += [Op("gone", tuple(gone)), Op("drop", tuple(gone))]

    def short_tell(self, scope: Scope, at: int, teller: Teller, leaves: bool = False) -> int:
        """Call an actor without inputs; return the variable."""
        rng = self.rng
        key = self.next()
        nbytes = rng.choice([0, 0, 8, LARGE_BYTES if self.roomy and not teller.exact else 8])
        fails = not leaves and rng.random() < 0.05
        call = Call(key, rng.choice(SECONDS[:5]), nbytes, fails, teller.retries, leaves=leaves)
        scope.ops.append(Op("tell", (at,), key, call))
        return key

    def singly(self, scope: Scope) -> None:
        """Call an actor that never restarts and await each call; tasks need some of the values."""
        rng = self.rng
        teller = Teller(self.next(), 0, 0, mortal=True)
        at = self.start(scope, teller)
        for _ in range(rng.choice([3, 12])):
            out = self.short_tell(scope, at, teller)
            later = Op("get", (out,))
            if rng.random() < 0.2:
                early = rng.random() < 0.5
                needs = Op("call", (out,), self.next(), self.task(scope, [out]))
                scope.ops += [needs, later] if early else [later, needs]
            else:
                scope.ops.append(later)

    def finish(self, scope: Scope) -> None:
        """Ask the actors of several callers for all that has taken effect."""
        for each in self.shared:
            self._sum_up(scope, each.at, each.teller, each.called_by)
        for at, (teller, told) in self.concurrent.items():
            self._sum_up(scope, at, teller, told)
        for at, (teller, told) in self.tallied.items():
            call = Call(self.next(), retries=teller.retries, sums_up=True)
            scope.ops.append(Op("tally", (at, *told), call=call))

    def _sum_up(self, scope: Scope, at: int, teller: Teller, after: list[int]) -> None:
        call = Call(self.next(), retries=teller.retries, sums_up=teller.exact)
        scope.ops.append(Op("tell", (at, *after), call.key, call))
