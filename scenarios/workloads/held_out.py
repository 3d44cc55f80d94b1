"""The programs that predictions are tried on.

The programs: `fan` (a task's result goes to many tasks, whose results go to one), `chain` (each
task takes the result of the one before), `layered` (a random graph of layers, each task with two
results of the layer before), `nested` (tasks that submit tasks and wait for them), `allreduce`
(a ring of actors), `shuffle` (each of some tasks takes a part of each of others' results, through
the object store), `skewed` (calls of actors, of which some get many more), `stream` (a generator's
items, taken as they come). What figures 8a, 8b, 9 and 10b measure has their names; programs under
faults are in `recovering`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import raytwin as ray
from raytwin.scenarios.workloads import calibration_loads, recovering
from raytwin.scenarios.workloads.calibration_loads import CalibrationLoad
from raytwin.scenarios.workloads.programs import bag_of_tasks, empty, latencies_with_inputs, write
from raytwin.scenarios.workloads.ring_allreduce import Ring, as_copies
from raytwin.scenarios.workloads.workload import SEED, Ended, Group, Run, Workload

BODY_S = 0.001
"""CPU time of a task that has work."""

IN_FLIGHT = 8
BAG = 8_000
"""Tasks in a run of figure 8b."""
HISTORY = 4_000
"""Tasks in a run of figure 10b."""
HISTORY_BYTES = 100_000
"""Rows of the history of tasks that the GCS has in memory at most if it flushes: a few hundred."""
STORE_BYTES = 2_000_000_000
LARGE = 100_000_000
"""Inputs of so many bytes fit into the stores once for each task in flight."""

STORED_MIN = 100_000
"""The bytes of a value from which on a put copies it into the store."""

RING_BYTES_PER_S = 4e9
"""What a member of the ring adds up: it takes the time, on both backends."""


@ray.remote
def _work(body_s: float, *_values: Any) -> int:
    ray.compute(body_s)
    return 0


@ray.remote
def _parent(children: int, body_s: float) -> int:
    return sum(ray.get([_work.remote(body_s) for _ in range(children)]))


@ray.remote
def _parts(count: int, nbytes: int) -> Any:
    return [ray.Blob(nbytes) for _ in range(count)]


@ray.remote
def _items(count: int, body_s: float) -> Any:
    for number in range(count):
        ray.compute(body_s)
        yield number


class _Server:
    def call(self, body_s: float) -> int:
        ray.compute(body_s)
        return 0


def _timed(operations: Callable[[], int]) -> Ended:
    began_s = ray.now()
    done = operations()
    return Ended(done, ray.now() - began_s)


def _sync() -> Ended:
    latencies = []
    for _ in range(400):
        began_s = ray.now()
        ray.get(empty.remote())
        latencies.append(ray.now() - began_s)
    return Ended(len(latencies), sum(latencies), tuple(latencies))


def _fan(rounds: int, width: int, body_s: float) -> int:
    for _ in range(rounds):
        root = _work.remote(body_s)
        ray.get(_work.remote(body_s, *[_work.remote(body_s, root) for _ in range(width)]))
    return rounds * (width + 2)


def _chain(length: int, body_s: float) -> int:
    last = _work.remote(body_s)
    for _ in range(length - 1):
        last = _work.remote(body_s, last)
    ray.get(last)
    return length


def _layered(layers: int, width: int, body_s: float) -> int:
    draw = random.Random(SEED)
    layer = [_work.remote(body_s) for _ in range(width)]
    for _ in range(layers - 1):
        layer = [_work.remote(body_s, *draw.sample(layer, 2)) for _ in range(width)]
    ray.get(layer)
    return layers * width


def _nested(parents: int, children: int, body_s: float) -> int:
    ray.get([_parent.remote(children, body_s) for _ in range(parents)])
    return parents * (children + 1)


def _allreduce(members: int, nbytes: int, repeats: int) -> Run:
    ring = Ring(members, 2, nbytes, as_copies(members, 2, nbytes, RING_BYTES_PER_S))

    def run() -> Ended:
        found = tuple(ring.allreduce() for _ in range(repeats))
        return Ended(repeats, sum(found), found)

    return run


def _shuffle(maps: int, reduces: int, nbytes: int) -> int:
    made = [_parts.options(num_returns=reduces).remote(reduces, nbytes) for _ in range(maps)]
    ray.get([_work.remote(0.0, *[parts[each] for parts in made]) for each in range(reduces)])
    return maps + reduces


def _skewed(calls: int, in_flight: int, body_s: float) -> Run:
    server = ray.remote(num_cpus=0)(_Server)
    servers = [server.remote() for _ in range(4)]
    chosen = random.Random(SEED).choices(servers, [8, 4, 2, 1], k=calls)

    def run() -> Ended:
        latencies: list[float] = []
        began: dict[Any, float] = {}
        left = list(chosen)
        started_s = ray.now()
        while left or began:
            while left and len(began) < in_flight:
                now_s = ray.now()
                began[left.pop().call.remote(body_s)] = now_s
            ended, _ = ray.wait(list(began))
            now_s = ray.now()
            latencies += [now_s - began.pop(ref) for ref in ended]
        return Ended(calls, ray.now() - started_s, tuple(latencies))

    return run


def _stream(count: int, body_s: float) -> Ended:
    latencies = []
    since_s = ray.now()
    for ref in _items.options(num_returns="streaming").remote(count, body_s):
        ray.get(ref)
        now_s = ray.now()
        latencies.append(now_s - since_s)
        since_s = now_s
    return Ended(count, sum(latencies), tuple(latencies))


def _with_inputs(nbytes: int) -> Ended:
    """Run tasks with inputs of `nbytes`, as figure 8a does."""
    tasks = IN_FLIGHT if nbytes >= LARGE else 3 * IN_FLIGHT
    found = latencies_with_inputs([1, 2], [nbytes] * tasks, IN_FLIGHT, random.Random(SEED))
    # The driver keeps `IN_FLIGHT` tasks going, so as many latencies pass at the same time.
    return Ended(len(found), sum(found) / IN_FLIGHT, tuple(found))


def _with_input(nbytes: int, policy: str) -> Workload:
    # The driver's node has no CPU, so that the global scheduler places each task.
    options = {"policy": policy, "object_store_memory": STORE_BYTES}
    return Workload(
        lambda: partial(_with_inputs, nbytes), Group.FIGURE, (0, 2, 2), of_tasks=False,
        options=options,
    )  # fmt: skip


def _bag(nodes: int) -> Workload:
    def run() -> Ended:
        return Ended(BAG, bag_of_tasks(nodes, BAG, 500, True))

    return Workload(lambda: run, Group.FIGURE, (1,) * nodes)


def _writes(nbytes: int, threads: int) -> Workload:
    """Write objects of `nbytes` as figure 9 does."""
    puts = min(1_000, max(1, 128_000_000 // nbytes))

    def run() -> Ended:
        return Ended(puts, write(ray.Blob(nbytes), puts))

    options = {"store_copy_threads": threads}
    # The calibration has measured puts of another size that several threads copy.
    group = Group.SIZE if threads > 1 and nbytes >= STORED_MIN else Group.FIGURE
    return Workload(lambda: run, group, (1,), of_tasks=False, options=options)


def _history(flushing: bool) -> Workload:
    """Submit tasks of which the GCS keeps a history, as figure 10b does."""

    def run() -> int:
        for _ in range(HISTORY // 1_000):
            ray.get([empty.remote() for _ in range(1_000)])
        return HISTORY

    limit = {"gcs_memory_max": HISTORY_BYTES} if flushing else {}
    options = {"task_history": True, **limit}
    return _workload(Group.FIGURE, run, options=options, stores_gcs=flushing)


def _workload(
    group: Group,
    program: Callable[..., int],
    *arguments: Any,
    cpus: tuple[int, ...] = (1,),
    **of: Any,
) -> Workload:
    return Workload(lambda: partial(_timed, partial(program, *arguments)), group, cpus, **of)


def _load(load: CalibrationLoad, group: Group) -> Workload:
    return _workload(group, lambda: load.run()[0], cpus=load.cpus)


_SIZES = {"1kb": 1_000, "100kb": 100_000, "1mb": 1_000_000, "10mb": 10**7, "100mb": 10**8}
_OTHER = Group.WORKLOAD
_TWO = (1, 1)

WORKLOADS: Mapping[str, Workload] = {
    "sync": Workload(lambda: _sync, Group.TRAIN),
    **{
        name: _load(calibration_loads.LOADS[name], Group.TRAIN)
        for name in ("single", "argument", "reference", "far")
    },
    "single_1000": _load(calibration_loads.single(1_000, 2), Group.SIZE),
    "argument_10kb": _load(calibration_loads.with_value(10_000, 2), Group.SIZE),
    "references_2": _load(calibration_loads.with_results(2, 2), Group.SIZE),
    "fan": _workload(_OTHER, _fan, 8, 60, 0.0),
    "fan_with_work": _workload(_OTHER, _fan, 4, 60, BODY_S, cpus=_TWO, body_s=BODY_S),
    "chain": _workload(_OTHER, _chain, 400, 0.0),
    "chain_with_work": _workload(_OTHER, _chain, 200, BODY_S, cpus=_TWO, body_s=BODY_S),
    "layered": _workload(_OTHER, _layered, 10, 50, 0.0, cpus=_TWO),
    "layered_with_work": _workload(_OTHER, _layered, 10, 40, BODY_S, cpus=_TWO, body_s=BODY_S),
    "nested": _workload(_OTHER, _nested, 12, 30, 0.0, cpus=(2,)),
    "nested_with_work": _workload(_OTHER, _nested, 8, 30, BODY_S, cpus=_TWO, body_s=BODY_S),
    "allreduce": Workload(partial(_allreduce, 2, 8_000_000, 4), _OTHER, _TWO, of_tasks=False),
    "shuffle": _workload(_OTHER, _shuffle, 8, 8, 1_000_000, cpus=_TWO),
    "skewed": Workload(partial(_skewed, 800, 16, 0.0), _OTHER, _TWO),
    "skewed_with_work": Workload(partial(_skewed, 400, 16, BODY_S), _OTHER, _TWO, body_s=BODY_S),
    "stream": Workload(lambda: partial(_stream, 500, 0.0), _OTHER, of_tasks=False),
    "stream_with_work": Workload(
        lambda: partial(_stream, 250, BODY_S), _OTHER, body_s=BODY_S, of_tasks=False
    ),
    "sync_one_core": Workload(lambda: _sync, Group.SHAPE, cores=1),
    "fan_one_core": _workload(Group.SHAPE, _fan, 4, 60, BODY_S, cpus=_TWO, cores=1, body_s=BODY_S),
    "nested_one_core": _workload(
        Group.SHAPE, _nested, 8, 30, BODY_S, cpus=_TWO, cores=1, body_s=BODY_S
    ),
    "chain_one_core": _workload(
        Group.SHAPE, _chain, 200, BODY_S, cpus=_TWO, cores=1, body_s=BODY_S
    ),
    "layered_one_core": _workload(Group.SHAPE, _layered, 10, 50, 0.0, cpus=_TWO, cores=1),
    "skewed_one_core": Workload(partial(_skewed, 800, 16, 0.0), Group.SHAPE, _TWO, cores=1),
    **{
        f"fig8a_{name}_{size}": _with_input(nbytes, policy)
        for name, policy in (("local", "bottom-up"), ("blind", "locality-blind"))
        for size, nbytes in _SIZES.items()
        if nbytes >= 100_000
    },
    **{f"fig8b_{nodes}": _bag(nodes) for nodes in (1, 2, 4, 8)},
    **{
        f"fig9_{size}_by_{threads}": _writes(nbytes, threads)
        for threads in (1, 8)
        for size, nbytes in _SIZES.items()
    },
    **{f"fig10b_{what}_flushing": _history(what == "with") for what in ("with", "without")},
    **recovering.WORKLOADS,
}
