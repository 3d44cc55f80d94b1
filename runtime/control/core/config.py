"""The control plane's settings, the same in every world."""

from __future__ import annotations

from msgspec import Struct

HEAD_RETURN_S = 30.0
"""How long nodes wait for the restart of a head with a durable GCS."""


class Config(Struct, frozen=True, array_like=True):
    """The settings of a cluster. Names say the unit: ``_s`` seconds, ``bytes`` bytes."""

    policy: str = "bottom-up"
    """The scheduling policy: a name, or the import path of a class."""
    seed: int = 0
    """The seed of all random choices of the control plane."""
    heartbeat_s: float = 0.1
    """Seconds between heartbeats of a node. Shorter: fresher queue lengths for placement, more
    messages."""
    heartbeat_timeout_s: float = 5.0
    """The GCS declares a node dead after so many seconds without a heartbeat, and takes a process
    for unreachable that acknowledges no frame for so long. Shorter: faster recovery; longer: slow
    nodes and links are not taken for dead ones."""
    inline_bytes_max: int = 100_000
    """The largest value in bytes that is sent inside messages; a larger one goes to the object
    store, which costs a round trip and saves copies."""
    spill_wait_s: float = 0.02
    """Bottom-up: a node keeps a task while its queue is less than so many seconds of work. Longer:
    fewer placements by the global scheduler, worse balance."""
    spill_tasks_per_slot: int = 1
    """The same bound in tasks per slot, for functions not yet timed."""
    scheduling_delay_s: float = 0.0
    """Seconds that a local scheduler takes longer over every task and call, from when its inputs
    are there until it may be dispatched: to study what a slow scheduler costs. Tasks and calls
    wait side by side. With it no call goes past the scheduler."""
    ahead_s: float = 0.005
    """Seconds of work that a worker is assigned in advance. More hides the round trip to the
    node; less leaves more for idle workers."""
    ahead_tasks_max: int = 1024
    """The same bound in tasks."""
    split_s: float = 0.001
    """The node does not split a range of fewer seconds of work than this between workers: a message
    costs more than the parallelism gains."""
    linger_s: float = 0.001
    """Seconds that a client or worker holds tasks or results back to send them in a larger batch:
    throughput against latency."""
    submit_batch_max: int = 128
    """Tasks, or puts, in a batch that leaves at once."""
    direct_after: int = 8
    """After so many calls, each answered before the next, the actor's worker offers the driver of
    its node direct calls, and after so many tasks a worker answers the driver itself; 0: never.
    Saves two hops a call, or one a task, for a connection to the worker."""
    log_linger_s: float = 0.1
    """Seconds that a node holds back writes to the GCS's tables.

    A task that is submitted and released within this time is never written: longer saves writes
    for bursts of short tasks, shorter loses less when the node dies."""
    timeline_ranges_max: int = 100_000
    """Executed ranges, and their inputs, that a node remembers for the timeline: memory."""
    lineage_bytes_max: int = 100_000_000
    """Bytes of lineage that the GCS keeps of released tasks on which others depend. Beyond it
    the GCS forgets the oldest, which cannot be reconstructed any more."""
    actor_log_bytes_max: int = 512 << 20
    """Bytes of calls that the GCS logs, for all actors that may restart, since their last
    checkpoints: some 1 KB each. Beyond it the actor with the longest log is not rebuilt."""
    checkpoint_bytes_max: int = 512 << 20
    """Bytes of an actor's state in a checkpoint; a longer one is not taken."""
    actor_end_s: float = 30.0
    """Seconds that an actor which ends gracefully has before its process is killed."""
    store_wait_s: float = 1.0
    """Seconds that a task's input waits for room while the whole store is pinned, since the last
    unpin; then it is mapped from disk. Longer keeps more in memory, shorter starts sooner."""
    allocate_wait_s: float = 0.2
    """Seconds that a write or a `get` waits for room in the same case."""
    fetch_streams: int = 4
    """TCP connections over which a node fetches one large object: bandwidth against sockets."""
    stripe_bytes_min: int = 8 << 20
    """An object of at least so many bytes is fetched over several of these connections."""
    store_copy_threads: int = 0
    """Threads that copy one large value into the store; 0: chosen by its size and the machine's
    cores."""
    gcs_replicas: int = 1
    """Replicas of each chain of the GCS; 1: the head process has the state alone. Each further
    one survives one more failure and adds a hop to every write."""
    gcs_durable: bool = False
    """Whether the head logs the commands of the GCS to disk, and is started again when it is
    killed: each write waits for the disk. Only for a GCS without replicas and shards."""
    task_history: bool = False
    """Whether the GCS keeps a row for every finished task: memory per task, for lookups later."""
    gcs_memory_max: int = 0
    """Bytes of such rows in memory before the GCS flushes the oldest to disk; 0: no limit."""
    gcs_shards: int = 1
    """Chains over which the tables of tasks, objects, functions and keys are spread: throughput
    against processes."""

    @property
    def stall_s(self) -> float:
        """Seconds without a byte after which a connection is replaced, or a fetch given up."""
        return self.heartbeat_timeout_s / 2

    @property
    def fence_s(self) -> float:
        """Seconds without an answer of the head after which a node leaves the cluster.

        Far more than the failure detector's limit: the cluster gives up one silent node soon, and
        all nodes would give up a head that was only slow. One with a durable GCS may come back.
        """
        own_s = 20 * self.heartbeat_timeout_s
        return max(own_s, HEAD_RETURN_S) if self.gcs_durable else own_s

    @property
    def heartbeat_silence_s(self) -> float:
        """Seconds without an echo after which a node replaces its connection for heartbeats.

        The node does so four times within the failure detector's limit; but a connection needs the
        time to carry a heartbeat and its echo, at whatever moment the node looks.
        """
        return max(self.heartbeat_timeout_s / 4, 2 * self.heartbeat_s)

    @property
    def chains(self) -> int:
        """The number of chains; see `gcs.sharding.router`."""
        return self.gcs_shards + 1 if self.gcs_shards > 1 else 1

    @property
    def chained(self) -> bool:
        """Whether nodes reach the GCS and the global scheduler through a chain."""
        return self.gcs_replicas > 1 or self.gcs_durable or self.gcs_shards > 1


def quiet_s_max(config: Config) -> float:
    """Return for how long a cluster that makes progress may show none: far longer than any of the
    control plane's timers that something waits for."""
    return max(10 * config.heartbeat_timeout_s, 2 * config.actor_end_s)
