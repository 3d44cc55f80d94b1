"""Two drivers in virtual time: isolation, fair shares, and the end of a job."""

from __future__ import annotations

import random
from typing import Any

import pytest

import raytwin as ray
from raytwin.chaos.fuzz.oracle.invariants import at_end, settled
from raytwin.runtime.api.options.scheduling_strategies import PlacementGroupSchedulingStrategy
from raytwin.runtime.control.core.ids import job_number


@ray.remote
def work(x: Any, seconds: float = 0.01) -> Any:
    ray.sleep(seconds)
    return x


@ray.remote
def parent(count: int, seconds: float) -> list[Any]:
    return ray.get([work.remote(i, seconds) for i in range(count)])


@ray.remote
class Keeper:
    def __init__(self) -> None:
        self.kept: list[Any] = []

    def keep(self, *values: Any) -> int:
        self.kept += values
        return len(self.kept)

    def all(self) -> list[Any]:
        return self.kept

    def make(self) -> Any:
        return ray.get([work.remote(3), ray.put(bytes(300_000))])[0]


def load(rng: random.Random) -> None:
    """Begin some of everything, and leave it under way."""
    kept: list[Any] = [ray.put(bytes(rng.randrange(300_000))) for _ in range(3)]
    actors = [Keeper.options(num_cpus=0).remote() for _ in range(rng.randrange(3))]
    actors.append(Keeper.options(num_cpus=0, name="keeper", max_restarts=2).remote())
    group = ray.util.placement_group([{"CPU": 1}] * rng.randint(1, 2), strategy="SPREAD")
    for number in range(rng.randint(5, 40)):
        what = rng.randrange(6)
        seconds = rng.choice([0.001, 0.05, 1.0, 50.0])
        if what == 0:
            kept.append(work.map(range(rng.randint(1, 500))))
        elif what == 1:
            kept.append(work.remote(kept[0], seconds))
        elif what == 2:
            kept.append(parent.remote(3, seconds))
        elif what == 3:
            kept.append(rng.choice(actors).keep.remote(number, kept[1]))
        elif what == 4:
            kept.append(work.options(scheduling_strategy="SPREAD").remote(bytes(200_000), seconds))
        else:
            kept.append(work.options(num_cpus=rng.choice([0, 1, 99])).remote(number, seconds))
        if rng.random() < 0.3:
            ray.sleep(rng.random() / 10)
    group.ready()
    ray.sleep(rng.random() * 2)


def clean(session: Any) -> None:
    assert settled(lambda: at_end(session), ray.sleep) == []
    for number, scheduler in session.cluster.node_managers.items():
        if f"node:{number}" not in session.cluster.processes:
            continue
        assert all(
            w.job == session.client.submitter.job
            for w in scheduler.dispatcher.workers.values()
            if w.job
        )
        assert not scheduler.objects.memory._pins and not scheduler.objects.pulls._wanted
        assert {job_number(key) for key in scheduler.inputs.functions} <= {1}
    gcs = session.cluster.gcs
    assert not gcs.table.store.tombstones and not gcs.table.waiters.arrays
    assert {key for key in gcs.functions.blobs if job_number(key) != 1} == set()


@pytest.mark.parametrize("number", [*range(12), 139])
def test_whenever_a_driver_is_killed_its_job_leaves_nothing(number: int) -> None:
    rng = random.Random(number)
    session = ray.init(backend="sim", nodes=3, cpus_per_node=2, seed=number)
    mine = [work.remote(x, 0.2) for x in range(10)]
    driver = session.cluster.run_driver(lambda: load(rng))
    ray.sleep(rng.random() * 3)
    driver.kill()
    assert ray.get([work.remote(x) for x in range(50)]) == list(range(50))
    assert ray.get(mine) == list(range(10))
    del mine
    if not driver.job:
        return  # it was killed at the door
    assert [row[5] for row in session.query("jobs") if row[0] == driver.job] == [False]
    clean(session)


@pytest.mark.parametrize("seed", range(4))
def test_two_jobs_side_by_side_and_one_node_dies(seed: int) -> None:
    session: Any = ray.init(backend="sim", nodes=4, cpus_per_node=2, seed=seed)
    driver = session.cluster.run_driver(lambda: ray.get([parent.remote(6, 0.1)] * 1))
    mine = [parent.remote(6, 0.1) for _ in range(4)]
    ray.sleep(0.15)
    session.cluster.kill_node(1 + seed % 3)
    assert ray.get(mine) == [list(range(6))] * 4
    assert driver.wait() == [list(range(6))]
    del mine
    clean(session)


def test_references_from_another_job_can_be_used() -> None:
    """As in Ray: a reference, an unnamed actor, a placement group."""
    session: Any = ray.init(backend="sim", nodes=3, cpus_per_node=2)
    small, large = ray.put("mine"), ray.put(bytes(200_000))
    keeper = Keeper.remote()
    group = ray.util.placement_group([{"CPU": 1}])
    assert group.wait(30)
    box = Keeper.options(name="box", namespace="all").remote()
    ray.get(box.keep.remote([small, large, keeper, group]))
    inside = PlacementGroupSchedulingStrategy(group)

    def other() -> list[Any]:
        box = ray.get_actor("box", namespace="all")
        [[small, large, keeper, group]] = ray.get(box.all.remote())
        placed = work.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group))
        refs = [small, work.remote(small), keeper.keep.remote(2), placed.remote(7)]
        return [len(ray.get(large)), *ray.get(refs)]

    assert session.cluster.run_driver(other).wait() == [200_000, "mine", "mine", 1, 7]
    assert ray.get([small, work.options(scheduling_strategy=inside).remote(8)]) == ["mine", 8]
    assert ray.get(keeper.keep.remote(3)) == 2


