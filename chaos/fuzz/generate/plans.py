"""Draws the fault plan of a case, of faults that come and go, deaths, and what stays broken.

The driver's node and the head survive every plan, or the program would rightly fail: a head dies
only where another one or another replica takes its place, and what breaks passes within `PASSES` of
the failure detector's limit, ``limit_s``. Other nodes die, and hang for longer than the limit.

`leave_broken` ends a plan: a core of nodes is whole then, and the rest stays broken. `heal_late`
then heals some of the links that are cut, before or after the cluster has given a node up.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from raytwin.chaos.faults.plan import Plan, Step
from raytwin.chaos.faults.targets import (
    Actor,
    Head,
    Link,
    Node,
    Nodes,
    Replica,
    Scheduler,
    Target,
    WholeCluster,
    Worker,
    is_replica_end,
    links_between,
)
from raytwin.runtime.control.core.config import Config
from raytwin.simulator.machine.frame_faults import ANY_KIND

HEARTBEAT_TIMEOUTS_S = (0.5, 0.5, 0.5, 0.7, 1.0, 2.0)
"""Limits of the failure detector to draw from. A shorter one takes a node for dead whose heartbeats
a fault holds up that passes: for a period, for `PASSES`, and for the 0.2 s after which TCP sends
again what was lost. A longer one costs a run as much more time, so that most are short."""
HORIZON_S = 0.5
"""The virtual seconds at the beginning of a run in which faults begin."""
PASSES = 0.3
"""After at most this share of the failure detector's limit, whatever passes between living
processes passes again."""
LINKS = 0.4
"""The share of cases whose links break, stall, jitter, lose packets and are slow."""
MACHINES = 0.25
"""The share of cases with slow cores, slow disks and wrong clocks."""
PRESSED = 0.05
"""The share of cases with nodes that run out of memory."""
FRAMES = 0.2
"""The share of cases in which frames are lost, doubled and late."""
HEADS = 0.15
"""The share of cases whose head hangs for a while."""
SUSPENSIONS = 0.06
"""The share of cases in which an actor's process, a replica and the global scheduler hang."""
BROKEN = 0.3
"""The share of plans with deaths of nodes in which some of them stay broken, unless `heal_late`
heals their links."""
HEALED = 0.5
"""The share of lasting cuts, between two nodes or a node and the head, that heal late."""
HEALED_AFTER = (0.5, 4.0)
"""How long such a cut lasts, in limits of the failure detector: some end before anybody gives up,
others long after a node had to leave."""
KINDS = (
    ANY_KIND,
    ANY_KIND,
    "AssignTasks",
    "ChainOutput",
    "ChainRequest",
    "NodeChanged",
    "Release",
    "SubmitTasks",
    "TaskResults",
    "TaskUpdates",
)
"""Kinds of messages to draw from, of those between nodes and of nodes with the head."""


def draw_plan(rng: random.Random, nodes: int, limit_s: float, lossless: bool = False) -> Plan:
    """Return a random plan for a cluster of `nodes` nodes.

    It resumes all that it pauses, and ends latencies, since a program may rightly
    hang in a cluster that stays paused.
    """
    steps: list[Step] = []
    numbers = nodes
    for _ in range(rng.randint(1, 6)):
        at_s = rng.random() * HORIZON_S
        kinds = ["worker", "worker", "pause", "pause worker", "latency"]
        if not lossless:
            kinds += ["kill", "kill", "kill", "restart", "long pause", "remove", "add"]
        kind = rng.choice(kinds)
        victim = Node(rng.randrange(1, nodes))
        if kind == "worker":
            steps.append(Step("kill", Worker(rng.randrange(nodes), rng.randrange(4)), at_s))
        elif kind == "kill":
            steps.append(Step("kill", victim, at_s))
            if rng.random() < 0.6:
                steps.append(Step("restart", victim, at_s + rng.random() ** 3))
        elif kind == "restart":
            steps.append(Step("restart", victim, at_s))
        elif kind == "remove":
            steps.append(Step("remove_node", victim, at_s))
        elif kind == "add":
            steps.append(Step("add_node", WholeCluster(), at_s))
            numbers += 1
        elif kind == "pause worker":
            steps.append(Step("pause", Worker(victim.number, rng.randrange(4)), at_s))
            steps.append(Step("resume", Worker(victim.number, 0), at_s + rng.random()))
        elif kind in ("pause", "long pause"):
            # Not node 0, the driver's, for so long that the GCS declares it dead.
            target = victim if kind == "long pause" else Node(rng.randrange(nodes))
            most = 3.0 if kind == "long pause" else 0.5
            steps.append(Step("pause", target, at_s))
            steps.append(Step("resume", target, at_s + limit_s * most * rng.random()))
        else:
            source, destination = rng.sample(range(nodes), 2)
            link = Link(source, destination)
            slow = {"latency_ms": rng.choice([1.0, 20.0, 150.0])}
            steps.append(Step("latency", link, at_s, parameters=slow))
            steps.append(Step("latency", link, at_s + rng.random(), parameters={"latency_ms": 0}))
    # Pauses of one node may overlap, so the plan ends with a resume of every paused node.
    end_s = max(step.at_s or 0.0 for step in steps) + 0.001
    paused = {step.target.number for step in steps if step.target.kind == "node"}
    paused |= {step.target.node for step in steps if step.target.kind == "worker"}
    for number in sorted(paused):
        steps.append(Step("resume", Node(number), end_s))
    return Plan(steps)


