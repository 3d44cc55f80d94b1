"""What a node remembers of its actors' calls, and how much of it."""

from __future__ import annotations

from runtime.control.call_memory import ID_BYTES, LIGHT_BYTES, CallMemory
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
    assert all(memory.has_run(ACTOR if n % 2 else OTHER, 0, array(n)) for n in range(100))
    assert not memory.has_run(ACTOR, 0, array(0)) and not memory.has_run(OTHER, 1, array(0))
    memory.keep(ACTOR, 0, result(200, payload=bytes(2 * LIGHT_BYTES)))
    assert memory.find(ACTOR, 0, array(200)) and memory.find(ACTOR, 0, array(99))
    assert not memory.find(ACTOR, 0, array(91))


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


def test_long_results_make_room_first_and_of_all_it_is_known_that_they_took_effect() -> None:
    memory = CallMemory(5 * (ITEM_BYTES + 20_000) + ITEM_BYTES + 10)
    memory.keep(ACTOR, 0, result(1, payload=bytes(10)))
    for number in range(100, 150):
        memory.keep(ACTOR, 0, result(number, payload=bytes(20_000)))
    assert memory.find(ACTOR, 0, array(1)) is not None
    found = [n for n in range(100, 150) if memory.find(ACTOR, 0, array(n))]
    assert found == [145, 146, 147, 148, 149]
    assert all(memory.has_run(ACTOR, 0, array(n)) for n in range(100, 150))
    assert memory.knows_any([array(100)])


def test_of_runs_every_call_is_known_to_have_taken_effect() -> None:
    memory = CallMemory(4 * ITEM_BYTES + 1)
    calls = [array(n) for n in range(3)]
    run = result(0, payload=b"x")
    run.calls = b"".join(calls)
    memory.keep(ACTOR, 0, run, calls)
    memory.keep(ACTOR, 0, result(9, payload=b""))
    assert memory.find(ACTOR, 0, array(1)) is not None
    memory.keep(ACTOR, 0, result(10, payload=b""))
    assert memory.find(ACTOR, 0, array(1)) is None
    assert all(memory.has_run(ACTOR, 0, call) for call in calls)


def test_ids_are_bounded_too() -> None:
    memory = CallMemory(ITEM_BYTES, 10 * ID_BYTES)
    for number in range(100):
        memory.keep(ACTOR, 0, result(number, payload=b""))
        assert memory.ids_bytes <= 10 * ID_BYTES
    assert [n for n in range(100) if memory.has_run(ACTOR, 0, array(n))] == list(range(89, 100))
    assert len(memory._found) == 11
