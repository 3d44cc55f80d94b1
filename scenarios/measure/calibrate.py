"""Measuring this machine: microbenchmarks in, a cost profile out.

Runs small clusters on the real runtime and reads how much CPU time each process used (from the
kernel's scheduler statistics, which count nanoseconds) for a few loads, see `calibration_loads`;
`fit` finds the figures of a profile that explain them. Memory and loopback bandwidth are timed
with objects of `OBJECT_BYTES`, that of the disk with one of `SPILL_BYTES`.

Every figure is the median of several rounds, each with clusters of its own: clusters differ more
than runs in one. Nothing of a scenario is in here: what the profile then predicts has not been
fitted.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import psutil

import raytwin as ray
from raytwin.runtime.control.messages import Command
from raytwin.runtime.processes.client import preload
from raytwin.runtime.processes.head.gcs_storage import SqliteFile
from raytwin.runtime.processes.net.reactor import Reactor
from raytwin.runtime.processes.node.spiller import SpillFile
from raytwin.runtime.processes.spawn.zygote import die_with
from raytwin.runtime.serialization.real_blob import Blob
from raytwin.runtime.store.arena import create_file
from raytwin.runtime.store.arena_writer import Copier
from raytwin.runtime.store.scratch import shared
from raytwin.scenarios.bench.cases import repeated_per_s
from raytwin.scenarios.core import measured_host
from raytwin.scenarios.core.scenario import Progress
from raytwin.scenarios.measure.fit import LEAST_S, Load, Loads, fit, medians
from raytwin.scenarios.workloads.calibration_loads import LOADS, WINDOW, by_cluster
from raytwin.scenarios.workloads.programs import empty

ROUNDS = 5
PASSES = 3
"""Over all loads of a cluster in each round: the processor's speed changes within seconds."""
MACHINE_STEPS = 2
"""How often `measure_machine` advances."""
HOP_S = 0.1
OBJECT_BYTES = 64_000_000
OBJECT_ROUNDS = 4
SMALL_COPY_BYTES = 1 << 17
LARGE_COPY_BYTES = 256_000_000
CACHED_COPIES_BYTES = tuple(1 << power for power in range(17, 27))
COPIED_BYTES = 1 << 24
"""In each round, if the copies to all places are shorter."""
COPY_PLACES = 4
"""Puts of which each drops the object before take so many places of the store in turn, as a look at
their addresses shows: the store has a place back some puts later."""
COPY_THREADS = 8
COPY_ROUNDS = 11
PUTS = 200
"""Of each of two passes in a cluster."""
BLOB_BYTES = 1_000_000
BLOB_ROUNDS = 41
TOUCH_BYTES = 64_000_000
SHORT_WAIT_S = 1e-5
LONG_WAIT_S = 0.01
WAITS = 41
REST_S = 0.001
RESTS = 201
SPILL_BYTES = 32_000_000
COMMITS = 3_000
COMMAND_BYTES = 512
CLUSTERS = 9
"""In each of which a worker and a node are killed."""
QUIET_S = 0.05
"""Between two of these, when the node has its new worker."""
LOG_TIMEOUT_S = 10.0


def calibrate(progress: Progress) -> dict[str, Any]:
    """Measure this machine; return a profile as `costs` reads it.

    Raises RuntimeError if a cluster is connected already.
    """
    progress.begin("calibrating this machine", steps())
    return measure(progress)


def steps() -> int:
    """Return how often `measure` advances."""
    return ROUNDS + MACHINE_STEPS + 1


def measure(progress: Progress) -> dict[str, Any]:
    """Do what `calibrate` does as a part of longer work."""
    rounds, speeds = [], []
    for _ in range(ROUNDS):
        speeds.append(measured_host.speed())
        rounds.append(measure_loads())
        progress.advance()
    machine = measure_machine(progress)
    profile = profile_of(rounds, {**machine, "speed": statistics.median(speeds)})
    progress.advance()
    return profile


