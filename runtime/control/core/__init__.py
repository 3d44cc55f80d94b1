"""The base of all packages of the control plane.

The control plane is a set of state machines without I/O. `context` is their only interface to the
world: time, random numbers, timers, and sending messages. The rest of this package is shared by
several state machines. It imports nothing of the control plane but `messages`.

Modules
-------
context             the interface to the world; turns; how a component's part declares its messages
turns               the order of a process's turns, and what leaves together
addresses           the addresses of components
config              the cluster's settings
ids                 deterministic IDs of tasks, objects and functions
resources           demands of tasks; a node's total, free and reserved resources
group_resources     the resources of a placement group's bundles
membership          the node table as the GCS has published it to a component
access              the jobs of a node's clients, and the jobs that have ended
task_ranges         splitting ranges of tasks; facts read from a `TaskSpec`
call_batches        batches: calls of one actor that travel together
worker_record       a worker as its node sees it
failed_values       values that stand for an error of the system; `get` raises it
batching            cutting long lists into messages of bounded length
range_set           a set of integers as ranges
bounded_map         a mapping that forgets its oldest entries
"""
