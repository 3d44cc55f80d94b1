"""Recovery fuzz: random programs under random fault plans, in virtual time.

One seed draws a cluster, a program (`programs`) and a plan, and is one execution:
run again it does the same, down to the last message. Held against it:

- every value is that of a sequential run, or an error that is *legitimate*;
- the program ends: a cluster in which nothing happens any more raises;
- the invariants of `invariants`, at every turn and at the end.

Which errors are legitimate (see `excuse`):

================== ==============================================================
WorkerCrashedError names a task of r retries, and at least r + 1 kills came before
ObjectLostError    a node had died before, and what is lost was put, and says so (it may
                   be the input of a task that is to be run again, and released since),
                   or an actor's call made it, and says so, or names a task of r retries
                   as above;
                   or it needs, or was to be yielded by a task that needs, what is
                   lost for one of these reasons, and says so
                   or a call made it whose actor takes checkpoints, or has died (for which
                   the program may have let go of it), and says so
                   or it is a call's that a task has made, and let go of, and made again when
                   it ran once more, and says so
ActorDiedError     names an actor of r restarts, and at least r + 1 kills came before,
                   or one that cannot be rebuilt, as an input of a call is lost, or what
                   a call needs has failed, which of actors without end it may not
ActorUnavailableError names a call of r retries, likewise
ObjectStoreFullError the stores of the case are small, and all of one was in use
TaskCancelledError names what the program has cancelled
================== ==============================================================

No fault may fail a call of an actor with restarts and retries without end whose
inputs cannot be lost, and its value is the fold of all calls before.

A lost result whose task has retries left is made again, by lineage; under plans
without the death of a node nothing is lost at all.
"""

from __future__ import annotations

import gc
import random
import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import runtime.api as api
from chaos import invariants
from chaos.attach import attach
from chaos.bodies import Body, Teller
from chaos.callers import with_awaited, with_callers
from chaos.cancels import with_cancels
from chaos.drawing import draw, with_actors, with_children
from chaos.holders import with_holders
from chaos.injector import Injection
from chaos.interpreter import run_body
from chaos.outcomes import Boom
from chaos.plan import Plan, Step
from chaos.programs import Api, actor_name, cancelled_here, forget, put_here, told_here
from chaos.sequential import Sequential
from chaos.several_values import with_several
from chaos.targets.actor import Actor
from chaos.targets.cluster import WholeCluster
from chaos.targets.head import Head
from chaos.targets.link import Link
from chaos.targets.node import Node
from chaos.targets.replica import Replica
from chaos.targets.worker import Worker
from runtime.api.exceptions import (
    ActorDiedError,
    ObjectLostError,
    ObjectStoreFullError,
    RayTaskError,
    TaskCancelledError,
    WorkerCrashedError,
)
from runtime.control.config import Config
from simulator.backend import connect

HEARTBEAT_TIMEOUT_S = 0.5
STORE_BYTES = 64 << 30
STORES_BYTES = (STORE_BYTES, STORE_BYTES, 2_000_000, 1_000_000)
"""Drawn from these; the largest values of programs have 300 kB."""
SEVERAL = 0.5
"""How many of the programs have tasks of several values."""
ACTORS = 0.6
"""How many of the programs have actors."""
CALLERS = 0.4
"""How many of the programs have actors that tasks and other actors' calls call."""
AWAITED = 0.25
"""How many of the programs have runs of calls that are awaited one at a time."""
CANCELS = 0.25
"""How many of the programs cancel tasks and calls."""
HOLDERS = 0.2
"""How many of the programs have actors that hold CPUs."""
DIRECT_AFTER = (1, 8)
"""After so many of those, calls go directly (`Config.direct_after`)."""
HORIZON_S = 0.5
"""Faults begin within this time of a run, in virtual seconds."""
LIMIT_S = 300.0
"""Virtual seconds after which a program goes round in circles; most take two or three."""
KILLS = ("kill", "restart", "pause", "remove_node")
"""Actions that may take a running task along."""
STORED: dict[str, Any] = {"gcs_storage": "any", "task_history": True, "gcs_memory_max": 4_000}
NOT_ITS_OWN = ("replica", "head")
"""Targets that have no task to take along."""

_OBJECT = re.compile(r"\bobject ([0-9a-f]{36}) is lost")
_CAUSE = re.compile(
    r" (?:has not yielded it again|needs an input that is lost):"
    r" (?:ObjectLost|OwnerDied)Error: (.+)",
    re.S,
)
_NOT_BY_TASK = re.compile(r"\bit was put, and |\ban actor made it, and ")
_STRAYED = re.compile(r"(t\d+r-?\d+) raised when it was repeated")
_LET_GO = re.compile(
    r"\bit was made for an earlier run of its caller, which has let go of it, and "
)
_GONE_ON = re.compile(r"\bthe actor that made it has gone on since$")
_TASK = re.compile(r"\bk\d+r(-?\d+)\b")
_CANCELLED = re.compile(r": ([kt]\d+r-?\d+) was cancelled")
_ACTOR = re.compile(r"ActorDiedError: a\d+r(-?\d+) died: ")
_CALL = re.compile(r"ActorUnavailableError: t\d+r(-?\d+): ")