def profile_of(rounds: Sequence[Loads], machine: dict[str, Any]) -> dict[str, Any]:
    """Return the profile that explains rounds of loads, as `costs` reads it."""
    return fit(rounds, {**machine, "source": _source(rounds)})


def measure_machine(progress: Progress) -> dict[str, Any]:
    """Return the figures of a profile that are measured by themselves; advance `MACHINE_STEPS`.

    Raises RuntimeError if a cluster is connected already, OSError if the directory for temporary
    files, the runtime's default for spilled objects, has no room for one of them.
    """
    start_worker_s = _measure_start_worker()
    warm_up_s, with_numpy_s = _measure_warm_up(), _measure_warm_up(*preload.MODULES)
    progress.advance()
    memory, loopback, transfer_byte_s = _measure_transfers()
    hop_s = _measure_hop()
    progress.advance()
    return {
        "name": "this machine",
        "cores": os.cpu_count() or 1,
        "latency_s": hop_s,
        "bandwidth": loopback,
        "loopback_latency_s": hop_s,
        "loopback_bandwidth": loopback,
        "memory_bandwidth": memory,
        "transfer_byte_s": transfer_byte_s,
        "start_worker_s": start_worker_s,
        **_measure_processes(),
        "warm_up_s": warm_up_s,
        "warm_up_numpy_s": max(0.0, with_numpy_s - warm_up_s),
        "run_queues": True,
        "blob_byte_s": _measure_blob(),
        "touch_byte_s": _measure_touch(),
        "busy_rest": _measure_busy_rest(),
        "timer_s": _measure_timer(),
        "commit_s": _measure_commit(),
        "disk_bandwidth": _measure_disk(),
        **_measure_copies(memory),
    }


def _source(rounds: Sequence[Loads]) -> str:
    loads = medians(rounds)
    sync, single, array = (1 / loads[name]["wall"] for name in ("sync", "single", "array"))
    return (
        f"measured on {os.cpu_count() or 1} cores, rounds of loads: {len(rounds)};"
        f" {sync:,.0f} tasks/s one at a time, {single:,.0f} in windows of {WINDOW},"
        f" {array:,.0f} as an array"
    )


class Meter:
    """CPU time of a cluster's processes, by role."""

    def __init__(self, cluster: Any) -> None:
        cluster.poll()
        nodes = [pid for key, pid in cluster.pids.items() if key.startswith("node:")]
        self._pids = {"head": [cluster.pids["head"]], "node": nodes}
        zygote = psutil.Process(cluster.pids["zygote"])
        known = {pid for pids in self._pids.values() for pid in pids}
        self._pids["worker"] = [p.pid for p in zygote.children() if p.pid not in known]
        self._pids["driver"] = [os.getpid()]

    def read(self) -> dict[str, float]:
        """Return the CPU seconds that each role has used so far."""
        return {role: sum(map(_cpu_s, pids)) for role, pids in self._pids.items()}


def _cpu_s(pid: int) -> float:
    total_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total_ns += int((task / "schedstat").read_text().split()[0])
    return total_ns / 1e9


def measure_loads() -> Loads:
    """Measure the loads on clusters of this round's own: means over `PASSES`.

    Raises RuntimeError if a cluster is connected already.
    """
    loads: Loads = {}
    for names in by_cluster().values():
        session: Any = ray.init(backend="local", nodes=LOADS[names[0]].nodes)
        try:
            for name in names:
                LOADS[name].run()
            meter = Meter(session.cluster)
            passes = [
                {name: _load(meter, LOADS[name].run) for name in names} for _ in range(PASSES)
            ]
        finally:
            ray.shutdown()
        for name in names:
            keys = passes[0][name]
            loads[name] = {
                key: statistics.fmean(each[name][key] for each in passes) for key in keys
            }
    return loads


