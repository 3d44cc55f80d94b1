"""A node: its node manager joins a local scheduler, an object manager and actors.

In the paper a node runs a local scheduler and an object store, which the object manager serves
(figure 5). Here one state machine, `NodeManager`, is both, and hosts the node's share of
actors and of reference counting. It makes its parts, gives each message to the one part that
takes it, and ends every turn: assign ready tasks, serve requests for room in the store, then
send what must not wait.

The messages of a node, by the part that takes them. Each part declares its own
(`handlers`), and `NodeManager` collects them into one table:

===================== =============================================================
part                  takes
===================== =============================================================
`NodeJobs`            RegisterJob, JobRegistered, DescribeJob, JobEnded
`Submission`          SubmitTasks, TasksClaimed, FindActor
`TaskInputs`          ExportFunction, FunctionBlob
`Assignments`         AssignTasks
`Dispatcher`          WorkerReady, TasksDone, StreamItems, TakenBack, Blocked, Unblocked
`Canceller`           CancelTask
`Bundles`             PrepareBundle, CommitBundle, ReturnBundle
`Starvation`          MoveTasks
`ResultManager`       TaskResults
`ReleaseManager`      Release, FreeObjects
`ObjectManager`       PutObjects, WantObjects, Unpin, RefUpdates, PullObject,
                      ObjectPayload, ObjectLocations, SeekOwners
`UnsealedObjects`     AllocateObject, Allocated, NoRoom, AbandonObject
`PullManager`         Fetched
`Eviction`            Spilled
`CallSubmitter`       ActorChanged, CallsDrained
`ActorManager`        ActorCalls, CancelCall, ActorLineage, CallsLogged, StopActor,
                      DrainCalls, SaveActor, ExitActor
`QueryDesk`           Query, QueryReply
`Heartbeats`          Registered
`MembershipChanges`   NodeChanged
`WorkerFailure`       WorkerDied
`NodeManager` itself  KillActor, ForwardResults, CreateGroup, RemoveGroup, KvPut, KvGet,
                      KvDelete, FindTask, GroupCreated, ActorFound, TaskFound, KvReply
===================== =============================================================

Promises: an unknown message is a programming error and raises; nothing is taken from a worker
that is dead or a driver whose job has ended; a node that the GCS has declared dead acts no
more, and comes back as another incarnation.

| module | what it does |
|---|---|
| `node_manager` | makes the parts, dispatches messages, ends turns |
| `heartbeats` | reports the node's load to the GCS |
| `membership_changes` | tells the parts that another node has come or died |
| `worker_failure` | the end of a worker: frees, cancels, retries what it had |
| `jobs` | the drivers of this node, their jobs, and what a job may not touch |
"""
