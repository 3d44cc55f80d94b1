"""The node process: the paper's local scheduler and object manager in one event loop.

`node_process` wires the node manager of `runtime.control` to sockets, memory and disk. The node
manager sends to components of the same process: `store:<n>`, `pool:<n>`, `links:<n>`,
`admission:<n>`.

State: the arena's free memory and each object's place in it; objects on disk; the transfers under
way, by source node; the workers that live, by descriptor; drivers that wait for admission.

In, from the node manager: `Allocate`, `Free`, `Fetch`, `Spill`, `DropSpilled` to the store;
`StartWorker`, `StopWorker`, `KillWorker` to the pool; `NodeChanged` to the links; `JobRegistered`
to the admission. Out: `Allocated`, `NoRoom`, `Fetched`, `Spilled`, `WorkerDied`, `RegisterJob`,
`JobEnded`.

Promises:

- Memory is freed only when no transfer and no disk write still reads it.
- Bytes of an object go from one arena into the other without a copy in user space.
- A failed fetch is reported once, after the streams that wrote to its memory have closed.
- A node that the cluster has declared dead exits (it is fenced).

Modules, the lower first:

- `spiller`: one thread that writes evicted objects to disk and reads them back, and reserves room
  there for objects that find none in memory.
- `object_store`: the object store, and its transfers from and to other nodes.
- `worker_processes`: requests workers of the zygote, and reports their deaths.
- `driver_admission`: admits further drivers.
- `node_process`: the process.
"""

from __future__ import annotations
