"""Long lists of calls are split among messages of bounded length, and arrive whole."""

from __future__ import annotations

import pytest

from raytwin.runtime.control.actors import call_queue, pending_calls
from raytwin.runtime.control.client.client import Client
from raytwin.runtime.control.client.owned_arrays import Entry
from raytwin.runtime.control.core import batching
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.gcs import actor_table
from raytwin.runtime.control.gcs.gcs import Gcs
from raytwin.runtime.control.messages import (
    ActorCalls,
    ActorChanged,
    ActorLineage,
    CreateActors,
    FetchLineage,
    Frame,
    LogCalls,
    SaveActor,
    TaskResults,
    TasksUnsent,
)
from raytwin.runtime.control.messages.errors import Unsendable, unpack
from raytwin.runtime.control.replication import client
from raytwin.runtime.control.replication.state_machine import decode_frames
from tests.control.alone import Alone, spec
from tests.control.test_actor_table import ACTOR, call, creation

SMALL = 4 * batching.ITEM_BYTES


def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(items: list, weigh: object) -> list:  # type: ignore[type-arg]
        return batching.cut(items, weigh, SMALL)  # type: ignore[arg-type]

    for module in (call_queue, pending_calls, actor_table):
        monkeypatch.setattr(module, "cut", cut)


def ignore(*told: object) -> None:
    """Nobody is there to be told."""


def test_queued_calls_of_an_actor_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pieces(monkeypatch)
    ctx = Alone()
    submitter = pending_calls.PendingCalls(ctx, 0, ignore, ignore, ignore, ignore)
    calls = [call(number).task for number in range(10, 31)]
    for task in calls:
        submitter.submit(task)
    submitter.end_turn()
    submitter.on_changed(ActorChanged(ACTOR, actor_table.ALIVE, 1, 0))
    submitter.end_turn()
    sent = ctx.take(ActorCalls, "node:1")
    assert len(sent) > 3
    assert [task for message in sent for task in message.tasks] == calls


def test_a_lineage_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pieces(monkeypatch)
    ctx = Alone()
    gcs = Gcs(ctx, Config())
    gcs.handle("node:0", CreateActors([creation()]))
    records = [call(number) for number in range(10, 31)]
    gcs.handle("node:0", LogCalls(ACTOR, 0, 0, records))
    gcs.handle("node:0", SaveActor(ACTOR, 0, 9, b"state"))
    gcs.handle("node:0", FetchLineage(ACTOR, 0))
    sent = ctx.take(ActorLineage, "node:0")
    assert [message.checkpoint for message in sent if message.checkpoint] == [b"state"]
    kept = [record.result for message in sent for record in message.kept]
    assert kept == [record.result for record in records[:9]], "their arguments are not needed"
    assert [record for message in sent for record in message.calls] == records[9:]
    assert [message.more for message in sent] == [True] * (len(sent) - 1) + [False]
    assert max(len(message.calls) + len(message.kept) for message in sent) <= 4


def test_a_long_turn_is_several_requests_to_a_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "REQUEST_BYTES", 1_000)
    frames = [
        Frame("node:0", to, [TaskResults("x" * 300, []) for _ in range(count)])
        for to, count in (("gcs", 9), ("global", 2))
    ]
    bodies = client._requests(frames)
    assert len(bodies) > 3 and max(map(len, bodies)) <= 1_000
    found = [
        (frame.destination, message)
        for body in bodies
        for frame in decode_frames(body)
        for message in frame.messages
    ]
    assert found == [(frame.destination, one) for frame in frames for one in frame.messages]


def test_tasks_that_cannot_be_sent_fail() -> None:
    ctx = Alone()
    client = Client(ctx, "driver:0.0", 0, Config())
    submitted = spec(7)
    client.entries[submitted.array] = Entry(submitted.array, 1, 1, 1, refs=1)
    client.handle("driver:0.0", TasksUnsent([submitted], "why"))
    found = client.entries[submitted.array].result
    assert found is not None and isinstance(unpack(found.payload), Unsendable)
