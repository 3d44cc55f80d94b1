"""Two drivers in virtual time: isolation, fair shares, and what the end of a job leaves."""

from __future__ import annotations

import random
from typing import Any

import pytest

import raytwin as ray
from raytwin.chaos.fuzz.oracle.invariants import at_end, settled
from raytwin.runtime.api.backend import ObjectRef
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
    for number, scheduler in session.cluster.schedulers.items():
        if f"node:{number}" not in session.cluster.processes:
            continue
        assert all(
            w.job == session.client.submitter.job
            for w in scheduler.dispatcher.workers.values()
            if w.job
        )
        assert not scheduler.objects.local._pins and not scheduler.objects.pulls._wanted
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


def test_objects_and_unnamed_actors_of_another_job_are_refused() -> None:
    session: Any = ray.init(backend="sim", nodes=2, cpus_per_node=4)
    ref = ray.put("mine")
    keeper = Keeper.remote()
    named = Keeper.options(name="named", namespace="all").remote()
    assert ray.get([keeper.keep.remote(1), named.keep.remote(1)]) == [1, 1]
    copied, actor = ref.binary(), keeper.__reduce__()

    def other() -> list[str]:
        here: Any = ray.put(0)._holder
        stolen = ObjectRef(copied, here)
        said = []
        for use in (
            lambda: ray.get(stolen),
            lambda: ray.get(work.remote(stolen)),
            lambda: ray.get(actor[0](*actor[1]).keep.remote(2)),
        ):
            try:
                said.append(str(use()))
            except ray.exceptions.RayError as error:
                said.append(type(error).__name__)
        ray.cancel(stolen, force=True)
        ray.kill(actor[0](*actor[1]))
        said.append(str(ray.get(ray.get_actor("named", namespace="all").keep.remote(2))))
        return said

    driver = session.cluster.run_driver(other)
    assert driver.wait() == [
        "ObjectOfOtherJobError", "ObjectOfOtherJobError", "ActorOfOtherJobError", "2",
    ]  # fmt: skip
    assert ray.get([keeper.keep.remote(3), named.keep.remote(3)]) == [2, 3]
    assert ray.get(ref) == "mine"
    assert session.query("event_counts")["refused"] == 2


@pytest.mark.parametrize("lifetime", [None, "detached"])
def test_placement_groups_of_another_job_are_refused_unless_detached(lifetime: Any) -> None:
    session: Any = ray.init(backend="sim", nodes=3, cpus_per_node=2)
    group = ray.util.placement_group([{"CPU": 2}] * 2, strategy="STRICT_SPREAD", lifetime=lifetime)
    assert group.wait(30)
    inside = PlacementGroupSchedulingStrategy(group, 0)
    keeper = Keeper.options(num_cpus=1, scheduling_strategy=inside).remote()
    assert ray.get(keeper.keep.remote(1)) == 1
    copied, make = group.__reduce__()[1], type(group)

    def other() -> list[str]:
        stolen = make(*copied)
        strategies = [PlacementGroupSchedulingStrategy(stolen, index) for index in (-1, 0, 1)]
        said = [str(len(ray.util.placement_group_table()))]
        for strategy in strategies:
            for use in (
                work.options(scheduling_strategy=strategy).remote,
                Keeper.options(scheduling_strategy=strategy, num_cpus=0).remote().keep.remote,
            ):
                try:
                    said.append(str(ray.get(use(7), timeout=20)))
                except ray.exceptions.PlacementGroupOfOtherJobError as error:
                    assert "belongs to job 1" in str(error)
                    said.append("refused")
        ray.util.remove_placement_group(stolen)
        ray.sleep(0.1)
        return said

    said = session.cluster.run_driver(other).wait()
    ray.sleep(1.0)
    if lifetime is None:
        assert said == ["0", *["refused"] * 6]
        assert ray.get(keeper.keep.remote(2)) == 2
        assert ray.util.placement_group_table(group)["state"] == "CREATED"
        assert session.query("event_counts")["refused"] == 1
    else:
        assert said == ["1", *["7", "1"] * 3]
        with pytest.raises(ray.exceptions.RayActorError):
            ray.get(keeper.keep.remote(2))
        assert ray.util.placement_group_table(group)["state"] == "REMOVED"


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


def test_who_holds_least_gets_the_next_lease() -> None:
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
