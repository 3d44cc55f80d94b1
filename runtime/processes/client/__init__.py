"""Drivers and workers: the real world under a session, its threads and its interrupts.

A driver or worker runs the user's code and a `Client` of `runtime.control` (a worker also an
`Executor`) in one process. `local_world` lets both share the process: one lock serializes the
turns of the client, and the thread that waits polls the socket itself, so a round trip costs no
thread switch.

State: the polling thread and the waiting ones; dropped references that the client has not counted
yet; the connection with the node.

In and out: the frames between this process and its node, of which `Client` and `Executor` are the
two ends.

Promises:

- While a thread waits, some thread polls: no answer that has arrived stays unread.
- An interrupt reaches a task only in user code, never within the runtime's own.
- A forked child of a driver abandons the session, which stays its parent's.

Modules, the lower first:

- `preload`: modules that the zygote loads for all workers.
- `running_clusters`: files by which a driver finds a cluster to join.
- `lease_environment`: environment variables with the resources of a worker's tasks;
  `blas_threads`: the same for a library that was loaded before it could read them.
- `local_world`: the backend's `World`: waiting, time, values in shared memory.
- `interrupts`: KeyboardInterrupt in the running task, by SIGINT.
- `worker_process`: the worker's process.
- `driver_sessions`: a driver's session.
- `joining`: becoming a further driver of a running cluster.
"""

from __future__ import annotations
