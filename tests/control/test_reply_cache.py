"""What reply caches of a node remember of its actors' calls, and how much of it."""

from __future__ import annotations

from raytwin.runtime.control.actors.reply_cache import ID_BYTES, CallState, ReplyBudget, ReplyCache
from raytwin.runtime.control.core.batching import ITEM_BYTES
from raytwin.runtime.control.core.ids import STREAM_BASE
from raytwin.runtime.control.messages import RangeResult
from tests.control.alone import array, result


def item(number: int, index: int, nbytes: int = 10) -> RangeResult:
    return result(number, STREAM_BASE + index, payload=bytes(nbytes))


def state(cache: ReplyCache, number: int) -> CallState | None:
    cached = cache.find(array(number))
    return None if cached is None else cached.state


def test_a_reply_is_known_until_it_is_the_oldest_of_all_actors_of_the_node() -> None:
    budget = ReplyBudget(10 * (ITEM_BYTES + 100))
    caches = ReplyCache(budget), ReplyCache(budget)
    for number in range(100):
        caches[number % 2].keep(result(number, payload=bytes(100)))
        assert budget.reply_bytes <= 10 * (ITEM_BYTES + 100)
    found = {n: state(caches[n % 2], n) for n in range(100)}
    assert [n for n in found if found[n] is CallState.REPLIED] == list(range(90, 100))
    assert all(found[n] is CallState.EXECUTED for n in range(90))
    assert state(caches[1], 0) is None and not caches[1].knows_any([array(0)])
    cached = caches[0].find(array(98))
    assert cached is not None and cached.reply_to(array(98)).array == array(98)


def test_of_calls_that_ended_together_each_is_known() -> None:
    cache = ReplyCache(ReplyBudget(4 * ITEM_BYTES + 1))
    calls = [array(n) for n in range(3)]
    run = result(0, payload=b"x")
    run.calls = b"".join(calls)
    cache.keep(run, calls)
    cache.keep(result(9, payload=b""))
    cached = cache.find(array(1))
    assert cached is not None and cached.state is CallState.REPLIED
    reply = cached.reply_to(array(1))
    assert (reply.array, reply.position) == (array(1), 1)
    cache.keep(result(10, payload=b""))
    assert [state(cache, n) for n in range(3)] == [CallState.EXECUTED] * 3


def test_executed_calls_are_bounded_too() -> None:
    budget = ReplyBudget(ITEM_BYTES, 10 * ID_BYTES)
    cache = ReplyCache(budget)
    for number in range(100):
        cache.keep(result(number, payload=b""))
        assert budget.id_bytes <= 10 * ID_BYTES
    assert [n for n in range(100) if state(cache, n)] == list(range(89, 100))


def test_items_are_known_until_there_are_too_many() -> None:
    budget = ReplyBudget(10 * ITEM_BYTES)
    cache = ReplyCache(budget)
    cache.begin_stream(array(2))
    first = cache.find(array(2))
    assert first is not None and first.items == []
    cache.add_item(array(2), item(2, 0))
    cache.begin_stream(array(3))
    cache.add_item(array(3), item(3, 0))
    assert first.items == [item(2, 0)]
    cache.wait(array(2), "worker:1.1")
    cache.add_item(array(3), item(3, 1, 8 * ITEM_BYTES))
    assert first.items is None and budget.reply_bytes == 0
    assert first.state is CallState.RUNNING and cache.waiters(array(2)) == ["worker:1.1"]
    cache.add_item(array(2), item(2, 1))
    assert first.items is None, "with a hole"


def test_a_stream_that_has_ended_goes_with_its_items() -> None:
    cache = ReplyCache(ReplyBudget(5 * ITEM_BYTES))
    cache.begin_stream(array(2))
    cache.add_item(array(2), item(2, 0))
    cache.keep(result(2, payload=b""))
    cached = cache.find(array(2))
    assert cached is not None and cached.items == [item(2, 0)]
    cache.keep(result(3, payload=bytes(2 * ITEM_BYTES)))
    assert cached.state is CallState.EXECUTED and cached.items is None


def test_a_reply_in_the_lineage_makes_no_room() -> None:
    budget = ReplyBudget(5 * ITEM_BYTES)
    cache = ReplyCache(budget)
    cache.restore(result(2), replayed=True)
    cache.restore(result(3, payload=bytes(10 * ITEM_BYTES)), replayed=False)
    assert budget.reply_bytes == 0
    assert (state(cache, 2), state(cache, 3)) == (CallState.RUNNING, CallState.REPLIED)
    cache.begin_stream(array(2))
    cache.add_item(array(2), item(2, 0))
    cache.replayed(array(2), None)
    cache.keep(result(4, payload=bytes(4 * ITEM_BYTES)))
    cached = cache.find(array(2))
    assert cached is not None and (cached.state, cached.items) == (CallState.REPLIED, None)
    assert cached.reply == result(2)
