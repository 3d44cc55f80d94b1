"""The loads of a calibration: small programs that run on both backends.

Each is about one thing and returns the number of its operations and the CPU time of the calling
thread within API calls that submit, s (0 where it is not measured). On a cluster of one node:

- `sync`: empty tasks one at a time; every process wakes for every message;
- `paced`: tasks one at a time, after a pause each: all processes have rested, all cores idled;
- `single`: windows of single tasks; batches, so what a wake-up costs spreads thin;
- `array`: a task array; ranges, so what a message costs spreads thin;
- `put`: small objects, put and dropped;
- `wait`: windows of single tasks, taken one by one as they come;
- `refilled`: a few single tasks in flight, of which each that ends is followed by another: every
  wait is for a list that is new;
- `argument`, `bytes`: tasks with a small and with a large value as their argument;
- `reference`, `references`: tasks with one and with four results of others by reference;
- `pickled`: tasks with a result of another by reference that takes cloudpickle;
- `items`: a generator's items, taken as they come;
- `stored`: tasks with a result of another by reference that is in the object store;
- `read`: tasks with a value by reference that the driver has put into the store.

On two, of which the driver's has no CPU, so that the global scheduler places every task:

- `far_sync`, `far_paced`, `far`: as `sync`, `paced` and `single`;
- `far_stored`: as `stored`; the global scheduler asks the GCS where the inputs are.

On four, of which the driver's has no CPU:

- `turns`: as `sync`, on one node after the other; each process wakes after all others have run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import raytwin as ray
from raytwin.scenarios.workloads.programs import empty

SYNC_TASKS = 120
PACED_TASKS = 20
PAUSE_S = 0.01
WINDOW = 300
WINDOWS = 3
IN_FLIGHT = 32
ARRAY_TASKS = 100_000
PUT_BYTES = 1_000
ARGUMENT_BYTES = 1_000
LARGE_BYTES = 50_000
STORED_BYTES = 120_000
"""Just above the boundary between messages and the store: copies should not be what is measured."""
REFERENCES = 4

Run = Callable[[], tuple[int, float]]


@dataclass(frozen=True)
class CalibrationLoad:
    """A program, and the cluster that it is for."""

    run: Run
    cpus: tuple[int, ...] = (1,)
    """Of each node; the driver is on the first."""

    @property
    def nodes(self) -> list[dict[str, float]]:
        """The nodes as `init` takes them."""
        return [{"CPU": cpus} for cpus in self.cpus]


@ray.remote
def _small() -> int:
    return 0


@ray.remote
def _pickled() -> Any:
    return ray.Blob(PUT_BYTES)


@ray.remote
def _items() -> Any:
    yield from range(WINDOW)


@ray.remote
def _stored() -> Any:
    return _kept()


@cache
def _kept() -> Any:
    """Return a blob that a worker makes once: new pages should not be what is measured."""
    return ray.Blob(STORED_BYTES)


@ray.remote
def _take(*_values: Any) -> None:
    return None


def _sync() -> tuple[int, float]:
    total_s = 0.0
    for _ in range(SYNC_TASKS):
        (ref,), call_s = _submitted(empty, [()])
        total_s += call_s
        ray.get(ref)
    return SYNC_TASKS, total_s


def _paced() -> tuple[int, float]:
    for _ in range(PACED_TASKS):
        ray.get(empty.remote())
        ray.sleep(PAUSE_S)
    return PACED_TASKS, 0.0


def _read() -> tuple[int, float]:
    value = ray.Blob(STORED_BYTES)
    operations, _ = _windows(1, lambda: ([(ray.put(value),) for _ in range(WINDOW)], 0.0))
    return operations, 0.0  # the puts send frames, too


def _single(window: int = WINDOW, windows: int = WINDOWS) -> tuple[int, float]:
    return _windows(windows, lambda: ([()] * window, 0.0), empty)


def _array() -> tuple[int, float]:
    ray.get(empty.map(range(ARRAY_TASKS)))
    return ARRAY_TASKS, 0.0


def _stream() -> tuple[int, float]:
    for ref in _items.options(num_returns="streaming").remote():
        ray.get(ref)
    return WINDOW, 0.0


def _put() -> tuple[int, float]:
    value = ray.Blob(PUT_BYTES)
    for _ in range(WINDOWS):
        refs = [ray.put(value) for _ in range(WINDOW)]
        del refs
    return WINDOW * WINDOWS, 0.0


def _wait() -> tuple[int, float]:
    for _ in range(WINDOWS):
        left = [empty.remote() for _ in range(WINDOW)]
        while left:
            _, left = ray.wait(left)
    return WINDOW * WINDOWS, 0.0


def _refilled() -> tuple[int, float]:
    flying = [empty.remote() for _ in range(IN_FLIGHT)]
    for _ in range(WINDOW - IN_FLIGHT):
        _, flying = ray.wait(flying)
        flying.append(empty.remote())
    ray.get(flying)
    return WINDOW, 0.0


def _with_value(nbytes: int, windows: int) -> tuple[int, float]:
    return _windows(windows, lambda: ([(bytes(nbytes),)] * WINDOW, 0.0))


def _with_results(make: Any, references: int, windows: int) -> tuple[int, float]:
    """Run tasks, and as many that have results of some of these as arguments."""

    def arguments() -> tuple[Sequence[tuple[Any, ...]], float]:
        made, call_s = _submitted(make, [()] * WINDOW)
        ray.wait(made, num_returns=WINDOW, fetch_local=False)
        given = [tuple(made[at - each] for each in range(references)) for at in range(WINDOW)]
        return given, call_s

    return _windows(windows, arguments)


def _windows(
    windows: int,
    arguments: Callable[[], tuple[Sequence[tuple[Any, ...]], float]],
    task: Any = _take,
) -> tuple[int, float]:
    """Run windows of one task for each of `arguments`, which gives the time of its calls, too."""
    operations, total_s = 0, 0.0
    for _ in range(windows):
        given, made_s = arguments()
        refs, call_s = _submitted(task, given)
        total_s += made_s + call_s
        operations += len(given)
        del given
        ray.get(refs)
    return operations, total_s


def _submitted(task: Any, arguments: Sequence[tuple[Any, ...]]) -> tuple[list[Any], float]:
    """Submit a task for each of `arguments`; return the references, and the calls' CPU time, s."""
    started_s = time.thread_time()
    refs = [task.remote(*each) for each in arguments]
    return refs, time.thread_time() - started_s


