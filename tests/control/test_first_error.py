"""`Client`: a waiter for several values is notified of the first error among them."""

from __future__ import annotations

import pytest

from raytwin.runtime.control.client.client import Client
from raytwin.runtime.control.client.owned_arrays import Waiter
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.core.ids import STREAM_BASE, object_id
from raytwin.runtime.control.messages import (
    OK,
    SYSTEM_ERROR,
    USER_ERROR,
    ObjectsReady,
    ObjectValue,
    TaskResults,
)
from tests.control.alone import Alone, array, result, spec

ME, NODE = "driver:0.0", "node:0"


def oid(number: int, index: int = 0) -> bytes:
    return object_id(array(number), index, 0)


def with_arrays(*counts: int) -> Client:
    """Return a client with an array of each length, which are numbered from 1 on."""
    client = Client(Alone(), ME, 0, Config())
    for number, count in enumerate(counts, 1):
        client.submitter.submit(array(number), [spec(number, 0, count)], count, 1)
        client.references.add_ref(oid(number))
    return client


def tell(client: Client, number: int, start: int = 0, count: int = 1, status: int = OK) -> None:
    client.handle(NODE, TaskResults(ME, [result(number, start, count, status=status)]))


def awaiting(client: Client, oids: list[bytes]) -> Waiter:
    waiter = client.waits.watch(oids)
    client.waits.fail_early(oids, waiter)
    return waiter


def test_the_waiter_is_notified_of_an_error_only() -> None:
    client = with_arrays(1, 1, 1, 1)
    oids = [oid(number) for number in (1, 2, 3)]
    waiter = awaiting(client, oids)
    tell(client, 1)
    tell(client, 4, status=USER_ERROR)
    assert not waiter.failed and client.waits.first_error(oids) is None
    tell(client, 2, status=USER_ERROR)
    assert waiter.failed and waiter.missing == 1, "`wait` counts what is missing as before"
    first = client.waits.first_error(oids)
    assert first is not None and first.object == oid(2)


def test_an_error_that_was_there_before_is_found() -> None:
    client = with_arrays(1, 1, 3)
    tell(client, 2, status=SYSTEM_ERROR)
    tell(client, 3, 1, status=USER_ERROR)
    assert awaiting(client, [oid(1), oid(2)]).failed
    assert awaiting(client, [oid(3, 0), oid(3, 1)]).failed
    assert not awaiting(client, [oid(1), oid(3, 2)]).failed
    assert client.waits.watch_array(client.entries[array(3)]).failed


def test_the_first_in_order_counts_and_not_the_first_to_come() -> None:
    client = with_arrays(1, 1, 9)
    tell(client, 2, status=USER_ERROR)
    tell(client, 1, status=USER_ERROR)
    first = client.waits.first_error([oid(3, 7), oid(1), oid(2)])
    assert first is not None and first.object == oid(1)
    tell(client, 3, 6, 2, status=USER_ERROR)
    tell(client, 3, 2, 1, status=SYSTEM_ERROR)
    in_array = client.waits.first_failed(client.entries[array(3)])
    assert in_array is not None and in_array.start == 2


def test_elements_and_whole_arrays() -> None:
    client = with_arrays(10)
    entry = client.entries[array(1)]
    whole = client.waits.watch_array(entry)
    its, anothers = awaiting(client, [oid(1, 4), oid(1, 9)]), awaiting(client, [oid(1, 8)])
    tell(client, 1, 0, 4)
    assert not whole.failed
    tell(client, 1, 4, 2, status=USER_ERROR)
    assert whole.failed and its.failed and not anothers.failed
    assert whole.missing, "not all of it is there"


def test_a_second_run_fails_only_missing_values() -> None:
    client = with_arrays(4)
    whole = client.waits.watch_array(client.entries[array(1)])
    tell(client, 1, 0, 2)
    tell(client, 1, 0, 2, status=USER_ERROR)
    assert not whole.failed and not client.waits.watch_array(client.entries[array(1)]).failed


@pytest.mark.parametrize("own", [True, False])
def test_objects_that_cannot_be_fetched(own: bool) -> None:
    client = with_arrays(1, 1)
    client.references.add_ref(oid(9))
    which = oid(1) if own else oid(9)
    waiter = awaiting(client, [which, oid(2)])
    if own:
        client.handle(NODE, TaskResults(ME, [result(1, node=3, size=500, offset=1)]))
    assert not waiter.failed and waiter.missing == 2
    client.handle(NODE, ObjectsReady([ObjectValue(which, SYSTEM_ERROR, b"lost")]))
    assert waiter.failed and waiter.missing == 1
    assert awaiting(client, [oid(2), which]).failed


def test_an_item_of_a_stream() -> None:
    client = with_arrays(1, 1)
    client.entries[array(1)].items = {}
    waiter = awaiting(client, [oid(2), oid(1, STREAM_BASE)])
    tell(client, 1, STREAM_BASE, status=USER_ERROR)
    assert waiter.failed and waiter.missing == 1
