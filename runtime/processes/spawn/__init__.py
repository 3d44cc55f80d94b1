"""Starting processes: the zygote, and the cluster that a driver starts.

The driver starts one process, the zygote; that forks the head, nodes, replicas and workers from
memory that has the modules already, so that a worker costs milliseconds and a few MB. The zygote
is the supervisor too: all processes that it has forked die with it, and it dies with the driver.

State: the zygote's children, by pidfd, and the owner of each; in the driver, PIDs and ends of
processes by key (`head`, `node:<n>`, `replica:0.<n>`).

In, as packets with descriptors: `start`, `spawn`, `kill`.
Out: `spawned`, `exited`.

Promises:

- Killing the driver with SIGKILL leaves no process, socket or shared-memory segment behind.
- A process is forked once per request; one that was requested with `restart` is restarted when it
  fails, fewer than `RESTARTS_MAX` times in quick succession.
- Processes that user code has started die with their worker.

Modules, the lower first:

- `rehearsal`: a worker's first steps, taken once in the zygote.
- `zygote`: the process.
- `driver_watcher`: cleans up after a driver what the zygote does not: containers, and Ray.
- `worker_pids`: finds the workers that faults hit.
- `local_cluster`: the driver's side: starts, kills, pauses and queries processes.
- `local_backend`: `init(backend="local")`.
- `pool`: processes beside a cluster, for simulations.
"""

from __future__ import annotations
