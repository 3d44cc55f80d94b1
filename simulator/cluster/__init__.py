"""A simulated cluster: processes at their addresses, on hosts, and the faults of these.

The scheduler, the GCS, lineage, references and failure handling are the control plane's own
code: this package makes its components, runs each in a process of `machine`, and stands in
for the processes' surroundings: the object store, the worker pool, sockets, disks and the
process that starts others.

State: `processes` by address, `incarnations` of nodes, `workers`, `drivers`, and the bytes in
stores and on disks. `working` counts the operations that will end by themselves; when it is 0
and only heartbeats pass, a driver that waits is stuck, and its wait raises RaySystemError.

In and out: all frames between components pass `SimCluster.transmit`. To a store, a worker pool
or a launcher of replicas the control plane sends the messages that it sends to the real ones
(`Fetch`, `Spill`, `StartWorker`, `StartReplica`, ...) and receives the same answers (`Fetched`,
`NoRoom`, `WorkerDied`, `ReplicaLost`, ...), after the time that the profile gives them.

Promises:

- The same seed, program and version give the same event log, byte for byte.
- A killed process neither acts nor receives afterwards; others learn of its death by a
  message, one latency later, as the kernel of a real host would report it.
- A receiver refuses the links of an incarnation that it knows to be dead.
- Nothing runs after `close`: every worker and its program have ended.

Modules, the lower first:

- `cluster_port`: the interface of the cluster for its own parts.
- `simulated_store`: a node's object store, its disk, and its worker pool.
- `simulated_replicas`: the head's launcher of replicas of the GCS, and their storage.
- `simulated_worker`: client and executor in one process, and the program that they serve.
- `simulated_workers`: all workers; one that nobody has used is not made.
- `simulated_drivers`: further drivers, and the component that admits them.
- `simulated_cluster`: makes these parts, runs the clock, and kills, pauses and restarts.
- `sim_backend`: `init(backend="sim")`.
"""

from __future__ import annotations
