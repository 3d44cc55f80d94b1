"""The worker's queue: which of its tasks or calls runs next, and when their results are sent.

In the paper a worker executes the tasks that its local scheduler assigns, one at a time. Here
the node assigns tasks in advance, so that a worker never waits for the next one, and takes back
those that have not started when the worker blocks in `get` or another worker is idle. The world
runs user code; the executor decides which task or call runs next.

State
-----
The queue of assignments, the running range and its next element, results that are not sent yet,
running calls that were cancelled.

Messages
--------
======================= ==================================================================
in, from the node       RunTasks, GrantGpus, FunctionBlob, TakeBack, Resume, CancelTask,
                        RestoreActor, Exit
out, to the node        WorkerReady, TasksDone, StreamItems, TakenBack, Blocked, Unblocked,
                        SaveActor, ExitActor, CallsRan
in, from a driver       DirectCall
out, to a driver        DirectOpen, TaskResults (of direct calls), DirectClosed
======================= ==================================================================

Promises
--------
* An element is either reported or given back, never both, and runs at most once per assignment.
* A plain actor runs its calls one at a time, in the order in which its node sent them.
* The worker buffers results for some ``linger_s`` (`core.config`) at most, so that several leave
  in one message; when its queue is empty it sends them at once.

Modules
-------
direct_answers     the worker's side of direct calls
executor           the queue, reports, giving back, cancellation
"""
