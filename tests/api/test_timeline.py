"""`ray.timeline()`: the trace of a run, on real processes and in virtual time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raytwin as ray
from tests.processes.helpers import eventually
from tests.trace_format import check, named

Start = Callable[..., Any]
LARGE = 30_000
"""Elements of an array that does not fit into a message."""


@pytest.fixture(params=["sim", "local"])
def start(request: pytest.FixtureRequest) -> Iterator[Start]:
    yield lambda **options: ray.init(backend=request.param, **options)
    ray.shutdown()


def trace() -> list[dict[str, Any]]:
    events = ray.timeline()
    assert events is not None
    check(events)
    return events


@ray.remote(name="mapper", resources={"M": 1})
def mapper(i: int) -> Any:
    ray.sleep(0.01)
    return np.full(LARGE, i)


@ray.remote(name="reducer", resources={"R": 1})
def reducer(*parts: Any) -> int:
    return sum(int(part[0]) for part in parts)


@ray.remote(name="total")
def total(*sums: int) -> int:
    return sum(sums)


def map_reduce() -> int:
    maps = mapper.map(range(6))
    sums = [reducer.remote(*maps[at::2]) for at in range(2)]
    return int(ray.get(total.remote(*sums)))


ONE_WAY = [{"CPU": 2}, {"CPU": 2, "M": 2}, {"CPU": 2, "R": 2}]
"""What mappers make has to move to the reducers."""


def test_map_reduce(start: Start, tmp_path: Path) -> None:
    start(nodes=ONE_WAY)
    assert map_reduce() == 15
    events = trace()

    mapped = named(events, "mapper")
    assert {event["pid"] for event in mapped} == {"node 1"}
    assert len({event["args"]["array"] for event in mapped}) == 1
    elements = [
        index
        for event in mapped
        for index in range(event["args"]["start"], event["args"]["start"] + event["args"]["tasks"])
    ]
    assert sorted(elements) == list(range(6))
    assert [event["args"]["inputs"] for event in named(events, "reducer")] == [3, 3]
    assert all(event["cat"] == "task" and event["args"]["attempt"] == 0 for event in mapped)
    # Two at a time: the last ones have waited for as long as the first ones ran.
    assert max(event["args"]["queued_ms"] for event in mapped) >= 20

    moved = [event for event in events if event["cat"] == "transfer"]
    assert len(moved) == 6
    assert {event["pid"] for event in moved} == {"node 2"}
    assert {event["args"]["from"] for event in moved} == {"node 1"}
    assert all(event["args"]["bytes"] >= 8 * LARGE for event in moved)
    assert {event["args"]["object"][:24] for event in moved} == {mapped[0]["args"]["array"]}

    placed = named(events, "mapper to node 1", "i")
    assert sum(event["args"]["tasks"] for event in placed) == 6
    assert all(event["cat"] == "placement" for event in placed)
    assert len([e for e in events if e["name"].startswith("node_added")]) == 3

    path = tmp_path / "t.json"
    assert ray.timeline(str(path)) is None
    assert json.loads(path.read_text()) == events


def test_reconstructed_values_are_marked_as_re_executed(start: Start) -> None:
    nodes = [{"CPU": 1, "R": 2}, {"CPU": 2, "M": 2}, {"CPU": 2, "M": 2}]
    session = start(nodes=nodes, heartbeat_timeout_s=1.0)
    maps = mapper.map(range(4))
    ray.wait(list(maps), num_returns=4, fetch_local=False)
    session.cluster.kill_node(2)
    assert ray.get(reducer.remote(*maps)) == 6
    events = trace()
    again = [event for event in named(events, "mapper") if event["args"]["attempt"]]
    assert again
    for event in again:
        assert event["cat"] == "task,re-execution"
        assert event["cname"] == "bad"
        assert event["pid"] == "node 1"
    [died] = named(events, "node_died node:2", "i")
    assert died["pid"] == "node 2"
    made = [e for e in events if e["cat"] == "event" and e["args"]["kind"] == "task_reconstructed"]
    assert made and {event["pid"] for event in made} == {"cluster"}


def test_a_worker_that_died_and_an_error_of_the_tasks_own(start: Start, tmp_path: Path) -> None:
    session = start(nodes=1, cpus_per_node=1)
    begun = tmp_path / "begun"

    @ray.remote(name="unlucky")
    def unlucky() -> int:
        begun.touch()
        ray.sleep(1)
        return 1

    @ray.remote(name="fussy", max_retries=1, retry_exceptions=True)
    def fussy() -> None:
        raise ValueError("never")

    ref = unlucky.remote()
    while not begun.exists():
        assert ray.wait([ref], timeout=0.05)[0] == []
    session.cluster.kill_worker(0)
    assert ray.get(ref) == 1
    with pytest.raises(ValueError, match="never"):
        ray.get(fussy.remote())
    events = trace()
    [ran] = named(events, "unlucky")
    assert (ran["cat"], ran["args"]["attempt"]) == ("task,re-execution", 1)
    tries = [(event["cat"], event["args"]["attempt"]) for event in named(events, "fussy")]
    assert tries == [("task,error", 0), ("task,re-execution,error", 1)]
    kinds = [event["args"]["kind"] for event in events if event["cat"] == "event"]
    assert kinds.count("worker_died") == 1
    assert kinds.count("task_retried") == 2
    [died] = [e for e in events if e["name"].startswith("worker_died")]
    assert died["pid"] == "node 0"


@ray.remote(name="Sum", max_restarts=-1, max_task_retries=-1)
class Sum:
    def __init__(self) -> None:
        self.n = 0

    def add(self, x: int) -> int:
        self.n += x
        return self.n


def test_a_restarted_actor_replays(start: Start) -> None:
    start(nodes=2, cpus_per_node=2)
    actor = Sum.remote()
    first = total.remote(1, 2)
    assert ray.get([actor.add.remote(first), actor.add.remote(1)]) == [3, 4]
    ray.kill(actor, no_restart=False)
    assert ray.get(actor.add.remote(1)) == 5
    events = trace()
    born = [(event["cat"], event["args"]["attempt"]) for event in named(events, "Sum")]
    assert born == [("actor", 0), ("actor,re-execution", 1)]
    calls = [event for event in events if event["name"] == "Sum.add" and event["ph"] == "X"]
    assert [event["cat"] for event in calls] == ["call", "call", "replay", "replay", "call"]
    assert [event.get("cname", "") for event in calls] == ["", "", "yellow", "yellow", ""]
    # The first call had an input, both times.
    assert [event["args"].get("inputs", 0) for event in calls] == [1, 0, 1, 0, 0]
    kinds = [event["args"]["kind"] for event in events if event["cat"] == "event"]
    for kind in ("actor_created", "actor_restarting", "actor_restarted"):
        assert kinds.count(kind) == 1, kind


def test_calls_that_run_at_once_have_rows_of_their_own(start: Start) -> None:
    start(nodes=1, cpus_per_node=1)

    @ray.remote(name="Many", max_concurrency=3)
    class Many:
        def nap(self) -> None:
            ray.sleep(0.1)

    actor = Many.remote()
    ray.get([actor.nap.remote() for _ in range(3)])
    rows = {event["tid"] for event in trace() if event["name"].endswith(".nap")}
    assert len(rows) == 3
    assert len({row.split(" (")[0] for row in rows}) == 1


@ray.remote(resources={"there": 1})
def there(number: int) -> int:
    return number


def test_a_dead_node_loses_its_rows_but_not_its_placements(start: Start) -> None:
    session = start(nodes=[{"CPU": 1}, {"CPU": 1, "there": 1}])

    def of(category: str) -> set[str]:
        return {e["pid"] for e in trace() if e["cat"] == category and "there" in e["name"]}

    ray.get([there.remote(number) for number in range(5)])
    eventually(lambda: of("task") == {"node 1"})
    session.cluster.kill_node(1)
    eventually(lambda: any(e["name"].startswith("node_died") for e in trace()))
    assert of("task") == set()
    assert of("placement") == {"global scheduler"}
    session.cluster.restart_node(1)
    eventually(lambda: ray.nodes()[1]["Alive"])
    ray.get(there.remote(5))
    eventually(lambda: of("task") == {"node 1"})
