"""The local scheduler of a node: from a submitted task to a worker that runs it.

This is the bottom half of the paper's bottom-up scheduler (section 4.2.2): a driver or worker
submits to its node, which keeps the task unless its queue is over a threshold or it lacks the
resources; then the global scheduler (`scheduling`) places it. Ranges of a task array are one
`TaskSpec` throughout and split only where they must.

The way of a range::

    SubmitTasks ──> `Submission` ──the policy spills it──> PlaceTasks to the global scheduler
                        │ the policy keeps it
    AssignTasks ────────┤
                        ↓
                    `TaskInputs`     waits for its function and its inputs
                        ↓
                    `ReadyQueue`     a queue per job and resource demand, oldest first;
                        ↓            `BlockedTasks` holds back tasks like those that are blocked
                        ↓
                    `WorkerLeases`   RunTasks: a leased worker gets work for ``ahead_s`` seconds
                        ↓            in advance
                    `Dispatcher`     TasksDone, TakenBack, Blocked: done, or queued again

State: waiting and ready ranges, the workers with their leases and assigned ranges, the mean
time of each function, the bundles of placement groups. All of it is lost with the node; the
GCS then has the ranges that the node had accepted placed again.

Messages in: SubmitTasks, AssignTasks, TasksClaimed, FindActor, WorkerReady, TasksDone,
StreamItems, TakenBack, Blocked, Unblocked, CancelTask, MoveTasks, StealTasks, StealAnswer,
PrepareBundle, CommitBundle, ReturnBundle, ExportFunction, FunctionBlob. Out: PlaceTasks,
ClaimTasks, CreateActors, TasksMoved, StealTasks, StealAnswer,
BundlePrepared, RunTasks, GrantGpus, TakeBack, CancelTask, Resume, StartWorker, StopWorker,
KillWorker, FetchFunction, ExportFunction, FunctionBlob, TaskResults, Event.

Promises: resources are never oversubscribed, and free again when nothing runs (G5); an accepted
range ends with a result or an error, or another node takes it over; only failures of the system
are retried (G4).

| module | its task |
|---|---|
| `submission` | accepts tasks that clients submit or spills them; accepts assigned tasks |
| `spillback` | decides how much of a range stays here (the threshold: `policies.Policy.keep`) |
| `dependencies` | keeps a range until its function and its inputs are here |
| `blocked_tasks` | limits how many tasks of one kind are blocked at the same time |
| `ready_queue` | ranges whose inputs are here, until a worker is free |
| `worker_pool` | starts and stops workers |
| `worker_leases` | leases workers to ready ranges, by mean times of tasks; asks for more workers |
| `dispatcher` | handles reports of workers: done, taken back, blocked, died |
| `cancellation` | cancels tasks, with their children |
| `starvation` | reports ranges that another node could run sooner |
| `stealing` | takes ranges from another node while this one is idle, if the policy says so |
| `bundles` | reserves resources for placement groups |
"""