def _load(meter: Meter, run: Callable[[], tuple[int, float]]) -> Load:
    before, started_s = meter.read(), time.perf_counter()
    operations, call_s = run()
    wall_s, after = time.perf_counter() - started_s, meter.read()
    load = {role: (after[role] - before[role]) / operations for role in after}
    return {**load, "wall": wall_s / operations, "call": call_s / operations}


_ECHO = """
import os, sys
while message := os.read(int(sys.argv[1]), 64):
    os.write(int(sys.argv[1]), message)
"""


def _measure_hop() -> float:
    """Return how long a message between two processes takes besides their CPU time, s."""
    ours, theirs = Pipe()  # a pair of Unix sockets
    command = [sys.executable, "-c", _ECHO, str(theirs.fileno())]
    with subprocess.Popen(command, pass_fds=(theirs.fileno(),)) as echo, ours:
        theirs.close()

        def round_trips() -> None:
            for _ in range(100):
                os.write(ours.fileno(), bytes(64))
                assert os.read(ours.fileno(), 64), "the echo process has ended"

        repeated_per_s(round_trips, HOP_S)
        found = []
        for _ in range(ROUNDS):
            before_s = _cpu_s(os.getpid()) + _cpu_s(echo.pid)
            begun_s = time.perf_counter()
            per_s = 100 * repeated_per_s(round_trips, HOP_S)
            wall_s = time.perf_counter() - begun_s
            busy_s = _cpu_s(os.getpid()) + _cpu_s(echo.pid) - before_s
            found.append((1 - busy_s / wall_s) / per_s / 2)
    return max(LEAST_S, statistics.median(found))


@ray.remote
def _pid() -> int:
    return os.getpid()


@ray.remote
def _nested() -> int:
    return int(ray.get(_pid.remote()))


def _measure_start_worker() -> float:
    """Return the CPU seconds that zygote and worker take when a nested task has to start one."""
    found = []
    for _ in range(ROUNDS):
        session: Any = ray.init(backend="local", nodes=1, cpus_per_node=1)
        try:
            ray.get(empty.remote())
            zygote = session.cluster.pids["zygote"]
            before_s = _cpu_s(zygote)
            worker = ray.get(_nested.remote())
            started_s, forked_s = _cpu_s(worker), _cpu_s(zygote) - before_s
            ray.get(_nested.remote())
            ran_s = _cpu_s(worker) - started_s
            found.append(forked_s + started_s - ran_s)
        finally:
            ray.shutdown()
    return max(LEAST_S, statistics.median(found))


def _measure_processes() -> dict[str, float]:
    """Return how long a worker and a node take to end once they are killed, and a node to start,
    where nothing else runs.

    A worker has ended when its death is in the GCS's log, and a node has started when it is there:
    the messages until then are in these times, too.
    """
    workers, nodes, starts = [], [], []
    for _ in range(CLUSTERS):
        session: Any = ray.init(backend="local", nodes=2, cpus_per_node=1)
        try:
            pid = ray.get(_pid.remote())
            ray.sleep(QUIET_S)
            began_s = ray.now()
            os.kill(pid, signal.SIGKILL)
            workers.append(_logged_s(session, "worker_died", began_s) - began_s)
            ray.sleep(QUIET_S)
            began_s = ray.now()
            session.cluster.kill_node(1)
            nodes.append(ray.now() - began_s)
            ray.sleep(QUIET_S)
            began_s = ray.now()
            session.cluster.restart_node(1)
            starts.append(_logged_s(session, "node_added", began_s) - began_s)
        finally:
            ray.shutdown()
    found = {"end_process_s": workers, "end_node_s": nodes, "start_node_s": starts}
    return {name: statistics.median(each) for name, each in found.items()}


