"""Batches: calls of one actor that travel, wait and are answered together.

Each call is an array of its own, with its own ID, owner's entry and result. Calls made in a loop
over ``actor.method.remote(x)`` differ in ID and arguments alone, so each step on their way handles
them together::

    client    consecutive calls of one method, without inputs         ──> a batch
    submitter the actor takes calls: the batch is sent whole          else ┐
    queue     no call of its caller waits, none was sent before       else ├─> `singles`
    worker    splits it; plain results next to each other             ──> a batch of results
    replies,  one owner on this node awaits all calls, for the        else ┐
    results   first time                                                   ├─> `results_of`
    client    records each call's position in the payload                  ┘

Rare events (an actor that restarts, a call that is repeated, cancelled or replayed) are handled for
single calls only: a batch is split as soon as one occurs. Results of an actor that may restart are
logged, and so reported, one by one. Results of single tasks may come as a batch, too; each is
element 0 of its array.

A payload stays in memory as long as one of its values is used: at most ``inline_bytes_max``.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from struct import Struct

from msgspec.structs import replace

from raytwin.runtime.control.core.ids import ARRAY_BYTES
from raytwin.runtime.control.messages import OK, CallBatch, RangeResult, TaskExtra, TaskSpec

BATCH_MAX = 128
"""Calls in one batch: the first does not wait long for the last."""


@lru_cache(maxsize=BATCH_MAX)
def _layout(count: int) -> Struct:
    return Struct(f"{ARRAY_BYTES}s" * count)


def split(arrays: bytes) -> tuple[bytes, ...]:
    """Return the array IDs in a concatenation of them.

    >>> split(b"first array.other array.")
    (b'first array.', b'other array.')
    """
    return _layout(len(arrays) // ARRAY_BYTES).unpack(arrays)


def arrays_of(spec: TaskSpec) -> tuple[bytes, ...]:
    """Return the arrays of a call, or of a batch of them."""
    batch = None if spec.extra is None else spec.extra.batch
    return (spec.array,) if batch is None else split(batch.arrays)


def is_batch(spec: TaskSpec) -> bool:
    """Whether the spec is a batch of calls."""
    return spec.extra is not None and spec.extra.batch is not None


def batch_of(spec: TaskSpec, extra: TaskExtra, arrays: list[bytes], args: list[bytes]) -> TaskSpec:
    """Return calls with these arrays and arguments, otherwise like `spec`, as one."""
    spec.array = arrays[0]
    if len(arrays) == 1:
        spec.args = args[0]
        spec.extra = extra
        return spec
    spec.count = len(arrays)
    batch = CallBatch(b"".join(arrays), tuple(args) if any(args) else ())
    spec.extra = replace(extra, batch=batch)
    return spec


def singles(specs: Iterable[TaskSpec]) -> list[TaskSpec]:
    """Return the same calls, with every batch split into single calls."""
    found: list[TaskSpec] = []
    for spec in specs:
        batch = None if spec.extra is None else spec.extra.batch
        if batch is None:
            found.append(spec)
            continue
        assert spec.extra is not None
        extra = replace(spec.extra, batch=None)
        arrays = split(batch.arrays)
        for array, args in zip(arrays, batch.args or (b"",) * len(arrays), strict=True):
            found.append(
                TaskSpec(
                    array, 0, 1, spec.function, args, spec.owner, spec.demand, (), spec.returns,
                    spec.retries, spec.first, spec.name, extra,
                )
            )  # fmt: skip
    return found


def args_bytes(spec: TaskSpec) -> int:
    """Return the bytes of the arguments of a call, or of all calls of a batch."""
    if spec.extra is None or spec.extra.batch is None:
        return len(spec.args)
    return len(spec.extra.batch.arrays) + sum(map(len, spec.extra.batch.args))


def batch_of_results(arrays: list[bytes], payload: bytes, node: int) -> RangeResult:
    """Return the results of several calls; `payload` is the list of their values."""
    if len(arrays) == 1:
        return RangeResult(arrays[0], 0, 1, OK, payload, node)
    return RangeResult(arrays[0], 0, len(arrays), OK, payload, node, calls=b"".join(arrays))


def result_of(batch: RangeResult, position: int, array: bytes) -> RangeResult:
    """Return the result at a position of a batch of results."""
    return RangeResult(array, 0, 1, OK, batch.payload, batch.node, position=position)


def results_of(batch: RangeResult) -> list[RangeResult]:
    """Return the results of a batch's calls one by one."""
    return [result_of(batch, position, array) for position, array in enumerate(split(batch.calls))]
