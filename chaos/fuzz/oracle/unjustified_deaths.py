"""Finds living nodes that were declared dead, or left, though no step of the plan explains it.

A step explains the deaths after it of the nodes that it may silence, until a while after another
step has ended it. Most may silence any node: one that hangs, for instance, is cut off from each
other node, and of two nodes that cannot reach each other the GCS gives up one. `HARMLESS` and
`HARMLESS_TO_OTHERS` list the steps that may not. An action that is in no list explains every death
after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from raytwin.chaos.faults.injector import Injection
from raytwin.chaos.faults.plan import Step
from raytwin.chaos.faults.targets import Link, is_replica_end
from raytwin.chaos.fuzz.oracle.findings import Finding, Kind

_OF_A_WORKER = "a node answers, whatever its workers do"
_ENDS = "it only ends what another step has begun"
_JOINS = "a node that joins takes nothing from others"
_TWICE = "a channel drops what it has received before"
HARMLESS: Mapping[tuple[str, str], str] = {
    ("worker", "kill"): _OF_A_WORKER,
    ("worker", "pause"): _OF_A_WORKER,
    ("worker", "resume"): _OF_A_WORKER,
    ("node", "memory_pressure"): _OF_A_WORKER,
    ("actor", "kill"): _OF_A_WORKER,
    ("actor", "pause"): _OF_A_WORKER,
    ("actor", "resume"): _OF_A_WORKER,
    ("node", "resume"): _ENDS,
    ("head", "resume"): _ENDS,
    ("scheduler", "resume"): _ENDS,
    ("replica", "resume"): _ENDS,
    ("link", "heal"): _ENDS,
    ("node", "heal"): _ENDS,
    ("cluster", "heal"): _ENDS,
    ("cluster", "add_node"): _JOINS,
    ("cluster", "double"): _TWICE,
}
"""The steps that silence no node, by kind of target and action, and why."""
_REAPED = "its parent reaps it, and the head hears so at once"
_OWN_CONNECTION = "other nodes, and they and the head, have connections of their own"
HARMLESS_TO_OTHERS: Mapping[tuple[str, str], str] = {
    ("node", "kill"): _REAPED,
    ("node", "restart"): _REAPED,
    ("node", "remove_node"): _REAPED,
    ("link", "latency"): _OWN_CONNECTION,
    ("link", "bandwidth"): _OWN_CONNECTION,
    ("link", "loss"): _OWN_CONNECTION,
    ("link", "reset"): _OWN_CONNECTION,
    ("link", "stall"): _OWN_CONNECTION,
    ("link", "cut"): _OWN_CONNECTION,
}
"""The steps that silence only nodes which their target names, and why: but for links of replicas,
whose chain all nodes use."""


PASSING = (
    "pause", "cut", "stall", "loss", "bandwidth", "latency", "slow_cores", "disk_slow", "disk_full",
    "lose", "delay",
)  # fmt: skip
"""The actions after which all is as before, once they have ended."""
MOMENTARY = {"reset": 0, "kill": 1, "restart": 1, "remove_node": 1, "clock_skew": 1}
"""The actions that take no time, and after how many limits of silence all is as before again.
Others notice the death of a process, and a clock that has jumped, within one limit: a successor is
there then, or the chain goes on without."""
GRACE_S = 1.0
"""The seconds, besides the failure detector's limit, for which a step explains deaths after its
end: for the retransmission of what was lost, and for the reports of pairs, which are collected
before they are judged."""
SLOW_MS = 50.0
"""The latency that no limit notices, even of several exchanges."""


def may_silence(step: Step, node: int) -> bool:
    """Whether a node may be declared dead because of a step."""
    target, key = step.target, (step.target.kind, step.action)
    if key in HARMLESS:
        return False
    if step.action == "latency":
        given = step.parameters
        if given["latency_ms"] + given.get("jitter_ms", 0.0) <= SLOW_MS:
            return False
    replicas = isinstance(target, Link) and any(
        map(is_replica_end, (target.source, target.destination))
    )
    return key not in HARMLESS_TO_OTHERS or replicas or node in target.nodes


def ends(step: Step, fault: Step) -> bool:
    """Whether a later step ends a fault."""
    if step.target != fault.target or fault.action not in PASSING:
        return False
    if fault.action == "pause" or step.action == "resume":
        return (fault.action, step.action) == ("pause", "resume")
    if step.action == "heal":
        return True
    same = step.action == fault.action
    same &= step.parameters.get("kind") == fault.parameters.get("kind")
    off = step.parameters.get("latency_ms") == 0 or step.parameters.get("probability") == 0
    return same and off


def explains(
    injections: Sequence[Injection], number: int, node: int, died_s: float, limit_s: float
) -> bool:
    """Whether the step of one injection explains the death of a node; `limit_s` is that of the
    failure detector."""
    fault = injections[number]
    if fault.error or fault.clock_s > died_s or not may_silence(fault.step, node):
        return False
    limits = MOMENTARY.get(fault.step.action)
    if limits is not None:
        end_s = fault.clock_s + limits * limit_s
    else:
        later = injections[number + 1 :]
        over = (each.clock_s for each in later if not each.error and ends(each.step, fault.step))
        end_s = next(over, inf)
    return died_s <= end_s + limit_s + GRACE_S


def unjustified_deaths(
    died: Mapping[tuple[int, int], float], injections: Sequence[Injection], limit_s: float
) -> list[Finding]:
    """Return the nodes that no step explains; `died` is {(node, incarnation): time}, and the
    injections are in order."""
    found = []
    for (node, incarnation), died_s in sorted(died.items()):
        numbers = range(len(injections))
        if not any(explains(injections, number, node, died_s, limit_s) for number in numbers):
            text = f"node {node}, incarnation {incarnation}, at {died_s:.6f} s: no step explains it"
            found.append(Finding(Kind.DEATHS, text))
    return found