def _logged_s(session: Any, event: str, since_s: float) -> float:
    """Return when the GCS has logged an event since a moment; wait for it. Raises RuntimeError if
    it does not come."""
    while ray.now() < since_s + LOG_TIMEOUT_S:
        for at_s, kind, *_ in session.query("events"):
            if kind == event and at_s >= since_s:
                return float(at_s)
        ray.sleep(QUIET_S)
    raise RuntimeError(f"the GCS has logged no {event} within {LOG_TIMEOUT_S:g} s")


@ray.remote
def _make() -> Any:
    return ray.Blob(OBJECT_BYTES)


_WARM_UP = """
import sys, time
from raytwin.runtime.processes.spawn import zygote
zygote.load(zygote.MAINS["head"], zygote.MAINS["node"])
began_s = time.process_time()
zygote.warm_up(*sys.argv[1:])
print(time.process_time() - began_s)
"""


def _measure_warm_up(*modules: str) -> float:
    """Return the CPU time that a zygote takes to prepare for forking workers, with these modules
    loaded besides the runtime's own."""
    command = [sys.executable, "-c", _WARM_UP, *modules]
    return statistics.median(
        float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        for _ in range(ROUNDS)
    )


def _measure_transfers() -> tuple[float, float, float]:
    """Return bytes/s of a copy into the store, and between two nodes' stores; and the CPU seconds
    per byte that each of these nodes takes."""
    store = 4 * OBJECT_BYTES
    session: Any = ray.init(backend="local", nodes=2, cpus_per_node=1, object_store_memory=store)
    copies, transfers, busy = [], [], []
    try:
        meter = Meter(session.cluster)
        value = np.ones(OBJECT_BYTES, dtype=np.uint8)
        for _ in range(OBJECT_ROUNDS):
            started_s = time.perf_counter()
            ref = ray.put(value)
            copies.append(time.perf_counter() - started_s)
            del ref
            far = _make.options(resources={"node:1": 0.01}).remote()
            ray.wait([far], fetch_local=False)
            before, started_s = meter.read(), time.perf_counter()
            ray.get(far)
            transfers.append(time.perf_counter() - started_s)
            busy.append(meter.read()["node"] - before["node"])
            del far
    finally:
        ray.shutdown()
    # The first of each touches memory that was never used.
    return (
        OBJECT_BYTES / statistics.median(copies[1:]),
        OBJECT_BYTES / statistics.median(transfers[1:]),
        statistics.median(busy[1:]) / (2 * OBJECT_BYTES),
    )


def _measure_blob() -> float:
    """Return the CPU seconds per byte of making a `Blob`, whose pages are new."""
    found, blobs = [], []
    for _ in range(BLOB_ROUNDS):
        started_s = time.thread_time()
        blobs.append(Blob(BLOB_BYTES))
        found.append((time.thread_time() - started_s) / BLOB_BYTES)
    return statistics.median(found)


def _measure_touch() -> float:
    """Return the CPU seconds per byte that shared memory costs when it is used first."""
    source = np.ones(TOUCH_BYTES, np.uint8)
    found = []
    for _ in range(ROUNDS):
        took = []
        memory = shared(TOUCH_BYTES)
        for _ in range(2):
            started_s = time.thread_time()
            memory[:] = source.data
            took.append(time.thread_time() - started_s)
        found.append((took[0] - took[1]) / TOUCH_BYTES)
    return max(0.0, statistics.median(found))