NONE_TOLD: Mapping[str, Teller] = {}


@dataclass(frozen=True)
class Case:
    """What a seed stands for."""

    seed: int
    nodes: int
    cpus: int
    program: Body
    plan: Plan
    lossless: bool
    store_bytes: int = STORE_BYTES
    """Per node; with less than the usual, objects go to disk and come back."""
    gcs: dict[str, Any] = field(default_factory=dict)
    """What the session is told of the GCS: replicas, shards, storage."""
    direct_after: int = Config().direct_after


@dataclass
class Report:
    """What became of a case."""

    case: Case
    failures: list[str] = field(default_factory=list)
    """One line each; none: all held."""
    tasks: int = 0
    faults: int = 0
    excused: int = 0
    """Values that a legitimate error came instead of."""


def draw_case(seed: int, lossless: bool = False, heads: bool = True) -> Case:
    """Return the case of a seed.

    With `lossless` no node dies, only workers, and nothing may be lost. Without `heads`
    no head does, and no replica has storage.
    """
    rng = random.Random(f"fuzz/{seed}")
    nodes = rng.randint(2, 5)
    cpus = rng.randint(1, 3)
    program = draw(rng, rng.randint(5, 50))
    several = random.Random(f"fuzz/several/{seed}")
    if several.random() < SEVERAL:
        program = with_several(several, program)
    plan = draw_plan(rng, nodes, lossless)
    store_bytes = rng.choice(STORES_BYTES)
    gcs, kills = draw_gcs(random.Random(f"fuzz/{seed}/gcs"))
    others = random.Random(f"fuzz/actors/{seed}")
    if others.random() < ACTORS:
        program = with_actors(others, program, store_bytes == STORE_BYTES)
        more = random.Random(f"fuzz/children/{seed}")
        program = with_children(more, program, store_bytes == STORE_BYTES)
        kills += _draw_kills_of_actors(others, nodes, lossless)
    calls = random.Random(f"fuzz/callers/{seed}")
    if calls.random() < CALLERS:
        program = with_callers(calls, program, store_bytes == STORE_BYTES)
        kills += _draw_kills_of_actors(calls, nodes, lossless)
    singly = random.Random(f"fuzz/awaited/{seed}")
    direct_after = Config().direct_after
    if singly.random() < AWAITED:
        program = with_awaited(singly, program, store_bytes == STORE_BYTES)
        direct_after = singly.choice(DIRECT_AFTER)
    unwanted = random.Random(f"fuzz/cancels/{seed}")
    if unwanted.random() < CANCELS:
        program = with_cancels(unwanted, program, store_bytes == STORE_BYTES)
        direct_after = unwanted.choice(DIRECT_AFTER)
    if gcs and heads:
        kills += _draw_kills_of_heads(random.Random(f"fuzz/heads/{seed}"))
        kills += _add_storage(random.Random(f"fuzz/storage/{seed}"), gcs)
    holding = random.Random(f"fuzz/holders/{seed}")
    if holding.random() < HOLDERS:
        program = with_holders(holding, program)
    plan = Plan([*plan.steps, *kills])
    return Case(seed, nodes, cpus, program, plan, lossless, store_bytes, gcs, direct_after)


def draw_gcs(rng: random.Random) -> tuple[dict[str, Any], list[Step]]:
    """Return options of a session for its GCS, half of the time none, and deaths of replicas."""
    if rng.random() < 0.5:
        return {}, []
    if rng.random() < 0.15:
        return dict(STORED), []
    replicas, shards = rng.choice((1, 2, 2, 3)), rng.choice((1, 2, 4))
    kills = []
    if replicas > 1:
        chains = shards + 1 if shards > 1 else 1
        for _ in range(rng.randint(0, 2 * chains)):
            member = Replica(rng.randrange(chains), rng.randrange(replicas))
            kills.append(Step("kill", member, rng.random() * 2 * HORIZON_S))
    return {"gcs_replicas": replicas, "gcs_shards": shards}, kills


def _draw_kills_of_heads(rng: random.Random) -> list[Step]:
    """Half of the heads that start again are killed, once or twice."""
    kills = rng.choice((0, 0, 1, 2))
    return [Step("kill", Head(), rng.random() * 2 * HORIZON_S) for _ in range(kills)]