def draw_kills_of_actors(rng: random.Random, nodes: int, lossless: bool) -> list[Step]:
    """Return kills of actors' processes, and maybe of a node whose replies are late."""
    steps = [
        Step("kill", Actor(rng.randrange(4)), rng.random() * HORIZON_S)
        for _ in range(rng.randint(0, 4))
    ]
    if not lossless and rng.random() < 0.4:
        # A node with a slow link dies, so that calls have taken effect whose replies are lost.
        number, at_s = rng.randrange(1, nodes), rng.random() * HORIZON_S / 2
        slow = {"latency_ms": 100.0}
        steps.append(Step("latency", Link(number, 0), at_s, parameters=slow))
        steps.append(Step("restart", Node(number), at_s + 0.1 * rng.random()))
        steps.append(
            Step("latency", Link(number, 0), at_s + HORIZON_S, parameters={"latency_ms": 0})
        )
    return steps


def draw_links(
    rng: random.Random, nodes: int, limit_s: float, gcs: Mapping[str, Any]
) -> list[Step]:
    """Return faults of links: resets, and others that pass."""
    if rng.random() >= LINKS:
        return []
    ends = ["head", *(f"node:{number}" for number in range(nodes))]
    steps: list[Step] = []
    for _ in range(rng.choice((1, 3, 10, 30))):
        source, destination = rng.sample(ends, 2)
        if rng.random() < 0.1 and gcs.get("gcs_replicas", 1) > 1:
            # Other faults need replicas that all live; see `draw_replica_links`.
            steps.append(_reset(rng, Link("node:0", "replica:0.0")))
            continue
        steps += _fault_of(rng, limit_s, Link(source, destination))
    if rng.random() < 0.3:
        steps += _division(rng, limit_s, ends)
    return steps


def draw_replica_links(
    rng: random.Random,
    nodes: int,
    limit_s: float,
    gcs: Mapping[str, Any],
    steps: Sequence[Step],
) -> list[Step]:
    """Return faults between replicas and nodes, the head, or others of their chain.

    They pass, or one lasts. `steps` are the plan's others. The last replica of a chain that is cut
    off from a node costs the node, so there are none where replicas die, and a cut lasts only in
    chains of several.
    """
    replicas, shards = gcs.get("gcs_replicas", 1), gcs.get("gcs_shards", 1)
    dies = any(step.target.kind in ("replica", "scheduler") for step in steps)
    if replicas == shards == 1 or dies or rng.random() >= LINKS:
        return []
    chains = Config(gcs_shards=shards).chains

    def draw_link() -> Link:
        chain, number = rng.randrange(chains), rng.randrange(replicas)
        others = [f"replica:{chain}.{each}" for each in range(replicas) if each != number]
        other = rng.choice([f"node:{rng.randrange(nodes)}", "head", *others])
        return Link(*rng.sample([f"replica:{chain}.{number}", other], 2))

    if replicas > 1 and rng.random() < 0.5:
        return [Step("cut", draw_link(), rng.random() * HORIZON_S)]
    number = rng.choice((1, 3, 10))
    return [step for _ in range(number) for step in _fault_of(rng, limit_s, draw_link())]


def _reset(rng: random.Random, link: Link) -> Step:
    parameters = {"kind": rng.choice(("rst", "fin"))}
    return Step("reset", link, rng.random() * HORIZON_S, parameters=parameters)


