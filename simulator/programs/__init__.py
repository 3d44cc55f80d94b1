"""Programs in virtual time: the user's own source, unchanged, on a simulated cluster.

The driver's program and the bodies of tasks and actors are ordinary Python that blocks in
`get` or `sleep`. All of them share one real thread, so each worker's program runs in a greenlet;
where it blocks it switches to the *hub*, the greenlet that runs the simulation. The first
driver's program runs in the hub itself: where it blocks, it runs the simulation until its
condition holds.

State: per program, its debt (CPU time used that has not passed yet), the greenlets that wait
and the condition of each, and state that a real process has for itself: environment
variables, exit handlers, the running asyncio loop. The world exchanges these at every switch.

In: turns of the program's process, which make conditions true; events of the clock.
Out: the calls of the client and of the executor, whose messages leave with the process's
frames; `worker_left` and `worker_died` to the cluster.

Promises:

- A program sees only virtual time: `now`, `sleep`, `compute`, timeouts and asyncio agree.
- Before a program's messages leave, and before it waits, its debt has passed on its host.
- `os._exit`, signals to itself and exit handlers touch the simulated process only.
- A program whose process has ended runs nothing more but `finally` clauses.
- A call from another thread raises RuntimeError before it has changed anything.

Modules, the lower first:

- `process_ends`: `os._exit`, signals and `atexit` per simulated process.
- `body_costs`: what bodies cost: what they declare, or the CPU time that they take here.
- `virtual_values`: values whose blobs only claim their size; numbers for functions.
- `virtual_world`: the backend's `World`: turns, debt, waiting, greenlets, asyncio.
- `virtual_time`, `virtual_random`: Python's clocks, event loops and `random`, for scripts that do
  not know that they are simulated.
"""

from __future__ import annotations
