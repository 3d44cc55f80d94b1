"""How soon a program ends after the last fault: the bound follows from the settings of the case.

Once the plan is over, some nodes are whole and the others stay broken. Then the cluster

- notices within a heartbeat's timeout which nodes are broken, once for those that broke before and
  once for those that restart meanwhile; a node that does not hear the head, or that the head does
  not hear and so cannot tell, notices it itself after ``Config.fence_s``;
- waits `LOST_S`, or `UNREPORTED_TIMEOUTS` such timeouts if that is longer, for what may still
  arrive, and `ON_ITS_WAY_S` for references that do not;
- runs all tasks and calls at most once more for what was interrupted or lost, in the worst case
  one after another;
- lets each of them linger at its client, node and worker, both ways, and wait for its scheduler as
  often; with small stores an input may wait for room once, and so may each large value, if a task
  has mapped all of the store.

Whoever waits longer waits for something that does not come.
"""

from __future__ import annotations

from raytwin.chaos.fuzz.generate.cases import STORE_BYTES, Case
from raytwin.chaos.fuzz.generate.plans import cut_for_good
from raytwin.chaos.fuzz.programs.program import LARGE_BYTES, Body
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.gcs.array_store import LOST_S
from raytwin.runtime.control.gcs.object_reconstruction import UNREPORTED_TIMEOUTS
from raytwin.runtime.control.ownership.reference_counter import ON_ITS_WAY_S

RUNS = 2
"""A first run, and one for what was interrupted or lost."""
LINGERS = 6
"""How often a task may be held back to leave with others, or for a slow scheduler: at three
processes, both ways."""


def bound_s(case: Case, config: Config) -> float:
    """Return the most virtual seconds that a program may take after the last step of the plan."""
    bodies = (case.program, *case.drivers)
    detection_s = 2 * (config.heartbeat_timeout_s + 2 * config.heartbeat_s)
    detection_s += leaves_s(case, config)
    arriving_s = max(LOST_S, UNREPORTED_TIMEOUTS * config.heartbeat_timeout_s)
    running_s = RUNS * sum(map(work_s, bodies))
    held_s = config.linger_s + config.scheduling_delay_s
    lingering_s = RUNS * LINGERS * held_s * sum(body.tasks for body in bodies)
    room_s = 0.0
    if case.store_bytes != STORE_BYTES:
        values = RUNS * sum(map(large_values, bodies))
        room_s = config.store_wait_s + config.allocate_wait_s * values
    return detection_s + arriving_s + ON_ITS_WAY_S + running_s + lingering_s + room_s


def leaves_s(case: Case, config: Config) -> float:
    """Return how long a node may take to notice that it must leave, since nobody can tell it."""
    links = cut_for_good(case.plan)
    cut_off = any("head" in (link.source, link.destination) for link in links)
    return config.fence_s if cut_off else 0.0


def work_s(body: Body) -> float:
    """Return the seconds that all tasks and calls of a body take, one after another."""
    total_s = 0.0
    for op in body.ops:
        if op.call is not None:
            items = op.call.parts if op.do in ("stream", "yields") else 0
            total_s += op.times * op.call.seconds * (1 + items)
            total_s += work_s(op.call.body) if op.call.body is not None else 0.0
    return total_s


def large_values(body: Body) -> int:
    """Return how many values a body makes that are too large for a message."""
    total = 0
    for op in body.ops:
        total += op.nbytes >= LARGE_BYTES
        if op.call is not None:
            if op.call.nbytes >= LARGE_BYTES:
                total += op.times * max(1, op.call.parts)
            total += large_values(op.call.body) if op.call.body is not None else 0
    return total
