"""Actors: stateful workers whose methods run in order, and whose state survives failures.

The paper's actor is a chain of *stateful edges* in the lineage: each method call depends on the
state that the call before it left. An actor lives on one node, in a worker of its own. Every node
has both sides: the **callers' side** sends its clients' calls to the actors' nodes, the **actor's
side** queues calls, gives them to the worker, logs them and replies::

    caller's node                                 actor's node
    PendingCalls ───ActorCalls────────────> CallQueue ──RunTasks──> worker
         ↑   ↑                                  ↑  └──cached?──┐       │ TasksDone
         │   └──TaskResults── CallQueue <───────┼──────────────┘       │
         │                       ↑  └───────────┼──────────────────────┘
         │                  CallsLogged      replayed calls
         │                       │              │
        GCS ─ActorChanged        └──LogCalls──> GCS ──ActorLineage──> ActorReconstruction

State: the callers' side has a `CallRoute` for each actor that its clients call: the actor's
location, and the calls that are queued, sent or to be sent again. The actor's side has an
`ActorRecord` for each incarnation of an actor here, with its `ReplyCache`.

An actor that may restart is **logged**: a reply leaves its node only when the GCS has the call
in the actor's lineage. After a failure the GCS places a new *incarnation*, whose node restores
the last checkpoint and replays the calls since. Calls without a reply are sent again if
`max_task_retries` allows it, else their callers get ActorUnavailableError. The GCS decides whether
a failed actor restarts or is dead (`gcs.actor_table`), the callers' nodes whether a call without a
reply is sent again or fails (`pending_calls`).

Promises (G3): the state of an actor is the fold of its logged calls, and each call takes effect
once, however often its caller runs again; the calls of one caller start in the order in which it
made them. A client never sees a reply whose call a reconstructed actor does not replay.

- `node_actors`: the life of a node's actors; the messages of the actor's side
- `actor_record`: one incarnation of an actor, and the calls that it knows (`ReplyCache`)
- `call_queue`: calls from their callers to the worker; replies to the log and the callers
- `actor_reconstruction`: checkpoint and replay
- `pending_calls`: the callers' side: what becomes of calls without a reply
- `node_services`: the node's other parts that actors use
"""

from __future__ import annotations
