"""Parts of a program that are programs themselves: what shrinking tries.

If an operation is left out, later ones may lack a variable, or wait for what never happens. `part`
leaves out what has lost its meaning too, and keeps what the rest needs, so that a part can fail for
a defect only:

- an operation without its actor, stream or group goes; other inputs that are missing are dropped;
- a group that is kept is removed again, and an actor with CPUs is dropped again, or tasks would
  rightly wait for their room; what no node can run is cancelled or killed again, and a detached
  actor killed;
- ``gone`` checks only submissions after an end that is kept;
- a call that waits for another call of its actor waits no more if that one has gone.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from raytwin.chaos.fuzz.programs.program import FIRST_HANDLE, MORE_THAN_A_NODE, Body, Op

NEED_FIRST = frozenset(
    {
        "tell",
        "tells",
        "yields",
        "take",
        "tally",
        "cancel",
        "kill",
        "reserved",
        "remove",
        "find",
        "ready",
        "look_up",
    }
)
"""Operations that mean nothing without the first of their inputs."""
NEED_ANY = frozenset({"lend", "pack", "get", "wait", "waits", "drop", "gone"})
"""Operations that mean nothing without inputs."""


def part(body: Body, kept: Collection[int]) -> Body:
    """Return the program of the operations with these indices, and of those that they need."""
    indices = sorted({*kept, *_ends(body, kept)})
    calls = {op.call.key for op in (body.ops[i] for i in indices) if op.call is not None}
    there: set[int] = {i for op in body.ops for i in op.ins if i <= FIRST_HANDLE}
    over: set[int] = set()
    """Actors and groups that have ended, and what was submitted to them since."""
    ops: list[Op] = []
    for index in indices:
        op = _with_inputs(body.ops[index], there, over)
        if op is None:
            continue
        call = op.call
        if call is not None and call.awaits and call.awaits not in calls:
            op = replace(op, call=replace(call, awaits=0))
        _note_end(op, over)
        if op.do == "drop":
            there.difference_update(op.ins)
        elif op.out >= 0:
            there.update(range(op.out, op.out + (call.parts if op.do == "returns" and call else 1)))
        ops.append(op)
    return Body(tuple(ops))


def _ends(body: Body, kept: Collection[int]) -> set[int]:
    """Return the operations that end the groups and the actors with CPUs among those kept, and
    that drop what was submitted to actors and groups which had ended: its errors are no values."""
    over: set[int] = set()
    for op in body.ops:
        _note_end(op, over)
    open_ = {
        op.out
        for op in (body.ops[i] for i in kept)
        if op.do == "group" or _needs_end(op) or (op.do != "actor" and op.out in over)
    }
    return {
        index
        for index, op in enumerate(body.ops)
        if not open_.isdisjoint(op.ins)
        and (op.do in ("remove", "drop", "cancel") or (op.do == "kill" and not op.count))
    }


def _needs_end(op: Op) -> bool:
    """Whether an actor or a task stays for ever, unless the program ends it."""
    if op.spec is not None:
        return op.spec.cpus > 0 or op.spec.detached
    return op.call is not None and op.call.cpus >= MORE_THAN_A_NODE


def _with_inputs(op: Op, there: Collection[int], over: Collection[int]) -> Op | None:
    """Return an operation with those of its inputs that exist; None if that is no operation."""
    if op.place is not None and op.place.group not in there:
        return None
    must = op.ins[: op.handles + (op.do == "tell")] if op.handles else ()
    if op.do in NEED_FIRST:
        must = must or op.ins[:1]
    if any(i not in there for i in must):
        return None
    ins = tuple(i for i in op.ins if i in there and (op.do != "gone" or i in over))
    if op.do in NEED_ANY and not ins:
        return None
    count = min(op.count, len(ins)) if op.do == "wait" else op.count
    return replace(op, ins=ins, count=count)


def _note_end(op: Op, over: set[int]) -> None:
    """Note what an operation ends, or submits to what has ended."""
    leaves = op.do == "tell" and op.call is not None and op.call.leaves
    if op.do == "remove" or (op.do == "kill" and not op.count) or leaves:
        over.add(op.ins[0])
    at = op.place.group if op.place is not None else op.ins[0] if op.do == "tell" else -1
    if at in over and op.out >= 0:
        over.add(op.out)


def size(body: Body) -> int:
    """Return the number of operations, those of nested bodies included."""
    nested = (op.call.body for op in body.ops if op.call is not None and op.call.body is not None)
    return len(body.ops) + sum(map(size, nested))
