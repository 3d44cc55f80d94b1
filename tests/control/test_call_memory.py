"""What a node remembers of its actors' calls, and how much of it."""

from __future__ import annotations

from runtime.control.call_memory import CallMemory
from runtime.control.pieces import ITEM_BYTES
from tests.control.alone import array, result

ACTOR, OTHER = array(1), array(2)


def test_a_result_is_found_until_it_is_the_oldest_of_too_many_bytes() -> None:
    memory = CallMemory(10 * (ITEM_BYTES + 100))
    for number in range(100):
        memory.keep(ACTOR if number % 2 else OTHER, 0, result(number, payload=bytes(100)))
        assert memory.nbytes <= 10 * (ITEM_BYTES + 100)
    found = [n for n in range(100) if memory.find(ACTOR if n % 2 else OTHER, 0, array(n))]
    assert found == list(range(90, 100))
    memory.keep(ACTOR, 0, result(200, payload=bytes(9 * (ITEM_BYTES + 100))))
    assert memory.find(ACTOR, 0, array(200)) and not memory.find(ACTOR, 0, array(99))


def test_kept_twice_counts_once() -> None:
    memory = CallMemory()
    for _ in range(3):
        memory.keep(ACTOR, 0, result(5, payload=bytes(100)))
    assert memory.nbytes == ITEM_BYTES + 100


def test_another_incarnation_has_not_run_it() -> None:
    memory = CallMemory()
    memory.keep(ACTOR, 3, result(5))
    assert memory.find(ACTOR, 3, array(5)) is not None
    assert memory.find(ACTOR, 4, array(5)) is None
    assert memory.find(OTHER, 3, array(5)) is None
