"""The control plane: state machines that do no I/O.

Each package is one part of the paper's architecture, or is shared by several parts:

===================== ==================================================================
`node`                the node manager, which joins the parts of a node
`local_scheduler`     keeps a task on its node or spills it; leases workers; runs tasks
`actors`              calls of actors in order, their replies, and how actors are rebuilt
`objects`             the object manager: results, copies, eviction, release
`ownership`           distributed reference counting: owners and borrowers
`gcs`                 the global control store: tables, lineage, pub-sub
`gcs.sharding`        the GCS in several shards
`replication`         the GCS, or each shard, as a chain of replicas
`scheduling`          the global scheduler, its policies, placement groups
`client`              the part of every driver and worker that submits, waits and counts
`worker`              a worker's queue
`observability`       the timeline, and queries of the cluster's state
`messages`            the protocol: every message, with its senders and receivers
`core`                the base of all others: IDs, resources, settings, addresses
===================== ==================================================================

`core.context` is the only interface through which components send, set timers and read the time.
Nothing here opens a socket, reads a clock or starts a thread, so the simulator runs it as it is.

Words that all packages use:

* the **world** runs the components: either real processes or the simulation;
* a **turn** is one call of a component by the world, with all messages that have arrived or with
  one timer that is due. What the component sends leaves at the end of the turn;
* an **array** is the results of one submission or put, numbered from 0. A task that is
  submitted alone has an array of one **element**;
* a **range** is a number of consecutive elements of an array, sent as one message;
* a **client** is a driver or a worker;
* **G1** to **G8** are the promises of docs/promises.md.
"""
