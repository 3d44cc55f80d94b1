"""The base of all packages of the control plane.

The control plane is a set of state machines without I/O. `context` is their only port to the
world: time, random numbers, timers, and sending messages. The rest of this package is what
several machines need in the same form. It imports `messages` alone.

Modules
-------
context             the port; turns; how a component's parts declare what they take
addresses           how components are addressed
config              the cluster's settings
ids                 deterministic IDs of tasks, objects and functions
resources           amounts and demands of resources, and what is free
group_resources     the resources of a placement group's bundles
membership          the node table as a node or the global scheduler has heard it
access              what one job may do to another's tasks and objects
task_ranges         splitting ranges of tasks; what a task says of itself
call_batches        runs: calls of one actor that travel together
worker_record       a worker as its node sees it
failed_values       errors of the system in place of values
batching            cutting long lists into messages of bounded length
range_set           a set of integers as ranges
bounded_map         a mapping that forgets its oldest entries
"""
