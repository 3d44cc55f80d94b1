"""The global control store (GCS): the cluster's tables, lineage and pub-sub.

As in the paper, all control state of the cluster is in the GCS, so that every other component is
stateless in what matters and may fail. `gcs.Gcs` is one component that has all tables; with shards
the tables whose rows have an ID of their own are spread (`sharding`), and with replicas each is a
chain (`replication`), of which the tables know nothing: they run the same in either.

Tables: nodes, jobs, functions, actors, tasks and objects, users' key-value pairs, the history of
finished tasks, and the event log. `gcs.Gcs` says which message goes to which table.

In: a node registers, sends heartbeats and reports what its tasks and objects did
(`TaskUpdates`); nodes ask where objects are (`LocateObjects`), whether children of a task that runs
again exist (`ClaimTasks`), and what is in a table (`Query`); the actors' nodes log calls
(`LogCalls`). Out: changes to subscribers (`NodeChanged`, `ActorChanged`, `JobEnded`,
`ObjectLocations`), tasks to place again (`PlaceTasks`, to the global scheduler), values to free
(`FreeObjects`).

Pub-sub: a subscriber of a channel (a table, an actor, an object, a function) gets its messages
in the order of the changes. A location or a function is published once and its channel closed.

Lineage rules
-------------
* A lost value is made again only if a node waits for it: its task runs again, with one retry less,
  and its lost inputs follow in the same way when the run asks for them.
* A row whose owner has released it stays, without values, as long as another row has it as an
  input; `lineage_bytes_max` bounds these rows, and the oldest go first.
* A value that was put, an actor's result, a task without retries or record, and what needs such an
  input are unreconstructable: `get` raises `ObjectLostError`, which names the cause.
* An actor is rebuilt from its checkpoint and the logged calls since; each takes effect once.
* An object shares the fate of its owner, unless the owner's task runs again and claims it.

Promises: G2 (a lost object comes back, or `get` says why not), G3 (an actor is the fold of its
logged calls), G8 (memory is bounded: whatever is kept for late messages has a limit).

``gcs``                  dispatch, and what concerns several tables
``node_table``           membership and failure detection
``job_table``            jobs, their namespaces and detached branches
``function_table``       serialized functions
``actor_table``          actors: states, names, restarts and lineage
``task_object_table``    the task and object tables: updates, questions, owners of rows
``array_row``            one row: an array's accepted, finished and lost ranges
``array_store``          all rows, tombstones, owners' liveness, waiting nodes, released rows
``owner_lookup``         asks all nodes for the owner of an array without a row
``object_reconstruction``  places lost elements again
``lineage``              which specs and values other rows need
``task_history``         finished tasks; cold ones are flushed to disk
``kv_table``             users' key-value pairs
``event_log``            what happened to the cluster
``pubsub``               channels of subscribers
"""
