"""The objects of a node: the object manager and the object directory of the paper.

A task, a call or a put makes the objects of an array; the array's **owner** is the client that
submitted or put it. Small values ride in the result, and go with it to the owner and to nodes
that pull them. A large value is sealed in the arena of the node that made it (the *primary*);
other nodes fetch copies. The store itself (`store:<node>`) is a process's part, behind messages:
the control plane decides, the store allocates, copies and writes to disk.

State, in one node::

    ObjectDirectory ── owners     OwnerTable     the client that owns each array
                    ├─ results    ResultTable    results by array and element
                    ├─ local      LocalObjects   large objects in the arena and on disk, and pins
                    └─ pulls      PullManager    objects that are wanted, and their sources

Messages::

    worker ──TasksDone──────────> results ──TaskResults──> owner, or the owner's node
    client ──WantObjects────────> pulls ───ObjectsReady──> client
                                    ├──────LocateObjects─> GCS ──ObjectLocations──> pulls
                                    ├──────PullObject────> node ──ObjectPayload───> pulls
                                    └──────Fetch─────────> store ──Fetched────────> pulls
    client ──AllocateObject─────> local ─────Allocate────> store ──Allocated──> client
    client ──Release────────────> release ───TaskUpdates─> GCS ──FreeObjects──> other nodes

Promises: an object is freed once its owner has released it and no client pins it (G8); an
object that a task or client pins is never evicted; an object whose node dies is fetched from
a copy or reconstructed, and every client that wants it gets the value or the reason of its loss
(G1, G2); objects share the fate of their owner.

- `object_directory`: the parts above as one object
- `result_table`, `local_objects`, `pull_manager`: these parts
- `object_manager`: messages of clients, other nodes and the GCS about objects
- `result_manager`: keeps, logs and delivers results of tasks and calls, also of repeated ones
- `release_manager`: the release of arrays, by their owners or with them
- `gcs_write_log`: rows for the GCS, written behind
"""

from __future__ import annotations