def _add_storage(rng: random.Random, gcs: dict[str, Any]) -> list[Step]:
    """Give a third of the chains storage; then their last replicas die as well."""
    if "gcs_storage" in gcs or rng.random() < 0.67:
        return []
    replicas, shards = gcs["gcs_replicas"], gcs["gcs_shards"]
    gcs.update(STORED)
    if replicas == shards == 1:
        return []
    chains = shards + 1 if shards > 1 else 1
    return [
        Step(
            "kill",
            Replica(rng.randrange(chains), rng.randrange(replicas)),
            rng.random() * 2 * HORIZON_S,
        )
        for _ in range(rng.randint(0, 2 * chains))
    ]


def draw_plan(rng: random.Random, nodes: int, lossless: bool = False) -> Plan:
    """Return a random plan for a cluster of so many nodes.

    Whatever is paused is resumed, and latencies end: a cluster that stays stuck
    would be right to.
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
            # Never the driver's node for so long that it is declared dead.
            target = victim if kind == "long pause" else Node(rng.randrange(nodes))
            most_s = 3.0 if kind == "long pause" else 0.5
            steps.append(Step("pause", target, at_s))
            steps.append(Step("resume", target, at_s + HEARTBEAT_TIMEOUT_S * most_s * rng.random()))
        else:
            source, destination = rng.sample(range(nodes), 2)
            link = Link(source, destination)
            slow = {"latency_ms": rng.choice([1.0, 20.0, 150.0])}
            steps.append(Step("latency", link, at_s, parameters=slow))
            steps.append(Step("latency", link, at_s + rng.random(), parameters={"latency_ms": 0}))
    # Pauses of one node may overlap: at the end everybody goes on.
    end_s = max(step.at_s or 0.0 for step in steps) + 0.001
    paused = {step.target.number for step in steps if step.target.kind == "node"}
    paused |= {step.target.node for step in steps if step.target.kind == "worker"}
    for number in sorted(paused):
        steps.append(Step("resume", Node(number), end_s))
    return Plan(steps)


def _draw_kills_of_actors(rng: random.Random, nodes: int, lossless: bool) -> list[Step]:
    steps = [
        Step("kill", Actor(rng.randrange(4)), rng.random() * HORIZON_S)
        for _ in range(rng.randint(0, 4))
    ]
    if not lossless and rng.random() < 0.4:
        # A node dies whose answers are slow: calls have taken effect that nobody knows of.
        number, at_s = rng.randrange(1, nodes), rng.random() * HORIZON_S / 2
        slow = {"latency_ms": 100.0}
        steps.append(Step("latency", Link(number, 0), at_s, parameters=slow))
        steps.append(Step("restart", Node(number), at_s + 0.1 * rng.random()))
        steps.append(
            Step("latency", Link(number, 0), at_s + HORIZON_S, parameters={"latency_ms": 0})
        )
    return steps


def run_case(
    case: Case, prepare: Callable[[Any], None] = lambda session: None, **options: Any
) -> Report:
    """Run a case on `sim` and hold it against everything.

    `options` are further ones of the session, in place of the case's own, which
    `prepare` is given before the program begins.
    """
    report = Report(case, tasks=case.program.tasks)
    expected = run_body(Sequential(), case.program)
    forget()
    session: Any = connect(
        nodes=case.nodes,
        cpus_per_node=case.cpus,
        seed=case.seed,
        heartbeat_timeout_s=HEARTBEAT_TIMEOUT_S,
        direct_after=case.direct_after,
        **{"object_store_memory": case.store_bytes, **case.gcs, **options},
    )
    prepare(session)
    watch = invariants.Watch(session.cluster)
    session.cluster.after_node_turn.append(lambda _: _check_time(session))
    injector = attach(session, case.plan)
    try:
        try:
            outcomes = run_body(Api(driver=True), case.program)
        except ObjectStoreFullError as error:
            # What the driver itself puts is no task's value: its program ends there.
            wrong = excuse(error, 0, 0, store_bytes=case.store_bytes)
            report.failures += [wrong] if wrong else []
            report.excused += not wrong
        else:
            _compare(report, expected, outcomes, injector.injections, session)
            del outcomes
        report.faults = len(injector.injections)
        if session._dropped or gc.isenabled():
            gc.collect(0)
        _finish_plan(session, injector)
        report.failures += invariants.settled(lambda: invariants.at_end(session), api.sleep)
    except Exception as error:
        line = " ".join(str(error).split())
        report.failures.append(f"{type(error).__name__}: {line}")
    finally:
        injector.stop()
        api.shutdown()
    report.failures += watch.found
    return report


def _check_time(session: Any) -> None:
    if session.now() > LIMIT_S:
        raise invariants.Violation(f"it has not ended after {LIMIT_S:g} virtual seconds")


def _finish_plan(session: Any, injector: Any) -> None:
    """Let the rest of the plan happen: what is left behind is looked at after it."""
    while injector.next_due_s() is not None:
        api.sleep(0.1)
    _events(session)


def _compare(
    report: Report,
    expected: Sequence[Any],
    outcomes: Sequence[Any],
    injections: Sequence[Injection],
    session: Any,
) -> None:
    if len(expected) != len(outcomes):
        report.failures.append(f"{len(outcomes)} outcomes instead of {len(expected)}")
        return
    kills = sum(
        each.step.action in KILLS and each.step.target.kind not in NOT_ITS_OWN and not each.error
        for each in injections
    )
    events = _events(session)
    deaths = sum(row[1] == "node_died" for row in events)
    ended = {row[2] for row in events if row[1] == "actor_died"}
    for number, (right, got) in enumerate(zip(expected, outcomes, strict=True)):
        if right == got:
            continue
        if isinstance(got, Exception) and not isinstance(got, Boom):
            small = report.case.store_bytes
            wrong = excuse(got, kills, deaths, put_here, small, told_here, ended, cancelled_here)
            if not wrong:
                report.excused += 1
                continue
            report.failures.append(f"value {number}: {wrong}")
        else:
            report.failures.append(f"value {number} is {got!r} and not {right!r}")


def _events(session: Any) -> list[tuple[float, str, str, str, int]]:
    """Return the GCS's events, as soon as all of it can be asked: its head may be away."""
    while True:
        try:
            if session.cluster.gcs_tables:
                return list(session.cluster.gcs.events)
        except LookupError:
            api.sleep(0.1)


