"""The entries of an actor's reply cache, and their lifetime."""

from __future__ import annotations

import pytest

from raytwin.runtime.control.actors import actor_record
from raytwin.runtime.control.actors.actor_record import ReplyCache
from raytwin.runtime.control.core.batching import ITEM_BYTES
from raytwin.runtime.control.core.ids import STREAM_BASE
from raytwin.runtime.control.messages import RangeResult
from tests.control.alone import array, result


def item(number: int, index: int, nbytes: int = 10) -> RangeResult:
    return result(number, STREAM_BASE + index, payload=bytes(nbytes))


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> ReplyCache:
    monkeypatch.setattr(actor_record, "REPLY_BYTES_MAX", 10 * (ITEM_BYTES + 100))
    monkeypatch.setattr(actor_record, "CALLS_MAX", 50)
    return ReplyCache()


def test_a_reply_makes_room_before_its_call_does(cache: ReplyCache) -> None:
    for number in range(100):
        cache.keep(result(number, payload=bytes(100)))
    found = {n: cache.find(array(n)) for n in range(100)}
    assert [n for n, cached in found.items() if cached is not None] == list(range(50, 100))
    assert all(cached.ended for cached in found.values() if cached is not None)
    assert [n for n, cached in found.items() if cached and cached.reply] == list(range(90, 100))
    assert not cache.knows_any([array(0)]) and cache.knows_any([array(0), array(60)])


def test_calls_that_ended_together_share_a_payload(cache: ReplyCache) -> None:
    for number in range(10):
        cache.keep(result(number, payload=bytes(1000)), 10)
    assert all(cached and cached.reply for cached in map(cache.find, map(array, range(10))))


def test_items_make_room_and_leave_no_hole(cache: ReplyCache) -> None:
    cache.begin_stream(array(2))
    first = cache.find(array(2))
    assert first is not None and first.items == [] and not first.ended
    cache.add_item(item(2, 0))
    assert first.items == [item(2, 0)]
    cache.begin_stream(array(3))
    cache.add_item(item(3, 0, 10 * (ITEM_BYTES + 100) - ITEM_BYTES))
    assert first.items is None
    cache.add_item(item(2, 1))
    assert first.items is None, "with a hole"
    cache.keep(result(2))
    assert first.ended and first.reply == result(2) and first.items is None
