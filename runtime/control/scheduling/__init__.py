"""The global scheduler: places the tasks, actors and bundles that no local scheduler keeps.

This is the upper half of the paper's bottom-up scheduler (section 4.2.2). Among the nodes that
can run a task it chooses the one with the least estimated wait: queue length x mean task time,
plus bytes of remote inputs / mean bandwidth. Queue lengths and both means come with heartbeats,
places and sizes of inputs from the GCS. The rule is a `Policy`; programs choose one by name.
Policies are for tasks. An actor goes to the node with the fewest actors, among those with free
resources (`actor_placement`).

State: the nodes with their last load and the number of elements sent to them since, ranges that no
node can run, ranges whose inputs are being located, the nodes of actors, placement groups. None of
it is durable: the scheduler logs every assignment in the GCS before it sends it, so that the GCS
can have the tasks of a dead node placed again.

Messages in: PlaceTasks, LoadChanged, NodeChanged, ObjectLocations, TasksMoved, ActorChanged,
CancelTask, CreateGroup, RemoveGroup, BundlePrepared, JobEnded, Query. Out: AssignTasks, MoveTasks,
PrepareBundle, CommitBundle, ReturnBundle, GroupCreated, QueryReply and CancelTask to nodes;
TaskUpdates, ActorPlaced,
ActorFailed, LocateObjects and Event to the GCS; TaskResults to the owner of a range that ends here.

Promises: no range or actor is lost or placed twice; an infeasible range waits for a node that can
run it, and its driver is warned, unless its strategy excludes every node that may join; a placement
group is reserved whole or not at all.

| module | its task |
|---|---|
| `global_scheduler` | places ranges and actors, and dispatches the messages |
| `policies` | how much of a range stays on its node, and the nodes of the rest: one class each |
| `near_threshold` | counts what a policy decides near its threshold, where somebody asks for it |
| `actor_placement` | chooses the node of an actor |
| `strategies` | the nodes that the strategy of a task or an actor allows |
| `node_views` | the scheduler's data about each node, and by demand the nodes that could run it |
| `candidates` | the view of a node that a policy gets, and the orders in which it finds the best |
| `placement_groups` | reserves bundles all together or not at all |
"""
