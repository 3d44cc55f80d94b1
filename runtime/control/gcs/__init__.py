"""The global control store (GCS): the cluster's tables, lineage and pub-sub.

As in the paper, the GCS has all control state of the cluster. Every other component may fail: its
state is in the GCS, or can be made again from it. `gcs.Gcs` is one component that has all tables.
With shards, the tables of tasks, objects, functions and keys are spread over several components
(`sharding`). With replicas, each component is a chain (`replication`). The tables are the same code
in all cases.

Tables: nodes, jobs, functions, actors, tasks and objects, users' key-value pairs, the history of
finished tasks, and the event log. `gcs.Gcs` says which message goes to which table.

In: a node registers, sends heartbeats and reports changes of its tasks and objects
(`TaskUpdates`); nodes ask where objects are (`LocateObjects`), whether children of a task that runs
again exist (`ClaimTasks`), and for the rows of a table (`Query`); the actors' nodes log calls
(`LogCalls`). Out: changes to subscribers (`NodesJoined`, `NodeChanged`, `ActorChanged`, `JobEnded`,
`ObjectLocations`), tasks to place again (`PlaceTasks`, to the global scheduler or their owner's
node), values to free (`FreeObjects`).

Pub-sub: a subscriber of a channel (a table, an actor, an object, a function) gets its messages
in the order of the changes. A location or a function is published once and its channel closed.

Lineage rules
-------------
* A lost value is reconstructed only if a node waits for it: its task runs again, with one retry
  less, and its lost inputs follow in the same way when the run asks for them.
* A row whose owner has released it stays, without values, as long as another row has it as an
  input; `lineage_bytes_max` bounds these rows, and the oldest go first.
* Some values are unreconstructable: a value that was put, an actor's result, the result of a task
  without retries or whose record is gone, and every value with such an input. If one is lost,
  `get` raises `ObjectLostError`, which names the cause.
* An actor is rebuilt from its checkpoint and the logged calls since; each takes effect once. This
  replay makes the large results again, also released ones, for lost values that descend from them:
  their tasks run again at once, without a `get`.
* An object is lost with its owner, and the task that makes it ends, unless the owner's task runs
  again and takes it over.

Promises: G2 (a lost object comes back, or `get` says why not), G3 (an actor is the fold of its
logged calls), G8 (memory is bounded: all that the GCS remembers for late messages has a limit).

``gcs``                  dispatches messages; operations on several tables
``node_table``           membership; which of two nodes leaves that cannot reach one another
``failure_detector``     heartbeats: in the head, no part of the GCS
``job_table``            jobs and their namespaces; detached actors of a job, which outlive it
``function_table``       serialized functions
``actor_table``          actors: states, names, restarts and lineage
``task_object_table``    the task and object tables: updates, questions, owners of rows
``array_row``            one row: an array's accepted, finished and lost ranges
``array_store``          all rows; which owners live; nodes that wait for a row; tombstones: the
                         IDs of removed rows, so that a late message does not add them again
``owner_lookup``         asks all nodes for the owner of an array without a row
``object_reconstruction``  places lost elements again
``lineage``              which specs and values other rows need; which spec makes a value again
``task_history``         finished tasks; cold ones are flushed to disk
``kv_table``             users' key-value pairs
``event_log``            events of the cluster: nodes and workers that joined or died
``pubsub``               channels of subscribers
"""