def excuse(
    error: BaseException,
    kills: int,
    deaths: int,
    puts: Container[str] = frozenset(),
    store_bytes: int = STORE_BYTES,
    told: Mapping[str, Teller] = NONE_TOLD,
    ended: Container[str] = frozenset(),
    cancelled: Container[str] = frozenset(),
) -> str:
    """Return why an error may not come after so many kills and deaths of nodes; "" if it may.

    In hexadecimal, `puts` are the objects that were put, and `told` has the actors whose
    calls made some; `ended` are the names of those that have died, `cancelled` those of
    tasks and calls that were.
    """
    while isinstance(error, RayTaskError) and error.cause is not None:
        error = error.cause
    text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    if isinstance(error, ObjectStoreFullError) and store_bytes < STORE_BYTES and "in use" in text:
        return ""
    if isinstance(error, TaskCancelledError):
        named = _CANCELLED.search(text)
        return "" if named is not None and named[1] in cancelled else text
    for pattern in (_ACTOR, _CALL):
        found = pattern.match(str(error)) or pattern.match(text)
        if found is not None:
            most = int(found[1])
            return f"{text} (there were {kills} kills)" if most < 0 or kills <= most else ""
    if isinstance(error, ActorDiedError) and "it cannot be rebuilt: " in text:
        cause = text.partition("it cannot be rebuilt: ")[2]
        strayed = _STRAYED.match(cause)
        if strayed is not None:
            teller = told.get(strayed[1])
            return "" if teller is not None and not teller.exact and kills else text
        kind = ObjectStoreFullError if "ObjectStoreFullError: " in cause else ObjectLostError
        return excuse(kind(cause), kills, deaths, puts, store_bytes, told, ended)
    if not isinstance(error, WorkerCrashedError | ObjectLostError):
        return text
    if isinstance(error, ObjectLostError):
        # What needs a lost input, or was to be yielded by what does, names the cause.
        blamed = _CAUSE.search(str(error))
        if blamed is not None:
            return excuse(ObjectLostError(blamed[1]), kills, deaths, puts, store_bytes, told, ended)
        lost = _OBJECT.search(str(error))
        if lost is not None and _LET_GO.search(str(error)):
            return "" if lost[1] in told and kills else text
        if not deaths:
            return f"{text} (no node died)"
        if lost is not None and lost[1] in puts and _NOT_BY_TASK.search(str(error)):
            return ""
        if lost is not None and _GONE_ON.search(str(error)):
            return "" if _may_go_on(told.get(lost[1]), ended) else f"{text} (it is replayed)"
    named = _TASK.search(str(error))
    if named is None:
        return f"{text} (it does not name its task)"
    retries = int(named[1])
    return f"{text} (there were {kills} kills)" if retries < 0 or kills <= retries else ""


def _may_go_on(teller: Teller | None, ended: Container[str]) -> bool:
    """Whether an actor may leave lost what its calls have made.

    One that starts again is told them all once more, and makes it again: unless it
    begins from a checkpoint, or has died for good, be it as the program has let go of it.
    """
    return teller is not None and (teller.interval > 0 or actor_name(teller) in ended)
