"""Actors under random delays and faults, in the world of these tests.

An actor's state is the list of tags that it was told, so whatever took effect
twice, never, or in another order shows in what it remembers. Held at the end:
every table is empty, on every node and in the GCS.
"""

from __future__ import annotations

import random

import pytest

from tests.control.programs import random_body, random_world
from tests.control.shell import Ref, Shell
from tests.control.test_system import ORPHANED_S, SETTLE_S, settle
from tests.control.values import INLINE_BYTES_MAX, Code, TaskFailed
from tests.control.worker import Worker
from tests.control.world import World

FOREVER = -1
DIED, UNAVAILABLE = "ActorDiedError", "ActorUnavailableError"


class Told:
    """One actor, and what became of each call of it."""

    def __init__(self, ref: Ref, restarts: int, retries: int) -> None:
        self.ref = ref
        self.restarts = restarts
        self.retries = retries
        self.calls: list[tuple[int, Ref]] = []
        """The driver's: (tag, result)."""
        self.tasks: list[tuple[list[int], Ref]] = []
        """Tasks that call it: (tags, result)."""
        self.outcome: dict[int, str] = {}
        """By tag: empty, or the error's name."""
        self.history: list[int] | None = None
        """None: it is dead."""


def outcome_of(shell: Shell, ref: Ref) -> Code:
    """Generator: return (value, "") or (None, the error's name)."""
    try:
        (value,) = yield from shell.get([ref.oid])
    except TaskFailed as error:
        return None, error.text.partition(":")[0]
    return value, ""


def talk(
    shell: Shell, rng: random.Random, actors: int, calls: int, nested: int, large: bool,
    large_told: bool,
) -> Code:  # fmt: skip
    """Generator: create actors, call them in many ways, return what became of it."""
    told = []
    # One actor may hold a CPU for life, where that leaves one to every task.
    roomy = all(node.resources["CPU"] > 1 for node in shell.world.nodes.values())
    demands = ["", "CPU:1"] if roomy else [""]
    for _ in range(actors):
        restarts = rng.choice([0, 1, FOREVER, FOREVER])
        interval = rng.choice([0, 0, 1, 3]) if restarts else 0
        deps = []
        if rng.random() < 0.3:
            deps.append((yield from shell.put([1, 500], 500)))
        ref = shell.create_actor(
            restarts=restarts, interval=interval, demand=rng.choice(demands),
            deps=[dep.oid for dep in deps],
        )  # fmt: skip
        demands = [""]
        for dep in deps:
            dep.drop()
        told.append(Told(ref, restarts, rng.choice([0, 2, FOREVER]) if restarts else 0))
    tag = 0
    for _ in range(calls):
        actor = rng.choice(told)
        kind = rng.choices(["call", "task", "sleep"], [6, 1, 2])[0]
        if kind == "sleep":
            yield rng.choice([0.0, 0.001, 0.02, 0.1])
        elif kind == "task":
            tags = [tag + n for n in range(rng.randint(1, 3))]
            tag += len(tags)
            size = INLINE_BYTES_MAX + 1 if large_told and rng.random() < 0.7 else 0
            calls_of = [[actor.ref.oid, t, actor.retries, actor.restarts, size] for t in tags]
            # The driver holds the actor until the task is done.
            body = {"tell": calls_of}
            if large_told:
                body["s_after"] = rng.choice([0.0, 0.05])
            (ref,) = shell.submit(body, demand="CPU:1")
            actor.tasks.append((tags, ref))
        else:
            body = random_body(rng, depth=nested, short=True) if rng.random() < 0.2 else {}
            if rng.random() < 0.3:
                body["s"] = rng.choice([0.001, 0.01])
            if large and rng.random() < 0.2:
                body["size"] = INLINE_BYTES_MAX + 1
            elif not nested:
                body.pop("size", None)
            dep = None
            if rng.random() < 0.3:
                size = rng.choice([0, 500])
                dep = yield from shell.put([7, size] if size else 7, size)
            call = shell.tell(
                actor.ref.oid, {**body, "tag": tag}, deps=[dep.oid] if dep else [],
                retries=actor.retries, restarts=actor.restarts,
            )  # fmt: skip
            if dep is not None:
                dep.drop()
            actor.calls.append((tag, call))
            tag += 1
    for actor in told:
        yield from conclude(shell, actor)
    return told


