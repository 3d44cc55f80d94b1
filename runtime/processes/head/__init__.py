"""The head process: GCS and global scheduler, alone, durable, or as chains of replicas.

`head_process.main` picks one of three by the configuration:

- `Head`: GCS and global scheduler are components of this process; its death ends the cluster.
- `durable_head`: one replica in this process, whose commands a sqlite3 file holds.
- `replicated_head`: this process has the masters of the chains (van Renesse & Schneider 2004);
  each replica is a process of its own, which the zygote forks on request.

State: connections of nodes and replicas; of a durable GCS, the file: commands, one snapshot,
flushed rows.

In: messages of nodes to the GCS and to the masters, and `StartReplica`, `StopReplica` from a
master. Out: `NodeUnreachable` when a node has ended or is silent, `ReplicaLost` when a replica has
ended, and `Logged` once a turn's commands are in the file.

Promises:

- A write that was acknowledged survives the death of the head process where the GCS is durable:
  the file is written before the answer leaves. In a chain it survives the death of all replicas
  but one.
- When the head of a durable GCS is killed, the zygote forks it again with the same listening
  socket; nodes reconnect within `HEAD_RETURN_S`. Without a file the cluster ends with its head.

Modules, the lower first:

- `gcs_storage`: the file of a durable GCS.
- `process_ends`: the ends of nodes and replicas, as the zygote reports them.
- `head_channels`: channels and the failure detector, which every head has.
- `replicated_head`: the masters, and the launcher of replicas.
- `durable_head`: the replica inside the head.
- `replica_process`: the process of one replica.
- `head_process`: the process.
"""

from __future__ import annotations
