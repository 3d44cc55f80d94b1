"""`Ranges` against a set of integers."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from raytwin.runtime.control.core.range_set import Ranges

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 25)), max_size=30)
SPAN = st.tuples(st.integers(0, 70), st.integers(1, 40))


@given(SPANS, SPAN)
def test_like_a_set(spans: list[tuple[int, int]], probe: tuple[int, int]) -> None:
    ranges, oracle = Ranges(), set()
    for start, count in spans:
        new = set(range(start, start + count)) - oracle
        assert ranges.add(start, count) == len(new)
        oracle |= new
        assert ranges.size == len(oracle)
    for index in range(100):
        assert (index in ranges) == (index in oracle)
    kept = list(ranges)
    assert {i for start, count in kept for i in range(start, start + count)} == oracle
    # Disjoint, in order, and no two that could be one.
    assert all(a + n < b for (a, n), (b, _) in pairwise(kept))
    start, count = probe
    wanted = set(range(start, start + count))
    gaps = ranges.missing(start, count)
    assert [i for s, n in gaps for i in range(s, s + n)] == sorted(wanted - oracle)
    assert all(n > 0 for _, n in gaps)
    assert ranges.overlaps(start, count) == bool(wanted & oracle)


def test_removing_is_the_opposite_of_adding() -> None:
    rng = random.Random(3)
    for _ in range(300):
        ranges, oracle = Ranges(), set[int]()
        for _ in range(rng.randint(1, 12)):
            start, count = rng.randrange(30), rng.randint(1, 10)
            elements = set(range(start, start + count))
            if rng.random() < 0.5:
                assert ranges.add(start, count) == len(elements - oracle)
                oracle |= elements
            else:
                assert ranges.remove(start, count) == len(elements & oracle)
                oracle -= elements
            assert {i for s, c in ranges for i in range(s, s + c)} == oracle
            assert ranges.size == len(oracle)
            assert all(c > 0 for _, c in ranges)
