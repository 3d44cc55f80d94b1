"""The allocator against a model that knows only intervals."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from raytwin.runtime.store.allocator import ALIGNMENT, Allocator, aligned

CAPACITY = 64 * ALIGNMENT


def gaps(taken: dict[int, int], end: int) -> list[tuple[int, int]]:
    """Return the (offset, size) of what `taken` leaves free in 0 to `end`."""
    found, position = [], 0
    for offset, size in sorted(taken.items()):
        if offset > position:
            found.append((position, offset - position))
        position = offset + size
    if end > position:
        found.append((position, end - position))
    return found


class AgainstIntervals(RuleBasedStateMachine):
    """Any sequence of allocate and free."""

    offsets: Bundle[int] = Bundle("offsets")

    def __init__(self) -> None:
        super().__init__()
        self.allocator = Allocator(CAPACITY + ALIGNMENT - 1)
        self.taken: dict[int, int] = {}
        self.touched = 0

    @rule(target=offsets, size=st.integers(1, CAPACITY // 3))
    def allocate(self, size: int) -> int:
        need = aligned(size)
        warm = [room for _, room in gaps(self.taken, self.touched) if room >= need]
        room_max = max((room for _, room in gaps(self.taken, CAPACITY)), default=0)
        offset = self.allocator.allocate(size)
        if offset < 0:
            assert room_max < need
            return offset
        assert offset % ALIGNMENT == 0
        assert offset + need <= CAPACITY
        assert all(offset + need <= o or o + s <= offset for o, s in self.taken.items())
        if warm:
            before = dict(gaps(self.taken, self.touched))
            assert before[offset] == min(warm), "not the best fit among the warm regions"
        self.taken[offset] = need
        self.touched = max(self.touched, offset + need)
        return offset

    @rule(offset=consumes(offsets))
    def free(self, offset: int) -> None:
        if offset in self.taken:
            self.allocator.free(offset)
            del self.taken[offset]
        else:
            with pytest.raises(ValueError, match="nothing is allocated"):
                self.allocator.free(offset)

    @rule(offset=st.integers(-ALIGNMENT, CAPACITY + ALIGNMENT))
    def free_what_is_not_there(self, offset: int) -> None:
        if offset not in self.taken:
            with pytest.raises(ValueError, match="nothing is allocated"):
                self.allocator.free(offset)

    @invariant()
    def accounts(self) -> None:
        assert self.allocator.capacity == CAPACITY
        assert self.allocator.used == sum(self.taken.values())
        assert self.allocator.high_water == self.touched

    def teardown(self) -> None:
        for offset in self.taken:
            self.allocator.free(offset)
        assert self.allocator.used == 0
        assert self.allocator.allocate(CAPACITY) == 0, "one region again"


TestAgainstIntervals = AgainstIntervals.TestCase
TestAgainstIntervals.settings = settings(max_examples=150, stateful_step_count=60)


@given(st.lists(st.integers(1, 5 * ALIGNMENT), min_size=1, max_size=30), st.randoms())
def test_every_order_of_freeing_ends_in_one_region(sizes: list[int], random: object) -> None:
    allocator = Allocator(200 * ALIGNMENT)
    offsets = [allocator.allocate(size) for size in sizes]
    random.shuffle(offsets)  # type: ignore[attr-defined]
    for offset in offsets:
        allocator.free(offset)
    assert allocator.used == 0
    assert allocator.allocate(allocator.capacity) == 0


def test_touched_pages_are_used_again_before_new_ones() -> None:
    allocator = Allocator(1 << 20)
    first = allocator.allocate(4096)
    allocator.allocate(4096)
    allocator.free(first)
    assert allocator.allocate(4096) == first
    assert allocator.high_water == 8192


def test_an_allocation_may_extend_the_last_free_region_beyond_the_mark() -> None:
    allocator = Allocator(1 << 20)
    offset = allocator.allocate(4096)
    allocator.free(offset)
    assert allocator.allocate(8192) == offset
    assert allocator.high_water == 8192


def test_a_failed_request_changes_nothing() -> None:
    allocator = Allocator(1024)
    allocator.allocate(512)
    assert allocator.allocate(513) == -1
    assert (allocator.used, allocator.high_water) == (512, 512)
    assert allocator.allocate(512) == 512


@pytest.mark.parametrize("size", [0, -1])
def test_sizes_are_positive(size: int) -> None:
    with pytest.raises(ValueError, match="positive"):
        Allocator(1024).allocate(size)


def test_a_capacity_holds_at_least_one_allocation() -> None:
    with pytest.raises(ValueError, match="at least"):
        Allocator(ALIGNMENT - 1)
