"""Runs: calls of one actor that travel, wait and are answered together.

Each call is an array of its own, with an ID, an owner's entry and an end of its own.
But in a loop over ``actor.method.remote(x)`` they differ in nothing except ID and
arguments, and what is done with them on their way is done with all::

    client    calls of one method, one after another, without inputs  ──> a run
    submitter the actor takes calls: the run is sent as it came       else ┐
    queue     nobody of its caller waits, none was sent before        else ├─> `singles`
    worker    takes it apart; plain results next to each other        ──> a run of results
    replies,  all calls are awaited here by one owner, for the        else ┐
    results   first time                                                   ├─> `results_of`
    client    notes for each call where in the payload its value is        ┘

So there is one way for what happens seldom (an actor that starts anew, a call that
comes again, is cancelled or is replayed), that of single calls, and a run may be taken
apart wherever that begins. Results of an actor that may restart are logged, and so
reported, one by one. Those of tasks with nothing special about them may come as a run
too, of which each is element 0 of its array.

Cost: of a run of n calls, a message and a share of it; per call what C does with an ID
in a dictionary. A value in a payload keeps the payload: at most ``inline_bytes_max``.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from struct import Struct

from msgspec.structs import replace

from raytwin.runtime.control.core.ids import ARRAY_BYTES
from raytwin.runtime.control.messages import OK, CallRun, RangeResult, TaskExtra, TaskSpec

RUN_MAX = 128
"""Calls in one run: the first does not wait long for the last."""


@lru_cache(maxsize=RUN_MAX)
def _layout(count: int) -> Struct:
    return Struct(f"{ARRAY_BYTES}s" * count)


def split(arrays: bytes) -> tuple[bytes, ...]:
    """Return the array IDs that stand one after another.

    >>> split(b"first array.other array.")
    (b'first array.', b'other array.')
    """
    return _layout(len(arrays) // ARRAY_BYTES).unpack(arrays)


def arrays_of(spec: TaskSpec) -> tuple[bytes, ...]:
    """Return the arrays of a call, or of a run of them."""
    run = None if spec.extra is None else spec.extra.run
    return (spec.array,) if run is None else split(run.arrays)


def is_run(spec: TaskSpec) -> bool:
    """Whether this stands for several calls."""
    return spec.extra is not None and spec.extra.run is not None


def run_of(spec: TaskSpec, extra: TaskExtra, arrays: list[bytes], args: list[bytes]) -> TaskSpec:
    """Return calls with these arrays and arguments, otherwise like `spec`, as one."""
    spec.array = arrays[0]
    if len(arrays) == 1:
        spec.args = args[0]
        spec.extra = extra
        return spec
    spec.count = len(arrays)
    spec.extra = replace(extra, run=CallRun(b"".join(arrays), tuple(args) if any(args) else ()))
    return spec


def singles(specs: Iterable[TaskSpec]) -> list[TaskSpec]:
    """Return the same calls, those of runs one by one."""
    found: list[TaskSpec] = []
    for spec in specs:
        run = None if spec.extra is None else spec.extra.run
        if run is None:
            found.append(spec)
            continue
        assert spec.extra is not None
        extra = replace(spec.extra, run=None)
        arrays = split(run.arrays)
        for array, args in zip(arrays, run.args or (b"",) * len(arrays), strict=True):
            found.append(
                TaskSpec(
                    array, 0, 1, spec.function, args, spec.owner, spec.demand, (), spec.returns,
                    spec.retries, spec.first, spec.name, extra,
                )
            )  # fmt: skip
    return found


def args_bytes(spec: TaskSpec) -> int:
    """Return how long the arguments of a call are, or of all of a run."""
    if spec.extra is None or spec.extra.run is None:
        return len(spec.args)
    return len(spec.extra.run.arrays) + sum(map(len, spec.extra.run.args))


def run_of_results(arrays: list[bytes], payload: bytes, node: int) -> RangeResult:
    """Return the results of several calls; `payload` is the list of their values."""
    if len(arrays) == 1:
        return RangeResult(arrays[0], 0, 1, OK, payload, node)
    return RangeResult(arrays[0], 0, len(arrays), OK, payload, node, calls=b"".join(arrays))


def result_of(run: RangeResult, position: int, array: bytes) -> RangeResult:
    """Return what is at a position of a run of results."""
    return RangeResult(array, 0, 1, OK, run.payload, run.node, position=position)


def results_of(run: RangeResult) -> list[RangeResult]:
    """Return the results of a run's calls one by one."""
    return [result_of(run, position, array) for position, array in enumerate(split(run.calls))]