def _measure_busy_rest() -> float:
    """Return the part of a rest that makes a process cold if its core is busy meanwhile: from its
    CPU time after such rests, after rests in which the core idles, and after none.

    A fork that runs the same code keeps the core busy, as nodes, workers and the head do for one
    another: they are forks of the zygote, and share the memory that holds most of what they run.
    Of a rest beside a separate interpreter that runs this code, four to ten times as much counts.
    """
    ours, theirs = Pipe()
    other = get_context("fork").Process(target=_keep_busy, args=(os.getpid(), theirs))
    cores = os.sched_getaffinity(0)
    idle_s, busy_s = [], []
    other.start()
    theirs.close()
    assert other.pid is not None
    try:
        for pid in (0, other.pid):
            os.sched_setaffinity(pid, {min(cores)})
        for _ in range(RESTS):
            warm_s = _warm_s()
            time.sleep(REST_S)
            idle_s.append(_work_s() - warm_s)
            warm_s = _warm_s()
            ours.send_bytes(b"rest")
            ours.recv_bytes()
            busy_s.append(_work_s() - warm_s)
    finally:
        os.sched_setaffinity(0, cores)
        other.kill()
        other.join()
        ours.close()
    after_idle_s, after_busy_s = statistics.median(idle_s), statistics.median(busy_s)
    if after_idle_s <= 0:
        return 1.0  # rests cost nothing
    # A process grows cold by the square root of its rest: see `costs.coldness`.
    return float(min(1.0, max(0.0, after_busy_s / after_idle_s)) ** 2)


