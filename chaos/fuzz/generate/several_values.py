"""Tasks of several values, streams and returns, drawn into random programs."""

from __future__ import annotations

import random
from dataclasses import replace

from raytwin.chaos.fuzz.programs.program import LARGE_BYTES, RETRIES, Body, Call, Op

KEYS = 20_000
"""Keys and variables of these operations begin here."""


def with_several(rng: random.Random, body: Body) -> Body:
    """Return the program with streams and tasks of several returns in between."""
    ops: list[Op] = []
    single: list[int] = []
    streams: list[int] = []
    number = KEYS
    tasks = 0
    for op in body.ops:
        ops.append(op)
        if op.do in ("call", "lend", "put"):
            single.append(op.out)
        elif op.do == "drop":
            single = [i for i in single if i not in op.ins]
        for _ in range(rng.choice([0, 0, 1, 2])):
            number += 10
            do = rng.choice(("stream", "returns", "take", "take", "call", "drop"))
            if do in ("stream", "returns") or not (streams and single):
                do = "returns" if do == "returns" else "stream"
                ins = rng.sample(single, min(len(single), rng.choice([0, 0, 1])))
                ops.append(Op(do, tuple(ins), number, _call(rng, number)))
                tasks += 1
                if do == "stream":
                    streams.append(number)
                else:
                    single += range(number, number + _parts(ops[-1]))
            elif do == "take":
                ops.append(Op("take", (rng.choice(streams),), number))
                single.append(number)
            elif do == "call":
                ins = rng.sample(single, min(2, len(single)))
                call = replace(_call(rng, number), parts=0)
                ops.append(Op("call", tuple(ins), number, call))
                single.append(number)
                tasks += 1
            else:
                # Not the program's own variables: it uses them later.
                chosen = rng.choice([i for i in (*streams, *single) if i >= KEYS])
                (streams if chosen in streams else single).remove(chosen)
                ops.append(Op("drop", (chosen,)))
    return Body(tuple(ops), body.tasks + tasks)


def _parts(op: Op) -> int:
    assert op.call is not None
    return op.call.parts


def _call(rng: random.Random, key: int) -> Call:
    return Call(
        key,
        seconds=rng.choice([0.0, 0.001, 0.01, 0.05]),
        nbytes=rng.choice([0, 0, 8, LARGE_BYTES, LARGE_BYTES]),
        fails=rng.random() < 0.06,
        retries=rng.choice(RETRIES),
        parts=rng.randint(2, 4),
    )
