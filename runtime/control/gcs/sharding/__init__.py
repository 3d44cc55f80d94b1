"""The sharded GCS: tables spread by ID over several components, each with its own chain.

The paper shards the GCS's tables by object and task ID. Here, with ``gcs_shards=n``, the rows of
tasks, objects, lineage, functions and keys are in ``gcs.1`` to ``gcs.n``; nodes, jobs, actors and
events stay in ``gcs``, beside the global scheduler, because one decision needs all of them.

No component that speaks with the GCS knows of shards: a `router` between it and the network splits
its messages by ID. Shards tell each other about lineage only: an array in one shard keeps its
inputs' rows in others (`lineage`). What one chain has to say to another goes through relays
(`relay`), which lose nothing if they fail: both chains keep what is not confirmed.

Order between parts that share no channel:

* a change of a node reaches all shards before any node hears of it (`shard`);
* a placed range goes by way of the shards of its inputs to the shard of its row, which logs and
  assigns it: no message about the range comes before the range;
* a shard asks ``gcs`` whether an actor is being rebuilt before it gives up the actor's results.

``router``   which shard has a key; how messages are split
``shard``    the tables of one shard, and what remains of the GCS and the global scheduler
``lineage``  lineage of arrays whose inputs are in other shards
``relay``    carries messages between chains
"""