def _turns() -> tuple[int, float]:
    # `options` takes 20 µs, which no figure of the profile stands for.
    there = [empty.options(resources={f"node:{node}": 0.001}) for node in range(1, len(_TURNS))]
    for number in range(SYNC_TASKS):
        ray.get(there[number % len(there)].remote())
    return SYNC_TASKS, 0.0


_FAR = (0, 1)
_TURNS = (0, 1, 1, 1)

LOADS: Mapping[str, CalibrationLoad] = {
    "sync": CalibrationLoad(_sync),
    "paced": CalibrationLoad(_paced),
    "single": CalibrationLoad(_single),
    "array": CalibrationLoad(_array),
    "put": CalibrationLoad(_put),
    "wait": CalibrationLoad(_wait),
    "refilled": CalibrationLoad(_refilled),
    "argument": CalibrationLoad(partial(_with_value, ARGUMENT_BYTES, 2)),
    "bytes": CalibrationLoad(partial(_with_value, LARGE_BYTES, 1)),
    "reference": CalibrationLoad(partial(_with_results, _small, 1, 1)),
    "references": CalibrationLoad(partial(_with_results, _small, REFERENCES, 1)),
    "pickled": CalibrationLoad(partial(_with_results, _pickled, 1, 1)),
    "items": CalibrationLoad(_stream),
    "stored": CalibrationLoad(partial(_with_results, _stored, 1, 1)),
    "read": CalibrationLoad(_read),
    "far_sync": CalibrationLoad(_sync, _FAR),
    "far_paced": CalibrationLoad(_paced, _FAR),
    "far": CalibrationLoad(_single, _FAR),
    "far_stored": CalibrationLoad(partial(_with_results, _stored, 1, 1), _FAR),
    "turns": CalibrationLoad(_turns, _TURNS),
}


def single(window: int, windows: int) -> CalibrationLoad:
    """Return `single` with so many tasks in a window."""
    return CalibrationLoad(partial(_single, window, windows))


def with_value(nbytes: int, windows: int) -> CalibrationLoad:
    """Return `argument` with so many bytes."""
    return CalibrationLoad(partial(_with_value, nbytes, windows))


def with_results(references: int, windows: int) -> CalibrationLoad:
    """Return `references` with so many of them."""
    return CalibrationLoad(partial(_with_results, _small, references, windows))


def by_cluster() -> dict[tuple[int, ...], list[str]]:
    """Return the names of the loads by the CPUs of their cluster's nodes."""
    found: dict[tuple[int, ...], list[str]] = {}
    for name, load in LOADS.items():
        found.setdefault(load.cpus, []).append(name)
    return found
