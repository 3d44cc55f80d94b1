"""A simulated cluster: processes at their addresses, on hosts, and the faults of these.

The scheduler, the GCS, lineage, references and failure handling are the control plane's own
code: this package makes its components, runs each in a process of `machine`, and stands in
for the processes' surroundings: the object store, the worker pool, sockets, disks and the
process that starts others.

State: `processes` by address, `incarnations` of nodes, `workers`, `drivers`, and the bytes in
stores and on disks. `working` counts what is under way and will end by itself; when it is 0
and only heartbeats pass, a driver that waits is stuck, and its wait raises RaySystemError.

In and out: all frames between components pass `SimCluster.transmit`. To a store, a worker pool
or a launcher of replicas the control plane sends the messages that it sends to the real ones
(`Fetch`, `Spill`, `StartWorker`, `StartReplica`, ...) and receives the same answers (`Fetched`,
`NoRoom`, `WorkerDied`, `ReplicaLost`, ...), after the time that the profile gives them.

Promises:

- The same seed, program and version give the same event log, byte for byte.
- A process that is killed neither acts nor receives afterwards; others learn of it by a
  message, one latency later, as the kernel of a real host would let them.
- Frames of an incarnation that a receiver knows to be over are refused.
- Nothing runs on after `close`: every worker and its program have ended.

Modules, the lower first:

- `cluster_port`: the cluster as its own parts see it.
- `simulated_links`: connections between nodes: refuses frames of the dead.
- `simulated_store`: a node's object store, its disk, and its worker pool.
- `simulated_replicas`: the head's launcher of replicas of the GCS, and their storage.
- `simulated_worker`: client and executor in one process, and the program that they serve.
- `simulated_drivers`: further drivers, and the component by which they join.
- `simulated_cluster`: makes all of it, runs the clock, and kills, pauses and restarts.
- `sim_backend`: `init(backend="sim")`.
"""

from __future__ import annotations
