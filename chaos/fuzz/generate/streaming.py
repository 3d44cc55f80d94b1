"""Streams that tasks and actors' calls go through, drawn behind everything else.

Who goes through them runs again when its node dies: so each stream may have several owners,
one after another and on other nodes than the first, some of them in mid-stream. A stream is

- a task's that a task has submitted;
- or a call's of an actor that the task was handed, and that nobody else calls: so its items
  tell of all calls before. The task may be the driver, or a call of another actor.

An actor that is exact is called only by what no fault may fail, and takes no checkpoints: a
call before one does not yield again. Of one that another actor calls the items are small: that
one lets go of them, and goes through them again when it is rebuilt.
"""

from __future__ import annotations

import random

from raytwin.chaos.fuzz.generate.kind import Kind
from raytwin.chaos.fuzz.programs.program import HANDED, Body, Call, Handing, Op, Teller

KEYS = 6_000_000
"""Keys and variables of these operations begin here."""
ACTORS = 8_000_000
"""As in `callers`: variables of actors."""
SECONDS = (0.0, 0.001, 0.01, 0.05, 0.1)
"""Between two items."""


class _Streams(Kind):
    def actor(self, exact: bool) -> Op:
        rng = self.rng
        restarts = -1 if exact else rng.choice([0, 1, 3])
        retries = -1 if exact else rng.choice([0, 2]) if restarts else 0
        interval = rng.choice([0, 0, 1, 3]) if restarts > 0 else 0
        return self.start(Teller(self.next(), restarts, retries, interval))

    def program(self, body: Body) -> Body:
        rng = self.rng
        ops: list[Op] = []
        for op in body.ops:
            ops.append(op)
            if rng.random() < 0.7:
                continue
            do = rng.choice(("task", "task", "alone", "alone", "driver", "actors"))
            if do == "task":
                ops.append(self.task([]))
            elif do == "alone":
                start = self.actor(rng.random() < 0.7)
                ops += [start, self.task([start])]
            elif do == "driver":
                start = self.actor(rng.random() < 0.7)
                ops += [start, *self.reading([(start.out, start)], lasting=True)]
            else:
                ops += self.by_actor()
        return Body(tuple(ops), body.tasks + self.tasks)

    def task(self, called: list[Op]) -> Handing:
        """Return a task that goes through streams, of actors that it is handed and of its own."""
        rng = self.rng
        exact = all(op.teller is not None and op.teller.exact for op in called)
        out = self.next()
        call = Call(
            self.next(),
            rng.choice(SECONDS),
            rng.choice([0, 8, self.large()]),
            retries=-1 if exact else rng.choice([0, 1, 3]),
            cpus=rng.choice([1.0, 0.5, 0.0]),
            body=self.body(called, lasting=exact and bool(called)),
        )
        self.tasks += 1
        return Handing("hand", (), out, call, hands=tuple(op.out for op in called))

    def by_actor(self) -> list[Op]:
        """Return calls of one actor that go through streams of another one."""
        first, second = self.actor(exact=True), self.actor(exact=True)
        ops = [first, second]
        for _ in range(self.rng.choice([1, 2, 3])):
            out = self.next()
            call = Call(self.next(), retries=-1, body=self.body([second], lasting=True, small=True))
            ops.append(Handing("tell", (first.out,), out, call, hands=(second.out,)))
            self.tasks += 1
        return ops

    def body(self, called: list[Op], lasting: bool, small: bool = False) -> Body:
        at = [(HANDED - n, op) for n, op in enumerate(called)]
        return Body(tuple(self.reading(at, lasting, small)))

    def reading(self, at: list[tuple[int, Op]], lasting: bool, small: bool = False) -> list[Op]:
        """Return streams, and what takes some of their items; the rest is taken at the end.

        With `lasting` no fault may fail what of it is a task's, nor an exact actor's.
        """
        rng = self.rng
        ops: list[Op] = []
        streams: list[int] = []
        taken: list[int] = []
        for _ in range(rng.choice([2, 4, 8])):
            out = self.next()
            do = rng.choice(("stream", "take", "take", "take", "tell", "call", "drop"))
            if do == "stream" or not streams:
                streams.append(out)
                ops.append(self.stream(at, out, lasting, small))
            elif do == "take":
                taken.append(out)
                ops.append(Op("take", (rng.choice(streams),), out))
            elif do == "tell" and at:
                variable, start = rng.choice(at)
                assert start.teller is not None
                call = Call(self.next(), rng.choice(SECONDS), retries=start.teller.retries)
                ops.append(Op("tell", (variable,), out, call))
                self.tasks += 1
            elif do == "call" and taken:
                retries = -1 if lasting else rng.choice([0, 3])
                call = Call(self.next(), rng.choice(SECONDS), retries=retries)
                ops.append(Op("call", (rng.choice(taken),), out, call))
                self.tasks += 1
            elif do == "drop":
                gone = streams.pop(rng.randrange(len(streams)))
                ops.append(Op("drop", (gone,)))
        return ops

    def stream(self, at: list[tuple[int, Op]], out: int, lasting: bool, small: bool) -> Op:
        rng = self.rng
        self.tasks += 1
        call = Call(
            self.next(),
            rng.choice(SECONDS),
            rng.choice([0, 0, 8, self.large(not small)]),
            fails=rng.random() < 0.06,
            retries=-1 if lasting else rng.choice([0, 3, 3, -1]),
            parts=rng.randint(1, 8),
        )
        if not at or rng.random() < 0.2:
            return Op("stream", (), out, call)
        variable, start = rng.choice(at)
        assert start.teller is not None
        made = Call(
            call.key, call.seconds, call.nbytes, call.fails, start.teller.retries, parts=call.parts
        )
        return Op("yields", (variable,), out, made)


def with_streams(rng: random.Random, body: Body, roomy: bool) -> Body:
    """Return the program with tasks and calls that go through streams.

    Unless it is `roomy`, a node's store may be too full for large items.
    """
    return _Streams(rng, KEYS, ACTORS, roomy).program(body)
