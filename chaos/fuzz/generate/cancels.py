"""Tasks and calls of actors that the driver cancels, drawn behind everything else.

Of what is cancelled the value is the oracle's, or a TaskCancelledError. Nothing else of the
program needs it, except for tasks that end with the same error.

An actor whose calls are cancelled is a `Ledger`. At the end the driver asks for all of its
calls, then for all that took effect (``tally``): these are the calls that were not
cancelled, and those that had begun by then, and no other one. Many are awaited one at a
time, so that they go directly.
"""

from __future__ import annotations

import random

from raytwin.chaos.fuzz.programs.program import (
    LARGE_BYTES,
    RETRIES,
    Body,
    Call,
    Ledger,
    Op,
    SumUp,
    Teller,
)

KEYS = 3_000_000
"""Keys and variables of these operations begin here."""
SECONDS = (0.0, 0.0, 0.0, 0.001, 0.01)


def with_cancels(rng: random.Random, body: Body, roomy: bool) -> Body:
    """Return the program with tasks and calls of which some are cancelled.

    Unless it is `roomy`, a node's store may be too full for their large values.
    """
    ops: list[Op] = []
    tasks = 0
    ledgers: dict[int, Teller] = {}
    told: dict[int, list[int]] = {}
    number = KEYS
    for op in body.ops:
        ops.append(op)
        if rng.random() < 0.7:
            continue
        begun: list[Op] = []
        """Those of this round."""
        at = 0
        if rng.random() < 0.7:
            if not ledgers or (len(ledgers) < 2 and rng.random() < 0.2):
                number += 1
                forever = -1 if rng.random() < 0.3 else 0
                interval = rng.choice([0, 1, 3]) if forever else 0
                ledgers[number], told[number] = Ledger(number, forever, forever, interval), []
                ops.append(Op("actor", (), number, teller=ledgers[number]))
            at = rng.choice([*ledgers])
        for _ in range(rng.choice([1, 3, 10])):
            number += 1
            tasks += 1
            seconds = rng.choice(SECONDS)
            if at:
                fails = rng.random() < 0.03
                call = Call(number, seconds, fails=fails, retries=ledgers[at].retries)
                begun.append(Op("tell", (at,), number, call))
                told[at].append(number)
            else:
                nbytes = rng.choice([0, 0, 8, LARGE_BYTES if roomy else 8])
                call = Call(number, 5 * seconds, nbytes, retries=rng.choice(RETRIES))
                ins = (begun[-1].out,) if begun and rng.random() < 0.2 else ()
                begun.append(Op("call", ins, number, call))
            ops.append(begun[-1])
            if rng.random() < 0.3:
                unwanted = rng.choice(begun[-2:])
                ops.append(Op("cancel", (unwanted.out,), call=unwanted.call))
            if rng.random() < 0.6:
                ops.append(Op("get", (rng.choice(begun[-2:]).out,)))
    for at, ledger in ledgers.items():
        number += 1
        call = SumUp(number, retries=ledger.retries)
        ops.append(Op("tally", (at, *told[at]), call=call))
    return Body(tuple(ops), body.tasks + tasks + len(ledgers))