def _fault_of(rng: random.Random, limit_s: float, link: Link) -> list[Step]:
    """Return a reset of a link, or another fault and its end.

    What is lost meanwhile arrives a retransmission timeout later, still before the limit.
    """
    actions = ("loss", "reset", "cut", "stall", "latency", "bandwidth")
    action = rng.choices(actions, (1, 5, 2, 1, 2, 1))[0]
    if action == "reset":
        return [_reset(rng, link)]
    parameters: dict[str, Any] = {}
    if action == "latency":
        parameters = {"latency_ms": 1.0, "jitter_ms": rng.choice((1.0, 20.0))}
    elif action == "bandwidth":
        parameters = {"bytes_per_s": rng.choice((1e6, 1e7))}
    elif action == "loss":
        parameters = {"probability": rng.choice((0.05, 0.3))}
    begin_s = rng.random() * HORIZON_S
    end_s = begin_s + PASSES * limit_s * rng.random()
    return [Step(action, link, begin_s, parameters=parameters), Step("heal", link, end_s)]


def _division(rng: random.Random, limit_s: float, ends: list[str]) -> list[Step]:
    """Return a division of the cluster: of all links at once, or one after another."""
    at_s = rng.random() * HORIZON_S
    if rng.random() < 0.5:
        # A link is cut for twice as long at most.
        over_s = PASSES * limit_s / 2 * (0.1 + 0.9 * rng.random())
        parameters = {"over_s": over_s, "seed": rng.randrange(1000)}
        return [Step("swizzle", Nodes(tuple(range(len(ends) - 1))), at_s, parameters=parameters)]
    shuffled = rng.sample(ends, len(ends))
    middle = rng.randint(1, len(ends) - 1)
    sets = (tuple(shuffled[:middle]), tuple(shuffled[middle:]))
    divide: dict[str, Any] = {"sets": sets, "one_way": rng.random() < 0.5}
    end_s = at_s + PASSES * limit_s * rng.random()
    heals = [Step("heal", link, end_s) for link in links_between(**divide)]
    return [Step("partition", WholeCluster(), at_s, parameters=divide), *heals]


def draw_machines(rng: random.Random, nodes: int) -> list[Step]:
    """Return slow cores, slow and full disks, and wrong clocks of nodes."""
    if rng.random() >= MACHINES:
        return []
    steps: list[Step] = []
    for _ in range(rng.choice((1, 2, 5))):
        number, at_s = rng.randrange(nodes), rng.random() * HORIZON_S
        action, parameters = rng.choice(
            (
                ("slow_cores", {"factor": rng.choice((2.0, 10.0, 50.0))}),
                ("disk_slow", {"bytes_per_s": rng.choice((3e6, 3e7))}),
                ("disk_full", {}),
                ("clock_skew", {"skew_ms": rng.choice((-5e3, -200.0, 200.0, 5e3, 1e5))}),
            )
        )
        # A program may not catch the error of what the driver itself cannot store.
        target = Node(number or 1) if action == "disk_full" else Node(number)
        steps.append(Step(action, target, at_s, parameters=parameters))
        steps.append(Step("heal", target, at_s + HORIZON_S * rng.random()))
    return steps


def draw_pressure(rng: random.Random, nodes: int) -> list[Step]:
    """Return pressure on the memory of nodes, upon which each kills its largest worker."""
    if rng.random() >= PRESSED:
        return []
    return [
        Step(
            "memory_pressure",
            Node(rng.randrange(nodes)),
            rng.random() * HORIZON_S,
            parameters={"nbytes": 1 << 40},
        )
        for _ in range(rng.choice((1, 3)))
    ]


def draw_frames(rng: random.Random, limit_s: float) -> list[Step]:
    """Return losses, doubles and delays of frames, of some kinds of messages."""
    if rng.random() >= FRAMES:
        return []
    steps: list[Step] = []
    # One of each: a lost frame is sent again after half of the failure detector's limit, while
    # doubled ones delay nothing.
    for action in rng.sample(("lose", "double", "delay"), rng.choice((1, 1, 2, 3))):
        kind = rng.choice(KINDS)
        begin_s = rng.random() * HORIZON_S
        late = {"delay_ms": rng.choice((1.0, 20.0))} if action == "delay" else {}
        most_s = HORIZON_S if action == "double" else PASSES * limit_s / 3
        for at_s, probability in (
            (begin_s, rng.choice((0.05, 0.3, 1.0))),
            (begin_s + most_s * rng.random(), 0.0),
        ):
            parameters = {"kind": kind, "probability": probability, **late}
            steps.append(Step(action, WholeCluster(), at_s, parameters=parameters))
    return steps


