"""A mapping of what was put last, against a list of all that was put."""

from __future__ import annotations

import statistics
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raytwin.runtime.control.actors import pending_calls
from raytwin.runtime.control.core.bounded_map import BoundedMap
from raytwin.runtime.control.core.ids import job_id
from raytwin.runtime.control.gcs import actor_table, job_table
from raytwin.runtime.control.messages import ActorChanged, JobInfo, RegisterJob
from tests.control.alone import Alone, array

ACTIONS = st.lists(st.tuples(st.sampled_from(["set", "pop"]), st.integers(0, 12)), max_size=60)


@given(st.integers(2, 12), ACTIONS)
def test_the_map_has_at_least_half_of_its_limit_and_at_most_the_limit(
    limit: int, actions: list[tuple[str, int]]
) -> None:
    remembered: BoundedMap[int, int] = BoundedMap(limit)
    kept: dict[int, int] = {}
    put: list[int] = []
    for number, (action, key) in enumerate(actions):
        if action == "set":
            remembered[key] = number
            kept[key] = number
            put.append(key)
        else:
            assert remembered.pop(key, None) in (None, kept.pop(key, None))
        assert len(remembered) == len(list(remembered)) <= limit
        last = {key: kept[key] for key in put[-(limit // 2) :] if key in kept}
        assert last.items() <= dict(remembered).items() <= kept.items()
        assert all(key in remembered for key in last)
        found = dict(remembered)
        assert [remembered.get(key, -1) for key in range(13)] == [
            found.get(key, -1) for key in range(13)
        ]
        assert list(remembered.values()) == sorted(remembered.values()), "the oldest first"


def test_a_large_one_costs_no_more_an_entry_than_a_small_one() -> None:
    def cost_s(limit: int) -> float:
        remembered: BoundedMap[int, None] = BoundedMap(limit)
        begun_s = time.process_time()
        for number in range(100_000):
            remembered[number] = None
        return time.process_time() - begun_s

    rounds = [(cost_s(30_000), cost_s(100)) for _ in range(5)]
    ratio = statistics.median(large / small for large, small in rounds)
    assert ratio < 10, f"{ratio:.1f} times"


def test_the_table_of_jobs_forgets_those_that_ended_long_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_table, "ENDED_ROWS_MAX", 4)
    table = job_table.JobTable(Alone())
    for number in range(1, 21):
        table.on_register("node:0", RegisterJob(JobInfo(number), 0))
    for number in range(2, 20):
        table.end(job_id(number), "it ended")
    rows = {row[0]: row[5] for row in table.table()}
    assert list(rows) == sorted(rows)
    assert rows.pop(1) and rows.pop(20), "they live"
    assert set(range(18, 20)) <= set(rows) <= set(range(16, 20))
    assert not any(rows.values())


def test_a_node_asks_again_for_an_actor_that_died_long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_calls, "DEAD_ROUTES_MAX", 4)

    def ignore(*_: object) -> None:
        pass

    submitter = pending_calls.PendingCalls(Alone(), 0, ignore, ignore, ignore, ignore)
    living = submitter.watch(array(0))
    for number in range(1, 11):
        submitter.watch(array(number))
        submitter.on_changed(ActorChanged(array(number), actor_table.DEAD, -1, 0, "it died"))
    submitter.end_turn()
    assert submitter.watch(array(0)) is living
    assert submitter.watch(array(10)).reason == "it died"
    assert submitter.watch(array(1)).state == actor_table.PENDING
