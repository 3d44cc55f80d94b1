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
`Submission`          SubmitTasks, TasksClaimed, FindActor, AssignTasks
`TaskInputs`          ExportFunction, FunctionBlob
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
`NodeManager` itself  Registered, NodeChanged, WorkerDied, RegisterJob, JobRegistered,
                      DescribeJob, JobEnded, KillActor, ForwardResults, CreateGroup,
                      RemoveGroup, KvPut, KvGet, FindTask, GroupCreated, ActorFound,
                      TaskFound, KvReply
===================== =============================================================

Promises: an unknown message is a programming error and raises; nothing is taken from a worker
that is dead or a driver whose job has ended; a node that the GCS has declared dead acts no
more, and comes back as another incarnation.

Jobs
----
A **job** is a driver with all that comes of it. The GCS numbers jobs (`gcs.job_table`), and
every ID begins with its job's (`ids`), so an ID alone tells which job may see a thing and
with which job it ends::

    RegisterJob ──> RUNNING ──the driver ends──> ENDED
                       │                            │ JobEnded, to every node and the
                       │                            ↓ global scheduler
                       └─ its detached actors, each a branch of the job's IDs, live on;
                          a branch ends in the same way, with its actor

A job has of its own: tasks, objects, functions, placement groups, actors without a name, and
worker processes. A worker belongs to the first job that it runs a task of (a detached
actor's tasks count as a job of their own). Jobs share resources, the key-value table,
detached placement groups, and named actors; an actor whose driver chose no namespace has
its name in a namespace of its job's.

What one job hands to another can be used there, as in Ray. `JobEnded` names the job alone: each
receiver drops everything whose ID begins with the job's, and ignores what arrives later.
"""
