"""Simulated hosts and their network: the part of the model that is not the control plane's code.

The paper ran on up to 100 hosts of 64 cores on a 25 Gbit/s network. Here a `host` is a number of
cores that its processes share, and a network card. Nothing in this package decides anything
about tasks or objects.

State: per host, the processes that compute and those that wait for a core; per pair of
nodes, a link with its frames in flight; per process, its inbox and its timers.

A process runs in *turns*. It takes all frames that have arrived, gives each component that was
addressed its turn, and occupies a core for the cost of the messages; its frames leave when the
turn is over. Frames that arrive meanwhile wait for the next turn, as on a real socket.

Promises:

- Time passes only through `clock`, and randomness comes only from seeded generators: the
  same seed gives the same events in the same order.
- A host never runs more processes at once than it has cores, and serves all CPU time that a
  process has requested, exactly once, unless the process ends.
- Frames from one node to another arrive in the order in which they were sent, or not at all.
- Transfers share a bandwidth max-min fairly, as flows of a network do.

Modules, the lower first:

- `clock`: virtual time, SimPy's event queue.
- `costs`: the CPU time and the size of each message and call, from a profile.
- `host`: a machine's cores, shared in time slices; `run_queues`: with a queue for each core, as on
  Linux.
- `interpreter`: what a program and the turns of its process share, as threads of CPython do.
- `network`: frames and transfers between nodes, with latency and shared bandwidth.
- `frame_faults`: frames that are lost, doubled or late, by the kind of their messages.
- `observer`: what an oracle sees of signs of life, and of reports that there are none.
- `simulated_channels`: the channels of `runtime.control` over simulated connections.
- `simulated_process`: a single-threaded server of components, the `Context` of simulated time.
- `replayed_component`: a component of a real cluster, fed its journal.
"""

from __future__ import annotations
