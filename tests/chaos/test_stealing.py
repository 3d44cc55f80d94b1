"""Work stealing under deaths: of the thief, of the victim, and in the fuzz's programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import raytwin as ray
from raytwin.chaos.fuzz.generate.cases import draw_case
from raytwin.chaos.fuzz.run.case_run import run_case
from raytwin.runtime.api.options.scheduling_strategies import NodeAffinitySchedulingStrategy
from raytwin.runtime.control.local_scheduler.stealing import Stealing

OPTIONS: list[dict[str, Any]] = [{}, {"gcs_replicas": 2, "gcs_shards": 2}]
TASKS = 60
TASK_S = 0.05


@pytest.fixture
def stolen(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """The elements that each node has given to thieves."""
    given: Counter[int] = Counter()
    give = Stealing._give

    def counted(self: Stealing, available: dict[str, float]) -> list[Any]:
        ranges = give(self, available)
        given[self._members.me] += sum(spec.count for spec in ranges)
        return ranges

    monkeypatch.setattr(Stealing, "_give", counted)
    return given


@pytest.fixture(params=OPTIONS, ids=["one process", "chains of shards"])
def sim(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield ray.init(
        backend="sim", nodes=4, cpus_per_node=1, heartbeat_timeout_s=0.5, seed=3,
        policy="work-stealing", **request.param,
    )  # fmt: skip
    ray.shutdown()


@ray.remote(max_retries=-1)
def nap(number: int) -> tuple[int, int]:
    ray.sleep(TASK_S)
    return number, int(ray.get_runtime_context().get_node_id())


@ray.remote(max_retries=-1, num_cpus=0)
def parent() -> list[tuple[int, int]]:
    return ray.get([nap.remote(n) for n in range(TASKS)])


def on(node: int, soft: bool = True) -> dict[str, Any]:
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(str(node), soft=soft)}


def test_idle_nodes_take_what_one_node_has(sim: Any, stolen: Counter[int]) -> None:
    began_s = ray.now()
    found = ray.get([nap.remote(n) for n in range(TASKS)])
    assert [number for number, _ in found] == list(range(TASKS))
    ran = Counter(node for _, node in found)
    assert set(ran) == {0, 1, 2, 3} and max(ran.values()) <= 1.3 * TASKS / 4
    assert ray.now() - began_s < 1.3 * TASKS * TASK_S / 4
    assert stolen[0] >= TASKS / 2


def test_tasks_with_a_strategy_run_where_it_says(sim: Any, stolen: Counter[int]) -> None:
    bound = [nap.options(**on(0, soft)).remote(n) for n in range(10) for soft in (True, False)]
    assert {node for _, node in ray.get(bound)} == {0}
    assert not stolen.total()


def test_what_a_dead_thief_has_stolen_runs_again(sim: Any, stolen: Counter[int]) -> None:
    refs = [nap.remote(n) for n in range(TASKS)]
    ray.sleep(3 * TASK_S)
    assert stolen[0]
    before = Counter(node for _, node in ray.get(ray.wait(refs, num_returns=8)[0]))
    assert before[2], "it has run some"
    sim.cluster.kill_node(2)
    found = ray.get(refs)
    assert [number for number, _ in found] == list(range(TASKS))
    assert sum(node == 2 for _, node in found) < TASKS / 4, "and it had more"


def test_what_a_dead_victim_had_runs_as_often_as_it_has_to(sim: Any, stolen: Counter[int]) -> None:
    ref = parent.options(**on(1)).remote()
    ray.sleep(4 * TASK_S)
    assert stolen[1], "the others have stolen its children"
    sim.cluster.kill_node(1)
    found = ray.get(ref)
    assert [number for number, _ in found] == list(range(TASKS))
    assert 1 not in {node for _, node in found}


@pytest.mark.parametrize(
    "start", [0, 20, *(pytest.param(at, marks=pytest.mark.slow) for at in range(1_000, 1_080, 40))]
)
def test_random_programs_survive_faults_while_nodes_steal(start: int, stolen: Counter[int]) -> None:
    for seed in range(start, start + (10 if start < 1_000 else 40)):
        report = run_case(replace(draw_case(seed), policy="work-stealing"))
        assert [str(failure) for failure in report.failures] == [], f"seed {seed}"
    assert stolen.total()
