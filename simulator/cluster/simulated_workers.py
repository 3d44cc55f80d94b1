"""The workers of a simulated cluster, by address.

A node starts a worker for each of its CPUs, and most workers of a large cluster never run a task.
So a worker is only its address, from its report that it is ready until somebody uses it: a frame
arrives for it, or a fault, or a check looks at it. Then its process, client and executor are made,
in the state in which they would be if they had been there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from raytwin.runtime.control.core.addresses import node_of
from raytwin.runtime.control.worker.executor import report_ready
from raytwin.simulator.cluster.cluster_port import ClusterPort
from raytwin.simulator.cluster.simulated_worker import SimWorker
from raytwin.simulator.machine.interpreter import Interpreter
from raytwin.simulator.machine.simulated_process import SimProcess


class SimZygotes:
    """The zygotes, one for each host: each forks workers, once it has loaded their modules.

    It loads them when the first worker is requested, after nodes and head, and numpy as well if the
    driver had it when it started the cluster.
    """

    def __init__(self, cluster: ClusterPort) -> None:
        profile = cluster.profile
        self._cluster = cluster
        self._warm_up_s = profile.warm_up_s
        if "numpy" in sys.modules:
            self._warm_up_s += profile.warm_up_numpy_s
        self._warm: set[int] = set()
        """Hosts whose zygote has loaded the modules."""
        self._waiting: dict[int, list[Callable[[], None]]] = {}
        """By host whose zygote loads them: the starts that it begins afterwards."""
        self._starting: dict[int, set[str]] = {}
        """By node: the workers whose processes prepare themselves."""

    def fork(self, node: int, worker: str, begin: Callable[[], None]) -> None:
        """Call `begin` when a node's new process for a worker runs."""
        host = self._cluster.network.host_of(node)
        start = partial(self._start, node, host, worker, begin)
        if host in self._warm or not self._warm_up_s:
            start()
        elif host in self._waiting:
            self._waiting[host].append(start)
        else:
            self._waiting[host] = [start]
            done = partial(self._warmed_up, host)
            self._cluster.hosts[host].run(self._warm_up_s, done, f"zygote:{host}")

    def end_node(self, node: int) -> None:
        """End the processes of a node that prepare themselves."""
        for worker in sorted(self._starting.pop(node, ())):
            self._cluster.hosts[self._cluster.network.host_of(node)].cancel(worker)

    def _warmed_up(self, host: int) -> None:
        self._warm.add(host)
        for start in self._waiting.pop(host):
            start()

    def _start(self, node: int, host: int, worker: str, begin: Callable[[], None]) -> None:
        """Have a new process prepare itself, on a core: many at once wait for one another."""
        cores, starting = self._cluster.hosts[host], self._starting.setdefault(node, set())

        def started() -> None:
            starting.discard(worker)
            cores.cancel(worker)  # it runs under another name from now on
            begin()

        starting.add(worker)
        cores.run(self._cluster.profile.start_worker_s, started, worker)


class SimWorkers(Mapping[str, SimWorker]):
    """All workers that live, oldest first; to get one makes it."""

    def __init__(self, cluster: ClusterPort) -> None:
        self._cluster = cluster
        self._rows: dict[str, SimWorker | SimProcess | None] = {}
        """The process of one that nobody has used, while it reports; then None."""

    def start(self, address: str, node: int) -> None:
        """Have a worker's process, which has started, report that it is ready."""
        process = self._process(address)
        report_ready(process.context(address), f"node:{node}", len(self._rows) + 1)
        self._rows[address] = process
        process.on_idle = partial(self._reported, address)
        process.begin()

    def _reported(self, address: str) -> None:
        """Forget the process, unless it is a made worker's by now."""
        row = self._rows.get(address)
        if isinstance(row, SimProcess):
            row.unlink()
            self._rows[address] = None

    def _process(self, address: str) -> SimProcess:
        cluster, node = self._cluster, node_of(address)
        host = cluster.hosts[cluster.network.host_of(node)]
        interpreter = Interpreter(cluster.env, host)
        return SimProcess(cluster, address, node, interpreter, cluster.costs["worker"])

    def __getitem__(self, address: str) -> SimWorker:
        row = self._rows[address]
        if isinstance(row, SimWorker):
            return row
        store = self._cluster.stores[node_of(address)]
        process = row or self._process(address)
        made = self._rows[address] = SimWorker(self._cluster, address, process, store)
        return made

    def __contains__(self, address: object) -> bool:
        return address in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def used(self) -> list[SimWorker]:
        """Return the workers that were made."""
        return [row for row in self._rows.values() if isinstance(row, SimWorker)]

    def of_node(self, node: int) -> list[SimWorker]:
        """Return the workers of a node, and make them."""
        return [self[address] for address in self._rows if node_of(address) == node]

    def end(self, address: str) -> SimWorker | None:
        """End a worker's process, if it lives; return the worker, if it was made."""
        row = self._rows.pop(address, None)
        if isinstance(row, SimWorker):
            row.end()
            return row
        if row is not None:
            row.kill()
        return None
