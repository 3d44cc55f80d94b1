"""Random programs: drawn from a seed, first of tasks, then with actors among them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from raytwin.chaos.fuzz.programs.program import (
    DEPTH_MAX,
    LARGE_BYTES,
    RETRIES,
    Body,
    Call,
    Op,
    Teller,
)


class _Draw:
    """Draws one program."""

    def __init__(self, rng: random.Random, tasks_max: int) -> None:
        self.rng = rng
        self.left = tasks_max
        self.keys = 0

    def body(self, depth: int, ops_max: int) -> Body:
        rng = self.rng
        ops: list[Op] = []
        single: list[int] = []
        """Variables that hold one reference."""
        before = self.left
        for out in range(rng.randint(2, ops_max)):
            do = rng.choices(
                ("call", "lend", "give", "map", "put", "pack", "get", "wait", "drop"),
                (10, 3, 3, 3, 2, 2, 2, 2, 2),
            )[0]
            if do in ("get", "wait", "lend", "give", "pack", "drop") and not single:
                do = "call"
            if do in ("call", "lend", "give", "map") and self.left <= 0:
                do = "put"
            if do in ("call", "lend"):
                most = min(3, len(single))
                ins = rng.sample(single, rng.randint(do == "lend", most))
                ops.append(Op(do, tuple(ins), out, self.call(depth)))
                single.append(out)
            elif do == "give":
                ins = rng.sample(single, rng.randint(1, min(3, len(single))))
                self.left -= 1
                ops.append(Op("lend", tuple(ins), out, replace(self.call(depth), gives=True)))
                single.append(out)
            elif do == "pack":
                ins = rng.sample(single, rng.randint(1, min(3, len(single))))
                ops.append(Op("pack", tuple(ins), out))
                single.append(out)
            elif do == "map":
                count = min(self.left, rng.choice([2, 5, 10, 20]))
                self.left -= count - 1
                ops.append(Op("map", (), out, self.call(DEPTH_MAX), count))
            elif do == "put":
                ops.append(Op("put", (), out, nbytes=self.nbytes()))
                single.append(out)
            elif do == "wait":
                ins = rng.sample(single, rng.randint(1, min(4, len(single))))
                ops.append(Op("wait", tuple(ins), count=rng.randint(1, len(ins))))
            else:
                chosen = rng.choice(single)
                ops.append(Op(do, (chosen,)))
                if do == "drop":
                    single.remove(chosen)
        return Body(tuple(ops), before - self.left)

    def call(self, depth: int) -> Call:
        rng = self.rng
        self.keys += 1
        self.left -= 1
        key = self.keys
        body = None
        if depth < DEPTH_MAX and rng.random() < 0.25:
            body = self.body(depth + 1, 4)
        return Call(
            key,
            seconds=rng.choice([0.0, 0.001, 0.01, 0.05, 0.1, rng.random() * 0.3]),
            nbytes=self.nbytes(),
            fails=rng.random() < 0.06,
            retries=rng.choice(RETRIES),
            cpus=rng.choice([1.0, 1.0, 1.0, 0.5, 0.0]),
            body=body,
        )

    def nbytes(self) -> int:
        return self.rng.choice([0, 0, 0, 8, 1000, LARGE_BYTES, LARGE_BYTES, 3 * LARGE_BYTES])


def draw(rng: random.Random, tasks_max: int = 50) -> Body:
    """Return a random program of up to so many tasks."""
    return _Draw(rng, tasks_max).body(0, 16)


# -- drawing actors ----------------------------------------------------------------

ACTOR_KEYS = 10_000
"""Keys of actors and of their calls begin here, rising through the program."""


def with_actors(rng: random.Random, body: Body, roomy: bool) -> Body:
    """Return the program with actors, and calls of them, in between its operations.

    Unless it is `roomy`, a node's store may be too full for the large inputs of a call.
    """
    ops: list[Op] = []
    single: list[int] = []
    safe: set[int] = set()
    """Variables that no fault may turn into an error."""
    of_puts: set[int] = set()
    """Variables that were put, or made of such."""
    tellers: dict[int, Teller] = {}
    out = key = ACTOR_KEYS
    for op in body.ops:
        ops.append(op)
        if op.do in ("call", "lend", "put") and not (op.call is not None and op.call.gives):
            single.append(op.out)
            if op.call is None or not of_puts.isdisjoint(op.ins):
                of_puts.add(op.out)
            nbytes = op.call.nbytes if op.call is not None else op.nbytes
            if (roomy or nbytes < LARGE_BYTES) and (op.call is None or _is_safe(op, safe, of_puts)):
                safe.add(op.out)
        elif op.do == "drop":
            single = [i for i in single if i not in op.ins]
        for _ in range(rng.choice([0, 1, 2, 4])):
            out, key = out + 1, key + 1
            if not tellers or (len(tellers) < 3 and rng.random() < 0.15):
                restarts = rng.choice([0, 1, 3, -1, -1, -1, -1])
                retries = rng.choice([0, 2, -1, -1, -1, -1]) if restarts else 0
                interval = rng.choice([0, 0, 1, 3]) if restarts else 0
                tellers[out] = Teller(key, restarts, retries, interval)
                ops.append(Op("actor", (), out, teller=tellers[out]))
                continue
            if rng.random() < 0.04:
                dropped = rng.choice(list(tellers))
                del tellers[dropped]
                ops.append(Op("drop", (dropped,)))
                continue
            at, teller = rng.choice(list(tellers.items()))
            inputs = [i for i in single if i in safe] if teller.exact else single
            ins = rng.sample(inputs, min(len(inputs), rng.choice([0, 0, 1, 1, 2])))
            call = Call(
                key,
                seconds=rng.choice([0.0, 0.0, 0.001, 0.01, 0.05]),
                nbytes=rng.choice([0, 0, 0, 8, LARGE_BYTES]),
                fails=rng.random() < 0.06,
                retries=teller.retries,
            )
            ops.append(Op("tell", (at, *ins), out, call))
            single.append(out)
            if teller.exact and not call.nbytes and rng.random() < 0.5:
                safe.add(out)
            if rng.random() < 0.2:
                # A task that waits for it.
                out, key = out + 1, key + 1
                ops.append(Op("call", (out - 1,), out, Call(key, 0.001)))
                single.append(out)
    told = sum(op.do == "tell" for op in ops)
    return Body(tuple(ops), body.tasks + told)


def with_children(rng: random.Random, body: Body, roomy: bool) -> Body:
    """Return the program with calls of actors that submit tasks and put values.

    No fault may fail those of an actor that is exact; nor may a store that is not `roomy`.
    """
    tellers = {op.out: op.teller for op in body.ops if op.teller is not None}
    ops: list[Op] = []
    tasks = 0
    for op in body.ops:
        call, teller = op.call, tellers.get(op.ins[0]) if op.do == "tell" else None
        if call is None or teller is None or rng.random() < 0.6:
            ops.append(op)
            continue
        own = _Draw(rng, 4)
        own.keys = call.key * 10
        inner = own.body(DEPTH_MAX, 5) if rng.random() < 0.7 else None
        if inner is not None and teller.exact:
            inner = replace(inner, ops=lasting(inner.ops, roomy))
        tasks += inner.tasks if inner is not None else 0
        # A checkpoint has no references in it.
        may_give = teller.exact and not teller.interval and (roomy or call.nbytes < LARGE_BYTES)
        gives = may_give and rng.random() < 0.5
        ops.append(replace(op, call=replace(call, body=inner, gives=gives)))
    return Body(tuple(ops), body.tasks + tasks)


def lasting(ops: Sequence[Op], roomy: bool) -> tuple[Op, ...]:
    """Return operations of an actor's call that no fault may fail.

    What is made of a put cannot be made again without it, and its only copy may be on a node
    that dies: so what was put is let go of when all other values are where the call runs.
    """
    made = [_lasting(op, roomy) for op in ops]
    puts = {op.out for op in made if op.do == "put"}
    kept = [op for op in made if op.do != "drop" or puts.isdisjoint(op.ins)]
    if all(puts.isdisjoint(op.ins) for op in kept if op.do == "call"):
        return tuple(kept)
    dropped = {variable for op in kept if op.do == "drop" for variable in op.ins}
    values = {op.out for op in kept if op.do in ("call", "map")}
    return (*kept, Op("get", tuple(sorted(values - dropped))))


def _lasting(op: Op, roomy: bool) -> Op:
    """Return an operation that no fault may fail while there is all that was put.

    It lends nothing: a task that has raised because that was lost does not run again.
    """
    if op.do == "pack":
        op = replace(op, do="put", ins=())
    elif op.do == "lend":
        op = replace(op, do="call")
    nbytes = op.nbytes if op.call is None else op.call.nbytes
    nbytes = nbytes if roomy else min(nbytes, 1000)
    if op.call is None:
        return replace(op, nbytes=nbytes)
    return replace(op, call=replace(op.call, retries=-1, nbytes=nbytes, gives=False))


def _is_safe(op: Op, safe: set[int], of_puts: set[int]) -> bool:
    """Whether no fault may turn a task's value into an error, whatever is let go of.

    A large one may be lost with its node: it is not made again when it was made of a put that
    the program has let go of. Short ones the driver's node has, which does not die.
    """
    call = op.call
    assert call is not None
    lasts = call.nbytes < LARGE_BYTES or op.out not in of_puts
    return lasts and call.retries < 0 and call.body is None and safe.issuperset(op.ins)