def conclude(shell: Shell, actor: Told) -> Code:
    """Generator: collect what became of an actor's calls, read it, let go of it."""
    for tag, ref in actor.calls:
        _, actor.outcome[tag] = yield from outcome_of(shell, ref)
        ref.drop()
    for tags, ref in actor.tasks:
        _, error = yield from outcome_of(shell, ref)
        ref.drop()
        for tag in tags:
            actor.outcome[tag] = error and f"task:{error}"
    last = shell.tell(actor.ref.oid, {"read": 1}, retries=FOREVER, restarts=actor.restarts)
    read, error = yield from outcome_of(shell, last)
    actor.history = read and read["history"]
    last.drop()
    assert error in ("", DIED), error
    actor.ref.drop()


def check(actor: Told, allowed: set[str]) -> None:
    """What the actor remembers is what its callers were told, each once, in order."""
    assert set(actor.outcome.values()) <= {""} | allowed, actor.outcome
    driver = [tag for tag, _ in actor.calls]
    ok = [tag for tag in driver if not actor.outcome[tag]]
    died = [tag for tag in driver if actor.outcome[tag] == DIED]
    if actor.history is None:
        assert actor.restarts != FOREVER or DIED in allowed
        return
    assert not died, "a living actor's call failed for its death"
    history = actor.history
    assert len(set(history)) == len(history), "a call took effect twice"
    # A call whose large value, or input, was lost with its node may have taken effect, and so may
    # one without retries that was under way when its actor died.
    lost = {tag for tag in driver if actor.outcome[tag] in ("ObjectLostError", UNAVAILABLE)}
    assert [tag for tag in history if tag in set(driver) - lost] == ok
    for tags, _ in actor.tasks:
        seen = [tag for tag in history if tag in tags]
        assert seen == sorted(seen), "a task's calls changed places"
        if not actor.outcome[tags[0]]:
            assert seen == tags
    unknown = set(history) - set(driver) - {t for tags, _ in actor.tasks for t in tags}
    assert not unknown


def converse(
    world: World, rng: random.Random, driver: Shell, allowed: set[str], nested: int = 0,
    large: bool = False, large_told: bool = False,
) -> list[Told]:  # fmt: skip
    """Run `talk` on a world whose faults are set; check what it did.

    ``nested``: calls may submit tasks, and those tasks of their own, so deep. What
    becomes of them when the actor dies is not in here. ``large``: calls may return
    large values; ``large_told``: so may those of tasks.
    """
    talking = talk(driver, rng, rng.randint(1, 3), rng.randint(5, 40), nested, large, large_told)
    told: list[Told] = driver.call(talking)
    for actor in told:
        check(actor, allowed)
    return told


# -- random runs ---------------------------------------------------------------


@pytest.mark.parametrize("seed", range(100))
def test_nothing_breaks(seed: int) -> None:
    world, rng = random_world(seed)
    driver = world.driver(rng.randrange(len(world.nodes)))
    for actor in converse(world, rng, driver, set(), nested=1):
        assert actor.history is not None
        assert sorted(actor.history) == sorted(actor.outcome)
    assert not settle(world, SETTLE_S)


def kill_processes(world: World, rng: random.Random, most: int) -> None:
    """Set faults: workers die, those that are actors more often."""

    def kill() -> None:
        workers = [(shell.history is not None, a) for a, shell in world.shells.items() if
                   isinstance(shell, Worker)]  # fmt: skip
        actors = sorted(address for is_actor, address in workers if is_actor)
        if actors and rng.random() < 0.8:
            world.kill_worker(rng.choice(actors))
        elif workers:
            world.kill_worker(rng.choice(sorted(workers))[1])

    for _ in range(rng.randint(1, most)):
        world.at(rng.expovariate(4.0), kill)


def kill_nodes(world: World, rng: random.Random) -> None:
    """Set faults: nodes die, noticed or not, or nothing reaches them any more."""

    def kill() -> None:
        victims = sorted(set(world.nodes) - {0} - world.cut)
        if not victims:
            return
        victim = rng.choice(victims)
        if rng.random() < 0.3:
            world.cut_node(victim)
        else:
            world.kill_node(victim, noticed=rng.random() < 0.6)

    for _ in range(rng.randint(1, 3)):
        world.at(rng.expovariate(6.0), kill)


