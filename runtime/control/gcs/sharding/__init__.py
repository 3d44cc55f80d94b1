"""The sharded GCS: tables spread by ID over several components, each with its own chain.

The paper shards the GCS's tables by object and task ID. Here, with ``gcs_shards=n``, the rows of
tasks, objects, lineage, functions and keys are in ``gcs.1`` to ``gcs.n``; nodes, jobs, actors and
events stay in ``gcs``, beside the global scheduler, because one decision needs all of them.

No component that speaks with the GCS knows of shards: a `router` between it and the network splits
its messages by ID. Shards send one another changes of lineage only: an array in one shard keeps its
inputs' rows in others (`lineage`). Messages from one chain to another go through the `relay`.

Order between parts that share no channel:

* a change of a node reaches all shards before any node hears of it (`shard`);
* a placed range goes by way of the shards of its inputs to the shard of its row, which logs and
  assigns it: no message about the range comes before the range;
* ``gcs`` announces to the shards which actors are being rebuilt, with the death of their node.

``router``   which shard has a key; how messages are split
``shard``    the tables of one shard, and what remains of the GCS and the global scheduler
``lineage``  lineage of arrays whose inputs are in other shards
``relay``    carries messages between chains
"""
