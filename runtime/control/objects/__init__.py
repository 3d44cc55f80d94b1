"""The objects of a node: the object manager of the paper.

A task, a call or a put makes the objects of an array; the array's **owner** is the client that
submitted or put it. A small value is part of the result message, and goes with it to the owner and
to nodes that pull it. A large value is written to the arena, the shared memory of its node, and
*sealed*: from then on it never changes, and may be read and copied. A node evicts the objects that
it has made and those that it has fetched by the same rule: the least recently used go to disk, and
return when a task or client needs them. While all memory is in use, clients map them from disk. The
store itself (`store:<node>`) belongs to the world: the control plane decides, and the store
allocates, copies and writes to disk.

State, in one node::

    NodeObjects ──┬─ owners     OwnerTable     the client that owns each array
                  ├─ results    ResultTable    results by array and element
                  ├─ memory     ObjectMemory   large objects in the arena and on disk, and pins
                  └─ pulls      PullManager    objects that are wanted, and their sources

Messages::

    worker ──TasksDone──────────> results ──TaskResults──> owner, or the owner's node
    client ──WantObjects────────> pulls ───ObjectsReady──> client
                                    ├──────LocateObjects─> GCS ──ObjectLocations──> pulls
                                    ├──────PullObject────> node ──ObjectPayload───> pulls
                                    └──────Fetch─────────> store ──Fetched────────> pulls
    client ──AllocateObject─────> memory ────Allocate────> store ──Allocated──> client
    client ──Release────────────> release ───TaskUpdates─> GCS ──FreeObjects──> other nodes

Promises: an object is freed once its owner has released it and no client pins it (G8); an
object that a task or client pins is never evicted; an object whose node dies is fetched from
a copy or reconstructed, and every client that wants it gets the value or the reason of its loss
(G1, G2); an object is lost with its owner.

- `node_objects`: joins the four parts: owners, results, memory and pulls
- `result_table`: results by array and element
- `object_memory`: decides when an object is sealed, evicted and freed
- `pull_manager`: fetches the objects that are wanted here
- `object_manager`: messages of clients, other nodes and the GCS about objects
- `result_manager`: keeps, logs and delivers results of tasks and calls, also of repeated ones
- `release_manager`: releases arrays when their owners release them or die
- `fetch_queue`: the order of a store's fetches from one node, and when one is given up
- `copy_threads`: how many threads copy a large value into the store
- `gcs_write_log`: rows for the GCS, sent later, in batches
"""

from __future__ import annotations
