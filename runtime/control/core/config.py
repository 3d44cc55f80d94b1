"""The control plane's settings, the same in every world."""

from __future__ import annotations

from msgspec import Struct


class Config(Struct, frozen=True, array_like=True):
    """What a cluster was started with. Times are seconds, sizes bytes."""

    policy: str = "bottom-up"
    seed: int = 0
    heartbeat_s: float = 0.1
    heartbeat_timeout_s: float = 5.0
    """A node that was not heard of for so long is declared dead."""
    inline_bytes_max: int = 100_000
    """Larger values go to the object store, smaller ones ride in messages."""
    spill_wait_s: float = 0.1
    """Bottom-up: a node keeps a task while its queue is worth less than this."""
    spill_tasks_per_slot: int = 1
    """The same bound in tasks per slot, for functions not yet timed."""
    ahead_s: float = 0.005
    """How much work a worker is given ahead of need."""
    ahead_tasks_max: int = 1024
    split_s: float = 0.001
    """A range worth less than this is not split for the sake of parallelism."""
    linger_s: float = 0.001
    """How long a client or worker holds back what could go in a larger batch."""
    submit_batch_max: int = 128
    direct_after: int = 8
    """After so many results that went to a driver one at a time, straight from an actor's
    worker, that takes its calls directly as well; 0: never."""
    log_linger_s: float = 0.1
    """How long a node holds back what only the GCS's tables need to know.

    What has come and gone meanwhile is never told: a burst of short tasks, and the
    time until its results are dropped, should fit into it."""
    timeline_ranges_max: int = 100_000
    """How many executed ranges a node remembers for the timeline."""
    lineage_bytes_max: int = 100_000_000
    """How much the GCS keeps of tasks whose results were released, for those that
    depend on them; beyond it the oldest cannot be made again."""
    actor_log_bytes_max: int = 512 << 20
    """How much the GCS keeps of calls of actors that may restart since their last
    checkpoints, some 1 KB each; beyond it the actor with the longest log is not rebuilt."""
    checkpoint_bytes_max: int = 512 << 20
    """The longest state of an actor that is kept; a longer checkpoint is not taken."""
    actor_end_s: float = 30.0
    """How long the process of an actor that leaves in good order may take to end."""
    store_wait_s: float = 10.0
    """How long a `get` waits for room while all of the store is pinned; a task's input
    waits so long after the last that was unpinned."""
    allocate_wait_s: float = 2.0
    """How long somebody who wants to write waits for room in the same case."""
    fetch_streams: int = 4
    """TCP connections over which one large object is fetched from another node."""
    stripe_bytes_min: int = 8 << 20
    """Smaller objects are fetched over one of them."""
    store_copy_threads: int = 0
    """Threads that copy one large value into the store; 0: as many as pay."""
    gcs_replicas: int = 1
    """Processes that hold the GCS's state, as a chain; 1: the head process does."""
    gcs_durable: bool = False
    """Whether every replica logs what it does and can go on where it was."""
    task_history: bool = False
    """Whether the GCS keeps a row for every task that has finished."""
    gcs_memory_max: int = 0
    """Bytes of such rows in memory before the oldest are written to disk; 0: no limit."""
    gcs_shards: int = 1
    """Chains that the tables of tasks, objects, functions and keys are spread over."""

    @property
    def chains(self) -> int:
        """How many chains there are; see `shards`."""
        return self.gcs_shards + 1 if self.gcs_shards > 1 else 1

    @property
    def head_has_gcs(self) -> bool:
        """Whether the only replica of the only chain lives in the head's process."""
        return self.gcs_durable and self.gcs_replicas == 1 and self.gcs_shards == 1

    @property
    def last_returns(self) -> bool:
        """Whether the last replica of a chain is started again, from what it has on disk."""
        return self.gcs_durable and not self.head_has_gcs

    @property
    def chained(self) -> bool:
        """Whether nodes reach the GCS and the global scheduler through a chain."""
        return self.gcs_replicas > 1 or self.gcs_durable or self.gcs_shards > 1