def _keep_busy(parent_pid: int, requests: Connection) -> None:
    """Work for `REST_S` at each request, and answer it, until the parent ends this process."""
    die_with(parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        requests.recv_bytes()
        until_s = time.perf_counter() + REST_S
        while time.perf_counter() < until_s:
            _work_s()
        requests.send_bytes(b"over")


def _warm_s() -> float:
    """Return the CPU seconds of `_work_s` when it has just been done."""
    _work_s()
    _work_s()
    return _work_s()


def _work_s() -> float:
    """Do what goes through as much code as a turn of a process; return the CPU seconds."""
    started_s = time.thread_time()
    value = {"a function": lambda: started_s, "names": [str(number) for number in range(100)]}
    cloudpickle.loads(cloudpickle.dumps(value))
    return time.thread_time() - started_s


def _measure_timer() -> float:
    """Return the tick of timers, to 0.1 ms: how much longer a process waits for the shortest timer
    than it takes to be woken up, which is what a longer one takes beyond its time."""
    reactor = Reactor()
    try:
        short_s, long_s = (
            statistics.median(_wait_s(reactor, asked_s) for _ in range(WAITS))
            for asked_s in (SHORT_WAIT_S, LONG_WAIT_S)
        )
    finally:
        reactor.close()
    return max(0.0, round(short_s - (long_s - LONG_WAIT_S), 4))


def _wait_s(reactor: Reactor, asked_s: float) -> float:
    started_s = time.perf_counter()
    reactor.poll(asked_s)
    return time.perf_counter() - started_s


def _measure_commit() -> float:
    """Return how long a durable head takes to write one command to its file, in the mean: now and
    then the database moves its log into the file, and waits for the disk."""
    with tempfile.TemporaryDirectory(prefix="raytwin-") as folder:
        file = SqliteFile(lambda delay_s, callback: None, Path(folder, "gcs"))
        started_s = time.perf_counter()
        for index in range(1, COMMITS + 1):
            command = Command(index, 0.0, "driver:0.0", 0.0, index, 0, bytes(COMMAND_BYTES))
            file.begin()
            file.append([command])
            file.commit()
        return (time.perf_counter() - started_s) / COMMITS


def _measure_disk() -> float:
    """Return the bytes/s with which a node spills and restores an object, one after the other.

    The kernel's page cache is part of that: a node syncs nothing. Where the cache takes memory
    that was never used, as in the first round, writes are slower; the median leaves that out.
    """
    memory = shared(SPILL_BYTES)
    memory[:] = np.ones(SPILL_BYTES, np.uint8).data  # an object in the store has its pages
    descriptor = create_file(tempfile.gettempdir())
    found = []
    try:
        file = SpillFile(descriptor)
        for _ in range(ROUNDS):
            started_s = time.perf_counter()
            place = file.write(memory)
            file.read(place, memory)
            found.append(time.perf_counter() - started_s)
            file.free(place)
    finally:
        os.close(descriptor)
    return 2 * SPILL_BYTES / statistics.median(found)


def _measure_copies(memory: float) -> dict[str, Any]:
    """Return how fast copies are, by size, and what a thread costs that takes a part of one."""
    cores = os.cpu_count() or 1
    long_s = _copies_s(LARGE_COPY_BYTES, (1, cores), places=2)  # no cache holds one of them
    # In so short a copy the threads cost more time to start than they save.
    short_s = _copies_s(SMALL_COPY_BYTES, (1, COPY_THREADS))
    by_thread_s = (short_s[COPY_THREADS] - short_s[1] / cores) / (COPY_THREADS - 1)
    thread_s = max(LEAST_S, by_thread_s)
    started_s = (cores - 1) * thread_s
    cached = {}
    for nbytes in CACHED_COPIES_BYTES:
        took_s = _copies_s(nbytes, (1, cores))
        one = nbytes / took_s[1]
        # No thread is faster than one alone.
        best_s = max(took_s[cores] - started_s, took_s[1] / cores)
        cached[nbytes] = (one, max(one, nbytes / best_s))
    return {
        "memory_bandwidth_all": memory * max(1.0, long_s[1] / long_s[cores]),
        "copy_thread_s": thread_s,
        "cached_copies": cached,
        **_measure_puts(*cached[SMALL_COPY_BYTES]),
    }


def _measure_puts(one: float, best: float) -> dict[str, float]:
    """Return what it costs a put to divide its copy among threads.

    `one` and `best` are the bytes/s of such copies by one thread and by the best number. Copies
    one after another, which these are, find their threads awake.
    """
    took_s = _puts_s(SMALL_COPY_BYTES, (1, 2, COPY_THREADS))
    # A put also asks its node for room, and wakes the threads: this is its time without the copy.
    other_s = {
        threads: each - SMALL_COPY_BYTES / max(one, min(threads * one, best))
        for threads, each in took_s.items()
    }
    thread_s = max(LEAST_S, (other_s[COPY_THREADS] - other_s[2]) / (COPY_THREADS - 2))
    split_s = other_s[2] - other_s[1] - thread_s
    return {"put_split_s": max(0.0, split_s), "put_thread_s": thread_s}


def _puts_s(nbytes: int, threads: Sequence[int]) -> dict[int, float]:
    """Return the seconds of a put whose copy has so many threads each: medians over clusters."""
    value = np.ones(nbytes, np.uint8)
    found: dict[int, list[float]] = {each: [] for each in threads}
    for _ in range(ROUNDS):
        for each, took in found.items():
            ray.init(backend="local", nodes=1, cpus_per_node=1, store_copy_threads=each)
            try:
                for _ in range(2):  # the second time with memory that was used before
                    started_s = time.perf_counter()
                    for _ in range(PUTS):
                        ref = ray.put(value)
                    took_s = (time.perf_counter() - started_s) / PUTS
                    del ref
                took.append(took_s)
            finally:
                ray.shutdown()
    return {each: statistics.median(took) for each, took in found.items()}


def _copies_s(nbytes: int, threads: Sequence[int], places: int = COPY_PLACES) -> dict[int, float]:
    """Return the seconds of a copy by so many threads each: medians, taken in turn.

    The copies go to so many places in turn.
    """
    source, target = np.ones(nbytes, np.uint8), shared(places * nbytes)
    copiers = {each: Copier(each) for each in threads}
    times = max(places, COPIED_BYTES // nbytes)
    took: dict[int, list[float]] = {each: [] for each in copiers}
    for _ in range(COPY_ROUNDS):
        for each, copier in copiers.items():
            started_s = time.perf_counter()
            for number in range(times):
                at = number % places * nbytes
                copier.copy(target[at : at + nbytes], source.data)
            took[each].append((time.perf_counter() - started_s) / times)
    for copier in copiers.values():
        copier.close()
    return {each: statistics.median(found) for each, found in took.items()}
