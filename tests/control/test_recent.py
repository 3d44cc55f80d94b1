"""A mapping of what was put last, against a list of all that was put."""

from __future__ import annotations

import statistics
import time

from hypothesis import given
from hypothesis import strategies as st

from runtime.control.recent import Recent

ACTIONS = st.lists(st.tuples(st.sampled_from(["set", "pop"]), st.integers(0, 12)), max_size=60)


@given(st.integers(2, 12), ACTIONS)
def test_it_has_the_last_half_of_the_limit_and_never_more_than_the_limit(
    limit: int, actions: list[tuple[str, int]]
) -> None:
    recent: Recent[int, int] = Recent(limit)
    kept: dict[int, int] = {}
    put: list[int] = []
    for number, (action, key) in enumerate(actions):
        if action == "set":
            recent[key] = number
            kept[key] = number
            put.append(key)
        else:
            assert recent.pop(key, None) in (None, kept.pop(key, None))
        assert len(recent) == len(list(recent)) <= limit
        last = {key: kept[key] for key in put[-(limit // 2) :] if key in kept}
        assert last.items() <= dict(recent).items() <= kept.items()
        assert all(key in recent for key in last)


def test_a_large_one_costs_no_more_an_entry_than_a_small_one() -> None:
    def cost_s(limit: int) -> float:
        recent: Recent[int, None] = Recent(limit)
        begun_s = time.process_time()
        for number in range(100_000):
            recent[number] = None
        return time.process_time() - begun_s

    rounds = [(cost_s(30_000), cost_s(100)) for _ in range(5)]
    ratio = statistics.median(large / small for large, small in rounds)
    assert ratio < 10, f"{ratio:.1f} times"
