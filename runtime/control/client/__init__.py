"""The client: the part of every driver and worker that submits, waits and counts references.

In the paper this is the driver's and the worker's half of Ray's API. The world (real processes
or the simulation) runs user code, makes `ObjectRef`s and sleeps; the client decides everything
else, so both worlds share it.

State
-----
`Client.entries` has an `Entry` for each array that this process owns: its result, its
references, the unfinished tasks that use it, its waiters. All parts share this table. Objects of
other owners are *borrowed*: counted in `References.borrowed` and `ReferenceCounter.loans`.

Messages
--------
======================= ==================================================================
out, to its node        SubmitTasks, PutObjects, Release, Unpin (it no longer reads the object),
                        all batched by `SendBuffer`; ExportFunction, WantObjects,
                        AllocateObject, AbandonObject, Query, CancelTask, FindActor, KillActor,
                        DescribeJob, RefUpdates; KvPut, KvGet, FindTask, CreateGroup and
                        RemoveGroup, which the session makes
in                      TaskResults, ObjectsReady, ObjectAllocated, QueryReply, KvReply,
                        TaskFound, ActorFound, GroupCreated, RefUpdates, BorrowersGone,
                        ActorEnded, GiveBack, TasksUnsent
out, to a worker        DirectCall
in, from a worker       DirectOpen, TaskResults (of direct calls), DirectClosed
======================= ==================================================================

Promises
--------
* G1: a waiter is done when its value, or an error in place of the value, is here.
* G8: an array is released once nothing keeps it: no reference, no unfinished task, no value
  that contains it, no borrower.
* IDs are deterministic: a task that runs again submits the same children.

Modules
-------
client          `Client`: the parts, and the messages that reach them; `WorkerComponent`: a
                client, and the executor of a worker's tasks
submitter       the IDs and submission of tasks, calls and puts; cancellation
direct_calls    calls of actors that the driver sends to their workers itself
send_buffer     batches of messages to the node
references      the reasons to keep an array, and its release; pinned objects and views of them
waits           results and objects that arrive, waiters, and the lookup of values
requests        requests to the node and the GCS
owned_arrays    `Entry` and `Waiter`
"""