def draw_head(rng: random.Random, gcs: Mapping[str, Any]) -> list[Step]:
    """Return a pause of the head, and where another one takes over, a kill of the scheduler."""
    if rng.random() >= HEADS:
        return []
    at_s = rng.random() * HORIZON_S
    steps = [Step("pause", Head(), at_s), Step("resume", Head(), at_s + HORIZON_S * rng.random())]
    if gcs.get("gcs_storage") or gcs.get("gcs_replicas", 1) > 1:
        steps.append(Step("kill", Scheduler(), rng.random() * HORIZON_S))
    return steps


def draw_suspensions(rng: random.Random, limit_s: float, gcs: Mapping[str, Any]) -> list[Step]:
    """Return short pauses of an actor's process, the global scheduler and a replica of the GCS."""
    if rng.random() >= SUSPENSIONS:
        return []
    targets: list[Target] = [Actor(rng.randrange(4)), Scheduler()]
    if gcs.get("gcs_replicas", 1) > 1:
        targets.append(Replica(0, rng.randrange(3)))
    steps = []
    for target in targets:
        at_s = rng.random() * HORIZON_S
        steps.append(Step("pause", target, at_s))
        # Once more, in case the actor's node is paused when it is due, and lives on.
        ends = (at_s + PASSES * limit_s * rng.random(), HORIZON_S + limit_s)
        steps += [Step("resume", target, end_s) for end_s in ends]
    return steps


def leave_broken(rng: random.Random, plan: Plan) -> Plan:
    """Return a plan in which nodes that die anyway, or are slow, may stay broken for good.

    Each hangs, or nothing passes between it and the head or another node, maybe one way. The other
    nodes are the core on which everything that can end has to end: at least the driver's, and all
    that never die, which are enough for every program.
    """
    touched = {step.target.number for step in plan.steps if step.target.kind == "node"} - {0}
    dies = [step for step in plan.steps if step.action in ("kill", "restart", "remove_node")]
    may = sorted(touched & {step.target.number for step in dies if step.target.kind == "node"})
    if not may or rng.random() >= BROKEN:
        return plan
    for victim in rng.sample(may, rng.randint(1, len(may))):
        plan = _leave_node_broken(rng, plan, victim)
    return plan


def _leave_node_broken(rng: random.Random, plan: Plan, victim: int) -> Plan:
    at_s = rng.random() * HORIZON_S
    if rng.random() < 0.5:
        last = [Step("pause", Node(victim), at_s)]
    else:
        # Of two nodes that are cut off from each other the later one leaves.
        other = rng.choice(["head", f"node:{rng.randrange(victim)}"])
        ways = [Link(other, f"node:{victim}"), Link(f"node:{victim}", other)]
        last = [Step("cut", way, at_s) for way in rng.choice([ways, ways[:1], ways[1:]])]
    broken = {step.target for step in last}

    def undoes(step: Step) -> bool:
        """Whether a step may end what is to last, or acts on a node that is to stay broken."""
        end_s = (step.at_s or 0.0) + 2 * step.parameters.get("over_s", 0.0)
        of_node = step.target.kind in ("node", "worker") and victim in step.target.nodes
        if step.action == "resume" and Node(victim) not in broken:
            return False
        return end_s >= at_s and (of_node or step.action == "swizzle" or step.target in broken)

    return Plan([*(step for step in plan.steps if not undoes(step)), *last])


def heal_late(rng: random.Random, plan: Plan, limit_s: float) -> Plan:
    """Return a plan in which some cuts that would last heal late."""
    cut = cut_for_good(plan)
    pairs: dict[frozenset[str], list[Link]] = {}
    for link in cut:
        if not (is_replica_end(link.source) or is_replica_end(link.destination)):
            pairs.setdefault(frozenset((link.source, link.destination)), []).append(link)
    heals: list[Step] = []
    for links in pairs.values():
        if rng.random() < HEALED:
            end_s = max(cut[link] for link in links) + limit_s * rng.uniform(*HEALED_AFTER)
            heals += [Step("heal", link, end_s) for link in links]
    return Plan([*plan.steps, *heals]) if heals else plan


def cut_for_good(plan: Plan) -> dict[Link, float]:
    """Return the links that steps cut, and that no later step heals, with the time of the cut."""
    cut: dict[Link, float] = {}
    for step in sorted(plan.steps, key=lambda step: step.at_s or 0.0):
        if step.action == "cut":
            assert isinstance(step.target, Link)
            cut[step.target] = step.at_s or 0.0
        elif step.action == "heal" and isinstance(step.target, Link):
            cut.pop(step.target, None)
    return cut
