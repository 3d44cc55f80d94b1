"""The worker's queue: which of its tasks or calls runs next, and when their results are sent.

In the paper a worker executes the tasks that its local scheduler assigns, one at a time. Here
the node assigns ahead of need, so that a worker never waits for the next task, and takes back
what has not started when the worker blocks in `get` or another worker is idle. The world runs
user code; the executor decides what.

State
-----
The queue of assignments, the running range and its next element, results that wait for more
to travel with, calls that were cancelled while they ran.

Messages
--------
======================= ==================================================================
in, from the node       RunTasks, FunctionBlob, TakeBack, Resume, CancelTask, RestoreActor, Exit
out, to the node        WorkerReady, TasksDone, StreamItems, TakenBack, Blocked, Unblocked,
                        SaveActor, ExitActor
======================= ==================================================================

Promises
--------
* An element is either reported or given back, never both, and runs at most once per assignment.
* A plain actor runs its calls one at a time, in the order in which its node sent them.
* Results leave after at most a few ``linger_s``, or at once if the queue is empty.

Modules
-------
executor           the queue, reports, giving back, cancellation
"""