def test_objects_of_an_ended_job_are_lost() -> None:
    session: Any = ray.init(backend="sim", nodes=3, cpus_per_node=2)
    box = Keeper.options(name="box", namespace="all").remote()

    def other() -> None:
        box = ray.get_actor("box", namespace="all")
        refs = [ray.put("theirs"), ray.put(bytes(200_000)), work.remote(1)]
        ray.wait(refs, num_returns=3)
        ray.get(box.keep.remote(*[[ref] for ref in refs]))

    session.cluster.run_driver(other).wait()
    ray.sleep(1.0)
    for [ref] in ray.get(box.all.remote()):
        with pytest.raises(ray.exceptions.ObjectLostError):
            ray.get(ref, timeout=100)


def test_a_group_ends_with_its_job_and_its_name_is_free() -> None:
    session: Any = ray.init(backend="sim", nodes=2, cpus_per_node=2)

    def other() -> Any:
        group = ray.util.placement_group([{"CPU": 2}], name="g")
        assert group.wait(30)
        return group.__reduce__()[1], type(group)

    copied, make = session.cluster.run_driver(other).wait()
    ray.sleep(1.0)
    assert session.query("groups") == []
    with pytest.raises(ray.exceptions.TaskPlacementGroupRemoved):
        ray.get(make(*copied).ready(), timeout=20)
    assert ray.util.placement_group([{"CPU": 2}] * 2, name="g").wait(30)


def remove_a_group() -> None:
    ray.util.remove_placement_group(ray.util.placement_group([{"CPU": 2}], lifetime="detached"))


def kill_an_actor() -> None:
    keeper = Keeper.options(name="kept", lifetime="detached").remote()
    ray.get(keeper.keep.remote(1))
    ray.kill(keeper)


@pytest.mark.parametrize("program", [remove_a_group, kill_an_actor])
def test_what_a_driver_has_ended_last_is_gone(program: Any) -> None:
    session: Any = ray.init(backend="sim", nodes=2, cpus_per_node=2)
    session.cluster.run_driver(program).wait()
    ray.sleep(1.0)
    clean(session)


def test_what_a_driver_has_submitted_last_arrives_before_its_end() -> None:
    session: Any = ray.init(backend="sim", nodes=2, cpus_per_node=2)
    session.cluster.run_driver(Keeper.options(lifetime="detached").remote).wait()
    ray.sleep(1.0)
    assert [row[3] for row in session.query("actors")] == ["alive"]


def test_the_job_with_the_least_cpus_gets_the_next_lease() -> None:
    """A job with few tasks is not behind all of one that came first with many."""
    session: Any = ray.init(backend="sim", nodes=1, cpus_per_node=4)
    flood = work.map(range(4000))
    ray.sleep(1.0)
    driver = session.cluster.run_driver(lambda: ray.get(work.map(range(40))))
    began_s = ray.now()
    driver.wait()
    # Half of the node is its own: 40 tasks of 10 ms on two slots. Behind the flood it
    # would have been ten seconds.
    assert ray.now() - began_s < 1.0
    assert ray.get(flood) == list(range(4000))


def test_a_detached_actor_keeps_what_is_its_own() -> None:
    session: Any = ray.init(backend="sim", nodes=2, cpus_per_node=2)

    def other() -> None:
        keeper = Keeper.options(
            name="stays", namespace="all", lifetime="detached", max_restarts=1
        ).remote()
        ray.get(keeper.keep.remote(1))

    driver = session.cluster.run_driver(other)
    driver.wait()
    ray.sleep(1.0)
    keeper = ray.get_actor("stays", namespace="all")
    assert ray.get(keeper.keep.remote(2)) == 2
    assert ray.get(keeper.make.remote()) == 3
    ray.kill(keeper, no_restart=False)
    ray.sleep(1.0)
    assert ray.get(keeper.make.remote()) == 3
    ray.kill(keeper)
    ray.sleep(1.0)
    assert session.query("event_counts")["job_ended"] == 2
    del keeper
    clean(session)


@ray.remote(num_cpus=0, max_restarts=-1)
class Reader:
    def __init__(self, value: Any, boxes: list[Any]) -> None:
        self.read = [value, *ray.get(boxes)]

    def all(self) -> list[Any]:
        return self.read


def test_the_inputs_of_actors_that_may_restart_go_with_the_job() -> None:
    session: Any = ray.init(backend="sim", nodes=2, cpus_per_node=2)

    def program() -> None:
        plain = Reader.remote(work.remote(1), [ray.put(2)])
        options = {"name": "stays", "namespace": "all", "lifetime": "detached"}
        detached = Reader.options(**options).remote(ray.put(3), [work.remote(bytes(300_000))])
        assert ray.get(plain.all.remote()) == [1, 2]
        assert ray.get(detached.all.remote()) == [3, bytes(300_000)]

    session.cluster.run_driver(program).wait()
    reader = ray.get_actor("stays", namespace="all")
    assert ray.get(reader.all.remote()) == [3, bytes(300_000)]
    ray.kill(reader)
    del reader
    clean(session)