def left_by_nodes(world: World) -> list[str]:
    # As for tasks: a row of what a dead node's client had submitted may stay.
    small = ("gcs.arrays", "._results", "._runs", "._known")
    return [name for name in settle(world, ORPHANED_S) if not name.endswith(small)]


WORKERS_DIED = {DIED, UNAVAILABLE} | {
    f"task:{name}" for name in (DIED, UNAVAILABLE, "WorkerCrashedError")
}
NODES_DIED = WORKERS_DIED | {"ObjectLostError", "task:ObjectLostError"}


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("seed", [*range(150), 814, 1390])
def test_workers_and_actors_may_die(seed: int, large: bool) -> None:
    world, rng = random_world(seed)
    driver = world.driver(rng.randrange(len(world.nodes)))
    kill_processes(world, rng, 8)
    for actor in converse(world, rng, driver, WORKERS_DIED, large=large):
        if actor.restarts == FOREVER:
            assert actor.history is not None
        if actor.retries == FOREVER:
            assert UNAVAILABLE not in actor.outcome.values()
    assert not settle(world, ORPHANED_S)


@pytest.mark.parametrize("seed", range(150))
def test_nodes_may_die(seed: int) -> None:
    world, rng = random_world(seed)
    driver = world.driver(0)
    kill_nodes(world, rng)
    converse(world, rng, driver, NODES_DIED)
    assert left_by_nodes(world) == []


@pytest.mark.parametrize("seed", [*range(100), 175, 1174])
def test_nodes_and_actors_may_die_and_large_results_with_them(seed: int) -> None:
    world, rng = random_world(seed)
    driver = world.driver(0)
    kill_nodes(world, rng)
    kill_processes(world, rng, 5)
    converse(world, rng, driver, NODES_DIED, large=True)
    assert left_by_nodes(world) == []


@pytest.mark.parametrize("nodes_die", [False, True])
@pytest.mark.parametrize("seed", range(100))
def test_tasks_that_get_large_results_of_actors_may_run_again(seed: int, nodes_die: bool) -> None:
    """What their first runs have let go of may be lost; nothing else is."""
    world, rng = random_world(seed)
    driver = world.driver(0)
    if nodes_die:
        kill_nodes(world, rng)
    kill_processes(world, rng, 8)
    allowed = (NODES_DIED if nodes_die else WORKERS_DIED) | {"task:ObjectLostError"}
    converse(world, rng, driver, allowed, large=True, large_told=True)
    assert left_by_nodes(world) == [] if nodes_die else not settle(world, ORPHANED_S)


@pytest.mark.parametrize("restarts", [0, 1])
@pytest.mark.parametrize("node_dies", [False, True])
def test_the_notice_of_a_death_overtakes_no_result(restarts: int, node_dies: bool) -> None:
    """What took effect before it is told, though the link it comes by is slow."""
    world = World([{"CPU": 1.0}, {"CPU": 1.0, "A": 1.0}])
    driver = world.driver(0)

    def program() -> Code:
        ref = driver.create_actor(restarts=restarts, demand="A:1")
        yield from driver.get([driver.tell(ref.oid, {"tag": 0}, restarts=restarts).oid])
        last = driver.tell(ref.oid, {"tag": 1}, restarts=restarts)
        never = driver.tell(ref.oid, {"tag": 2, "s": 60.0}, restarts=restarts)
        driver.client.buffer.flush()
        world._links["node:1", "node:0"] = world.time_s + 1.0
        yield 0.1
        (address,) = [a for a, shell in world.shells.items() if shell.history is not None]
        world.kill_worker(address)
        if restarts:
            yield 0.1
            again = [a for a, shell in world.shells.items() if shell.history is not None]
            world.kill_worker(again[0])
        yield 0.2
        if node_dies:
            world.cut_node(1)
        outcomes = []
        for call in (last, never):
            outcomes.append((yield from outcome_of(driver, call))[1])
        return outcomes

    assert driver.call(program()) == ([UNAVAILABLE] * 2 if restarts else ["", DIED])
    assert not world.nodes[0].pending_calls._draining
