"""Deaths in a simulated cluster are charged to the tasks and actors that they hit, and to no other;
the bound within which a program has to end follows from the settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

import raytwin as ray
from raytwin.chaos.fuzz.generate.cases import STORE_BYTES, draw_case
from raytwin.chaos.fuzz.oracle.deaths import Deaths
from raytwin.chaos.fuzz.oracle.history import History
from raytwin.chaos.fuzz.oracle.legitimate_errors import Oracle, Verdict
from raytwin.chaos.fuzz.programs.program import LARGE_BYTES, Body, Call, Op
from raytwin.chaos.fuzz.run.campaign import OUTCOMES_MIN, Summary
from raytwin.chaos.fuzz.run.case_run import Report
from raytwin.chaos.fuzz.run.liveness import bound_s
from raytwin.runtime.api.options.scheduling_strategies import NodeAffinitySchedulingStrategy
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.gcs.object_reconstruction import UNREPORTED_TIMEOUTS
from raytwin.runtime.control.messages import AssignTasks, TaskExtra, TaskSpec

OPTIONS: list[dict[str, Any]] = [{}, {"gcs_replicas": 2, "gcs_shards": 2}]


@pytest.fixture(params=OPTIONS, ids=["one process", "chains of shards"])
def sim(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield ray.init(
        backend="sim", nodes=3, cpus_per_node=1, heartbeat_timeout_s=0.5, **request.param
    )
    ray.shutdown()


@ray.remote(max_retries=-1)
def nap(seconds: float) -> float:
    ray.sleep(seconds)
    return seconds


@ray.remote(max_restarts=-1, max_task_retries=-1)
class Counter:
    def add(self) -> int:
        return 1


def on(node: int, name: str) -> Any:
    where = NodeAffinitySchedulingStrategy(str(node), soft=True)
    return nap.options(name=name, scheduling_strategy=where)


def test_a_killed_worker_hits_what_it_runs(sim: Any) -> None:
    deaths = Deaths(sim.cluster)
    hit, spared = on(1, "hit").remote(1.0), on(2, "spared").remote(1.0)
    ray.sleep(0.5)
    for _ in range(2):
        running = [
            which
            for which, worker in enumerate(w for w in sim.cluster.workers.values() if w.node == 1)
            if worker.executor.running is not None
        ]
        sim.cluster.kill_worker(1, running[0])
        ray.sleep(0.3)
    ray.get([hit, spared])
    assert (deaths.hits("hit"), deaths.hits("spared"), deaths.total) == (2, 0, 2)


def test_a_dead_node_hits_what_was_there(sim: Any) -> None:
    deaths = Deaths(sim.cluster)
    hit = [on(1, "hit").remote(1.0), on(1, "queued").remote(1.0)]
    spared = on(2, "spared").remote(1.0)
    ray.sleep(0.5)
    before_s = ray.now()
    sim.cluster.kill_node(1)
    ray.get([*hit, spared])
    assert (deaths.hits("hit"), deaths.hits("queued"), deaths.hits("spared")) == (1, 1, 0)
    assert deaths.hits("hit", before_s - 0.1) == 0, "that is before its death"


def test_a_slow_node_is_as_dead_as_the_gcs_says(sim: Any) -> None:
    deaths = Deaths(sim.cluster)
    hit = on(1, "hit").remote(1.0)
    ray.sleep(0.5)
    sim.cluster.pause_node(1)
    ray.get(hit)
    sim.cluster.resume_node(1)
    ray.sleep(0.5)
    assert deaths.hits("hit") == 1
    assert [node for node, _ in deaths.nodes] == [1], "it is dead once, though it ended later"


def test_an_actor_is_hit_with_its_worker(sim: Any) -> None:
    deaths = Deaths(sim.cluster)
    first, second = (Counter.options(name=name).remote() for name in "ab")
    ray.get([first.add.remote(), second.add.remote()])
    sim.cluster.kill_actor(0)
    assert ray.get([first.add.remote(), second.add.remote()]) == [1, 1]
    assert deaths.hits("Counter") == 1, "the most of one actor of the class"


def test_a_restart_is_spent_on_a_node_that_died_before_the_actor_s_placement_left() -> None:
    """The head catches up: it places the actor, and hears of the node's death.

    The class has its restarts in its name, as those of random programs.
    """
    with ray.init(backend="sim", nodes=2, cpus_per_node=1, gcs_storage="any") as session:
        deaths = Deaths(session.cluster)
        once = type("a1r1", (), {"add": lambda self: 1})
        made = ray.remote(once).options(num_cpus=1, max_restarts=1, max_task_retries=-1)
        first = made.remote()
        assert ray.get(first.add.remote()) == 1
        session.cluster.pause_head()
        second = made.remote()
        ray.sleep(0.01)
        session.cluster.restart_node(1)
        ray.sleep(0.01)
        session.cluster.resume_head()
        assert ray.get(second.add.remote()) == 1
        session.cluster.kill_actor(1)
        with pytest.raises(ray.exceptions.ActorDiedError) as died:
            ray.get(second.add.remote())
        assert deaths.hits("a1r1") == 2
        assert Oracle(History(), deaths).judge(died.value) is Verdict.CHARGED


def test_each_death_costs_a_task_one_retry(sim: Any) -> None:
    """The task has its retries in its name, as those of random programs."""
    deaths = Deaths(sim.cluster)

    def k1r3() -> int:
        ray.sleep(1.0)
        return 1

    ref = ray.remote(k1r3).options(max_retries=3, resources={"node:1": 0.1}).remote()
    ray.sleep(0.1)
    assert deaths.left("k1r3") == 3
    sim.cluster.kill_worker(1)
    ray.sleep(0.3)
    assert deaths.left("k1r3") == 2
    sim.cluster.restart_node(1)
    ray.sleep(0.5)
    sim.cluster.kill_worker(1)
    assert ray.get(ref) == 1
    assert deaths.left("k1r3") in (0, 1), "the GCS does not hear of what a node retried itself"
    assert not deaths.found


def test_a_death_that_costs_two_retries_is_found(sim: Any) -> None:
    deaths = Deaths(sim.cluster)
    spec = TaskSpec(bytes(12), 0, 2, b"", b"", "driver", "", (), 1, 3, -1, "k1r3")
    for retries, attempt, found in ((3, 0, 0), (2, 1, 0), (1, 2, 0), (1, 1, 1)):
        again = msgspec.structs.replace(spec, retries=retries, extra=TaskExtra(attempt=attempt))
        for observe in sim.cluster.on_turn:
            observe("global", [], {"node:1": [AssignTasks([again], 1)]})
        assert len(deaths.found) == found


def test_a_campaign_that_excuses_too_much_fails() -> None:
    summary = Summary()
    report = Report(draw_case(1), outcomes=OUTCOMES_MIN)
    report.verdicts.update({Verdict.OWN: 500, Verdict.CHARGED: 400, Verdict.EXCUSED: 20})
    summary.add(report)
    assert not summary.excuses_too_much
    report.verdicts[Verdict.EXCUSED] = 21
    few = replace(report, outcomes=OUTCOMES_MIN - 1)
    for each, too_much in ((report, True), (few, False)):
        summary = Summary()
        summary.add(each)
        assert summary.excuses_too_much == too_much
    assert "500 were ended by their program, 400 lost to deaths" in str(summary)


def test_the_bound_follows_from_the_settings() -> None:
    case, config = draw_case(1), Config(heartbeat_timeout_s=0.5)
    slow = Config(heartbeat_timeout_s=3.0)
    # Nodes are declared dead twice, and what they had sent is waited for.
    limits = 2 + UNREPORTED_TIMEOUTS
    assert bound_s(case, slow) - bound_s(case, config) == pytest.approx(limits * 2.5)
    twice = replace(case, drivers=(*case.drivers, case.program))
    assert bound_s(twice, config) > bound_s(case, config)


def test_each_large_value_may_wait_for_room_in_a_small_store() -> None:
    """A task may map all of the store; then values are written in the file, one after another."""
    call = Call(1, nbytes=LARGE_BYTES)
    program = Body((Op("map", (), 1, call, 20), Op("put", (), 2, nbytes=LARGE_BYTES)))
    small = replace(draw_case(1), program=program, drivers=(), store_bytes=1_000_000)
    config = Config(allocate_wait_s=1.0, store_wait_s=0.5)
    more_s = bound_s(small, config) - bound_s(replace(small, store_bytes=STORE_BYTES), config)
    assert more_s == pytest.approx(2 * 21 * 1.0 + 0.5)
