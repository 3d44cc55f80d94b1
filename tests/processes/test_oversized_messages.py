"""A message that cannot travel, mostly as it is longer than any may be.

Its sender goes on, and what it was about fails.
"""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

import raytwin as ray
from raytwin.runtime.control import messages as m
from raytwin.runtime.processes.net import connection, wire
from raytwin.runtime.processes.net.component_process import ComponentProcess
from raytwin.runtime.processes.net.reactor import Reactor
from tests.actors.conftest import local  # noqa: F401
from tests.control.alone import spec


class Component:
    def __init__(self) -> None:
        self.got: list[Any] = []

    def handle(self, source: str, message: Any) -> None:
        self.got.append(message)

    def end_turn(self) -> None:
        """It sends from outside."""


def test_the_sender_is_told_and_the_rest_leaves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(wire, "MESSAGE_BYTES_MAX", 5_000)
    process, node, sent = ComponentProcess(0), Component(), []
    process.add("node:0", node)
    process.routes["node:1"] = SimpleNamespace(  # type: ignore[assignment]
        frame_bytes_max=1_000, closed=False, send=sent.append
    )
    long = spec(2)
    long.args = bytes(9_000)
    calls = [m.ActorCalls(b"actor", 0, [task], []) for task in (spec(1), long, spec(3))]
    unanswerable = m.Event("kind", "x" * 9_000)
    for message in (*calls, unanswerable):
        process.contexts["node:0"].send("node:1", message)
    process.run_turns()
    frames = wire.FrameReader(1_000).feed(b"".join(sent))
    assert [one for frame in frames for one in frame.messages] == [calls[0], calls[2]]
    (told,) = node.got
    assert (told.to, told.kind, told.tasks) == ("node:1", "ActorCalls", [long])
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2 and "node:0 cannot send ActorCalls to node:1" in lines[0]


@pytest.mark.parametrize("wrong", [complex(1), 2**70, "\ud800"])
def test_what_cannot_be_encoded_fails_alone(wrong: Any) -> None:
    """As with the TypeError, the OverflowError and the UnicodeEncodeError of the encoder."""
    process, node = ComponentProcess(0), Component()
    process.add("node:0", node)
    sent: dict[str, list[bytes]] = {}
    for peer in ("node:1", "node:2", "node:3"):
        process.routes[peer] = SimpleNamespace(  # type: ignore[assignment]
            frame_bytes_max=1_000, closed=False, send=sent.setdefault(peer, []).append
        )
    bad = spec(2)
    bad.name = wrong
    context = process.contexts["node:0"]
    context.send("node:1", m.SubmitTasks([spec(1)]))
    for tasks in ([spec(3)], [bad], [spec(4)]):
        context.send("node:2", m.SubmitTasks(tasks))
    context.send("node:3", m.SubmitTasks([spec(5)]))
    process.run_turns()
    came = {
        peer: [one.tasks for f in wire.FrameReader().feed(b"".join(data)) for one in f.messages]
        for peer, data in sent.items()
    }
    assert came == {"node:1": [[spec(1)]], "node:2": [[spec(3)], [spec(4)]], "node:3": [[spec(5)]]}
    (told,) = node.got
    assert (told.to, told.kind, told.tasks) == ("node:2", "SubmitTasks", [bad])
    assert "cannot be encoded" in told.reason


def test_calls_that_wait_for_an_actor_may_be_many(local: Any) -> None:  # noqa: F811
    """Together they are longer than a frame; and so are one call's inputs."""
    local(nodes=[{"CPU": 1}, {"CPU": 1, "x": 1}])

    @ray.remote(resources={"x": 1}, max_restarts=1, max_task_retries=-1)
    class Away:
        def __init__(self) -> None:
            ray.sleep(1)

        def length(self, *values: bytes) -> int:
            return sum(map(len, values))

    away = Away.remote()
    refs = [away.length.remote(bytes(95_000)) for _ in range(720)]
    assert sum(ray.get(refs)) == 720 * 95_000
    inputs = [ray.put(bytes(95_000)) for _ in range(720)]
    assert ray.get(away.length.remote(*inputs)) == 720 * 95_000
    ray.kill(away, no_restart=False)
    assert ray.get(away.length.remote(b"1")) == 1


def test_a_peer_is_dead_if_it_reads_nothing_of_much_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "UNSENT_BYTES_MAX", 1 << 20)
    ours, theirs = socket.socketpair()
    reasons: list[str] = []
    one = connection.Connection(
        Reactor(), ours, lambda _, frame: None, lambda _, reason: reasons.append(reason)
    )
    for _ in range(10):
        one.send(bytes(1 << 20))
    assert not reasons  # all of it came in one turn
    monkeypatch.setattr(connection, "UNSENT_S_MAX", 0.0)
    one.send(b"more")
    assert reasons and "does not read" in reasons[0]
    theirs.close()
