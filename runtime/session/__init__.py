"""The session: one driver's or worker's side of the API, in real and in virtual time.

In the paper a driver and a worker link the same library, which submits tasks, keeps the
references and waits for values; Ray calls it the core worker. Here its decisions are the
`Client`'s, a state machine of the control plane; the session is the shell around it. It
serializes values, makes references, waits and raises. What differs between real processes and
virtual time is behind the protocol `World`.

State: the session itself has none but its parts, each of which its constructor makes from
those before it:

    SessionReferences   references dropped and received, and when the client counts them
    Waits               whether the running task gives up its CPU; the list of the last `wait`
    TaskContext         the running task or call; the IDs of its children
    Values              put, get; inputs and errors decoded
    StreamItems         the next item of a stream
    TaskSubmitter       functions exported, arguments serialized, tasks submitted
    SessionActors       actors created, looked up, called and ended
    GcsClient           the key-value table, placement groups, queries
    FutureDesk          values as futures

Messages: none of its own. A part calls the client within a turn (``with world:``); what the
client sends goes out when the turn ends, and what arrives completes a `Waiter`.

Promises:

- Any thread may call. User code (pickling, a condition that is waited for) runs outside of
  turns, so that it cannot hold up other threads.
- A reference is counted before a program can use it, and its drop is counted by the next call,
  or by the world if the program makes none.
- A task that runs again names the same children (G1), as IDs come from its own ID and a counter.
- A `get` returns or raises; it raises `RaySystemError` once the cluster is gone.

Modules:

    session             composes the parts; a `Backend`
    world               the protocol of real and virtual time; the running task's environment
    session_references, values, wait_group, task_context
    task_submitter, session_actors, gcs_client, futures
    job_setup           what functions carry for workers of a job that joined
    cluster_config, node_resources      from the arguments of `init` to a cluster's settings
"""
