"""Linearizability of the histories of the key-value table, a key at a time.

Each key is a register whose operations all answer its value before: ``put`` is a swap. A history
is linearizable if its operations could have happened one by one, each at a moment between its begin
and its end. The search is that of Wing and Gong (1993), with the memory of dead ends that Lowe
(2017) added and porcupine made known: a state is the set of operations that have happened and the
value. An operation that never ended, since its process died, may have happened or not.

Back of the envelope: a program has some ten operations a key, few of them at a time, so the search
visits some ten states; only with many at a time it is exponential.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf


@dataclass
class Operation:
    """One operation on one key; the times are on one clock."""

    key: bytes
    put: bytes | None
    """The value that it sets; None: it only reads."""
    begun_s: float
    ended_s: float = inf
    """Infinite: it has not ended."""
    answer: bytes | None = None
    """The key's value before; None: there was none."""


def is_linearizable(history: Iterable[Operation]) -> bool:
    """Whether the operations of one key could have happened one by one."""
    operations = sorted(history, key=lambda each: each.begun_s)
    # A read that has not ended says nothing.
    operations = [each for each in operations if each.ended_s < inf or each.put is not None]
    dead_ends: set[tuple[frozenset[int], bytes | None]] = set()
    stack: list[tuple[frozenset[int], bytes | None]] = [(frozenset(range(len(operations))), None)]
    while stack:
        left, value = stack.pop()
        first_end_s = min((operations[i].ended_s for i in left), default=inf)
        if first_end_s == inf:
            return True
        if (left, value) in dead_ends:
            continue
        dead_ends.add((left, value))
        for i in left:
            each = operations[i]
            if each.begun_s > first_end_s or (each.ended_s < inf and each.answer != value):
                continue
            stack.append((left - {i}, value if each.put is None else each.put))
    return False


def wrong_keys(history: Iterable[Operation]) -> list[bytes]:
    """Return the keys whose histories are not linearizable."""
    by_key: dict[bytes, list[Operation]] = {}
    for each in history:
        by_key.setdefault(each.key, []).append(each)
    return [key for key, operations in sorted(by_key.items()) if not is_linearizable(operations)]
