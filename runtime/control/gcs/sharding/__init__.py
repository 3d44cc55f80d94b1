"""The sharded GCS: tables spread by ID over several components, each with its own chain.

The paper shards the GCS's tables by object and task ID. Here, with ``gcs_shards=n``, the rows of
tasks, objects, lineage, functions and keys are in ``gcs.1`` to ``gcs.n``. The tables of nodes,
jobs, actors and events stay in ``gcs``, in one process with the global scheduler, because some
decisions need all of them.

The other components do not know of shards: a `router` between a component and the network splits
its messages by ID. Shards send one another changes of lineage only: an array in one shard keeps its
inputs' rows in others (`shard_lineage`). Messages from one chain to another go through the `relay`.

Messages on different channels may overtake one another. Where their order matters:

* a change of a node reaches all shards before any node hears of it (`shard`);
* a placed range goes through the shards of its inputs to the shard of its row, which logs and
  assigns it: no message about the range comes before the range;
* when a node dies, ``gcs`` announces the actors being rebuilt to the shards in the same turn.

``router``         which shard has a key; how messages are split
``shard``          the tables of one shard; the GCS and the global scheduler of a sharded cluster
``shard_lineage``  lineage of arrays whose inputs are in other shards
``relay``          carries messages between chains
"""
