"""The session: one driver's or worker's side of the API, in real and in virtual time.

In the paper a driver and a worker link the same library, which submits tasks, keeps the
references and waits for values; Ray calls it the core worker. Here the `Client`, a state machine
of the control plane, makes the decisions; the session is the shell around it. The session
serializes values, makes references, waits and raises. The protocol `World` hides the differences
between real processes and virtual time.

State: the session consists of its parts. Its constructor makes each part from those before it:

    SessionReferences   references dropped and received, and when the client counts them
    Waits               blocks callers; gives the running task's CPU up meanwhile
    TaskContext         the running task or call; the IDs of its children
    Values              put, get; inputs and errors decoded
    StreamItems         the next item of a stream
    TaskSubmitter       functions exported, arguments serialized, tasks submitted
    SessionActors       actors created, looked up, called and ended
    GcsClient           the key-value table, placement groups, queries
    PendingFutures      values as futures

Messages: none of its own. A part calls the client within a turn (``with world:``). The client's
messages leave when the turn ends, and a message that arrives completes a `Waiter`.

Promises:

- Any thread may call. User code (pickling, the condition of a wait) runs outside of turns, so
  that it cannot block other threads.
- The client counts a reference before the program can use it. The next call of the API counts a
  dropped reference, or the world does if the program makes no calls.
- A task that runs again gives its children the same IDs (G1): they follow from its own ID and a
  counter.
- A `get` returns or raises; it raises `RaySystemError` once the cluster is gone.

Modules:

    session             composes the parts; a `Backend`
    world               the protocol of real and virtual time; the task's environment variables
    session_references, values, wait_group, task_context
    task_submitter, session_actors, gcs_client, futures
    job_setup           a joined job's directory and paths, which its functions bring to workers
    cluster_config, node_resources      from the arguments of `init` to a cluster's settings
"""
