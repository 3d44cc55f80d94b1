"""The control plane on real processes: the only package that knows a socket.

    driver ──forks through──> zygote ──> head, nodes, replicas of the GCS, workers
    driver and workers <──Unix sockets, shared memory──> node <──TCP──> nodes, head, replicas

Every process is single-threaded around one event loop and holds components of
`runtime.control`, addressed as in the simulator. Packages, the lower first; `node`, `head` and
`client` do not know one another:

- `net`: the event loop, frames and their checks, connections and their handshake.
- `node`: the node process: local scheduler, object store, transfers, worker pool.
- `head`: the head process: GCS and global scheduler, alone, durable, or as chains of replicas.
- `client`: drivers and workers: the world under a session.
- `spawn`: the zygote and the cluster that a driver starts.

Promises: nothing outlives the driver that started the cluster; a malformed or forged frame closes
the connection it came on and touches nothing else; no process of the control plane unpickles.
"""

from __future__ import annotations
