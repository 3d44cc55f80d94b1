"""A node: its node manager joins a local scheduler, an object manager and actors.

In the paper a node runs a local scheduler and an object store, which the object manager serves
(figure 5). Here one state machine, `NodeManager`, is both, and hosts the node's share of
actors and of reference counting. It makes its parts and gives each message to the one part that
handles it. At the end of every turn it assigns ready tasks, serves requests for room in the store,
and sends the messages that must not wait.

The messages of a node, by the part that handles them. Each part declares its own
(`handlers`), and `NodeManager` collects them into one table:

===================== =============================================================
part                  handles
===================== =============================================================
`Submission`          SubmitTasks, TasksClaimed, FindActor, AssignTasks, PlaceTasks
`TaskInputs`          ExportFunction, FunctionBlob
`Dispatcher`          WorkerReady, TasksDone, StreamItems, TakenBack, Blocked, Unblocked
`Canceller`           CancelTask
`Bundles`             PrepareBundle, CommitBundle, ReturnBundle
`Starvation`          MoveTasks
`Stealing`            StealTasks, StealAnswer
`ResultManager`       TaskResults
`ReleaseManager`      Release, FreeObjects
`ObjectManager`       PutObjects, WantObjects, Unpin, RefUpdates, PullObject,
                      ObjectPayload, ObjectLocations, SeekOwners
`ObjectMemory`        AllocateObject, Allocated, AbandonObject, Spilled
`PullManager`         Fetched, NoRoom, Probe
`PendingCalls`        ActorChanged, CallsDrained
`NodeActors`          ActorCalls, CancelCall, ActorLineage, CallsLogged, StopActor,
                      DrainCalls, SaveActor, ExitActor, CallsRan
`Queries`             Query, QueryReply
`NodeManager` itself  Registered, NodesJoined, NodeChanged, NodeUnreachable, WorkerDied,
                      RegisterJob, JobRegistered, DescribeJob, JobEnded, Event, GiveBack, KillActor,
                      ForwardResults, CreateGroup, RemoveGroup, KvPut, KvGet, FindTask,
                      GroupCreated, ActorFound, TaskFound, KvReply
===================== =============================================================

Beside it, in the same process: `heartbeats` says to the failure detector that the node lives, and
`admission`, on node 0, lets drivers join.

Promises: an unknown message is a programming error and raises; the node ignores messages of dead
workers and of drivers whose job has ended; a node that the GCS has declared dead stops acting, and
comes back as another incarnation.

Jobs
----
A **job** is a driver and everything that it, or its tasks, submit. The GCS numbers jobs
(`gcs.job_table`), and every ID begins with the ID of its job (`ids`), so an ID alone tells which
job a task, object or actor belongs to, and ends with::

    RegisterJob ──> RUNNING ──the driver ends──> ENDED
                       │                            │ JobEnded, to every node and the
                       │                            ↓ global scheduler
                       └─ its detached actors live on: each has a *branch* of the
                          job's IDs for itself and its tasks. When the actor ends, a
                          JobEnded for the branch ends them

Each job has tasks, objects, functions, placement groups, actors without a name, and worker
processes of its own. A worker belongs to the first job that it runs a task of (a detached actor's
tasks count as a job of their own). Jobs share resources, the key-value table, detached placement
groups, and named actors. If a driver chooses no namespace, the names of its actors are in a
namespace of the job.

References and actor handles that one job passes to another can be used there, as in Ray.
`JobEnded` names the job alone: each receiver drops everything whose ID begins with the ID of the
job, and ignores messages about it that arrive later.
"""
