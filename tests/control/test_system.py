"""The control plane as a whole, on random programs, clusters, delays and faults.

Held at every step, by the world itself: no node is oversubscribed, memory is
freed once and read only while it is there. Held at the end: the program's value
is the one of a sequential run, and every table is empty.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from raytwin.runtime.control.scheduling.policies import POLICIES
from tests.control.bodies import run_program, sequential
from tests.control.leftovers import leftovers
from tests.control.programs import chained_program, random_program, random_world
from tests.control.shell import Shell
from tests.control.values import TaskFailed
from tests.control.worker import Worker
from tests.control.world import World

SETTLE_S = 2.0
"""Longer than the timers that move something on."""
ORPHANED_S = 70.0
"""Longer than what a dead node's clients owned is kept."""


def settle(world: World, for_s: float = SETTLE_S) -> dict[str, Any]:
    """Let what is under way come to rest; return what is left behind."""
    world.run(
        until=lambda: not any(n.queue for at, n in world.nodes.items() if at not in world.cut)
    )
    world.run(for_s=for_s)
    return leftovers(world)


def healthy(seed: int, policy: str = "") -> None:
    """Run a random program on a random cluster where nothing breaks."""
    world, rng = random_world(seed, policy)
    driver = world.driver(rng.randrange(len(world.nodes)))
    world.run(for_s=rng.choice([0.0, 0.1]))
    demands = ["CPU:1", "CPU:1", "CPU:0.5", ""]
    if any("GPU" in node.resources for node in world.nodes.values()):
        demands.append("CPU:1,GPU:1")
    program = random_program(rng, demands=tuple(demands))
    assert driver.call(run_program(driver, program)) == sequential(program)
    late = {element: times for element, times in driver.results.items() if times != 1}
    assert not late, "a result came more than once"
    assert not settle(world)


def worker_kills(seed: int) -> None:
    """Kill workers at random while a random program runs."""
    world, rng = random_world(seed)
    driver = world.driver(rng.randrange(len(world.nodes)))
    program = random_program(rng)

    def kill() -> None:
        workers = sorted(a for a, shell in world.shells.items() if isinstance(shell, Worker))
        if workers:
            world.kill_worker(rng.choice(workers))

    for _ in range(rng.randint(1, 6)):
        world.at(rng.expovariate(8.0), kill)
    finish(world, driver, program)
    assert not settle(world, ORPHANED_S)


def node_kills(seed: int) -> None:
    """Kill nodes, but for the driver's, or cut them off, while a random program runs."""
    world, rng = random_world(seed)
    driver = world.driver(0)
    program = random_program(rng)

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
        world.at(rng.expovariate(8.0), kill)
    finish(world, driver, program)
    assert not settle(world, ORPHANED_S)


def values_lost(seed: int) -> int:
    """Kill nodes with values that are needed again; return how many tasks ran again."""
    world, rng = random_world(seed, rows=[{"CPU": 1.0}] * random.Random(seed).randint(3, 6))
    driver = world.driver(0)
    program = chained_program(rng)
    joined = len(world.nodes)

    def kill() -> None:
        victims = sorted(set(world.nodes) - {0} - world.cut)
        if len(victims) < 2:
            return
        victim = rng.choice(victims)
        if rng.random() < 0.2:
            world.cut_node(victim)
        else:
            world.kill_node(victim, noticed=rng.random() < 0.7)

    def join() -> None:
        nonlocal joined
        world.add_node(joined, {"CPU": 1.0})
        joined += 1

    for _ in range(rng.randint(1, 5)):
        world.at(rng.expovariate(4.0), kill)
        world.at(rng.expovariate(4.0), join)
    assert driver.call(run_program(driver, program)) == sequential(program)
    assert not settle(world, ORPHANED_S)
    return world.gcs.events.counts["task_reconstructed"]


def finish(world: World, driver: Shell, program: list[Any]) -> None:
    """Run a program that faults may break; it ends with its value or a clear error."""
    try:
        assert driver.call(run_program(driver, program)) == sequential(program)
    except TaskFailed as error:
        assert error.text.startswith(("WorkerCrashedError", "ObjectLostError")), error.text


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("case", range(12))
def test_every_program_ends_and_leaves_nothing(policy: str, case: int) -> None:
    healthy(1000 * case + list(POLICIES).index(policy), policy)


@pytest.mark.parametrize("seed", [*range(60), 241])
def test_workers_may_die(seed: int) -> None:
    worker_kills(seed)


@pytest.mark.parametrize("seed", [*range(60), 152, 242, 891])
def test_nodes_may_die(seed: int) -> None:
    node_kills(seed)


@pytest.mark.parametrize("seed", [*range(60), 625, 967])
def test_lost_values_are_reconstructed(seed: int) -> None:
    values_lost(seed)


def test_one_seed_is_one_execution() -> None:
    """Else a seed that fails would be of no use."""
    traces = []
    for _ in range(2):
        world, rng = random_world(7)
        driver = world.driver(0)
        driver.call(run_program(driver, random_program(rng)))
        traces.append([(t, s, d, repr(m)) for t, s, d, m in world.trace])
    assert traces[0] == traces[1] and len(traces[0]) > 100
