"""A message that cannot travel, mostly as it is longer than any may be.

A client's tasks fail alone; any other message ends its connection.
"""

from __future__ import annotations

import socket
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


class Sink:
    """A connection that notes what it carries."""

    def __init__(self) -> None:
        self.closed = False
        self.data = b""

    def send_body(self, body: bytes) -> None:
        self.data += wire.LENGTH.pack(len(body)) + body

    def close(self, reason: str) -> None:
        self.closed = True

    @property
    def messages(self) -> list[Any]:
        return [one for frame in wire.FrameReader().feed(self.data) for one in frame.messages]


def process_with(*peers: str) -> tuple[ComponentProcess, Component, dict[str, Any]]:
    process, sender = ComponentProcess(0), Component()
    process.add("driver:0.0", sender)
    sinks: dict[str, Any] = {peer: Sink() for peer in peers}
    process.routes.update(sinks)
    return process, sender, sinks


def test_tasks_that_are_too_long_fail_and_the_rest_leaves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(wire, "FRAME_BYTES_MAX", 5_000)
    process, client, sinks = process_with("node:0")
    long = spec(2)
    long.args = bytes(9_000)
    sent = [m.SubmitTasks([task]) for task in (spec(1), long, spec(3))]
    for message in sent:
        process.contexts["driver:0.0"].send("node:0", message)
    process.turns.run_rounds()
    assert sinks["node:0"].messages == [sent[0], sent[2]] and not sinks["node:0"].closed
    (unsent,) = client.got
    assert unsent.tasks == [long] and "at most 5,000" in unsent.reason
    (line,) = [record.getMessage() for record in caplog.records]
    assert "driver:0.0 cannot send SubmitTasks to node:0" in line


@pytest.mark.parametrize("wrong", [complex(1), 2**70, "\ud800"])
def test_a_task_that_cannot_be_encoded_fails_alone(wrong: Any) -> None:
    """As with the TypeError, the OverflowError and the UnicodeEncodeError of the encoder."""
    process, client, sinks = process_with("node:1", "node:2", "node:3")
    bad = spec(2)
    bad.name = wrong
    context = process.contexts["driver:0.0"]
    context.send("node:1", m.SubmitTasks([spec(1)]))
    for tasks in ([spec(3)], [bad], [spec(4)]):
        context.send("node:2", m.SubmitTasks(tasks))
    context.send("node:3", m.SubmitTasks([spec(5)]))
    process.turns.run_rounds()
    came = {peer: [one.tasks for one in sink.messages] for peer, sink in sinks.items()}
    assert came == {"node:1": [[spec(1)]], "node:2": [[spec(3)], [spec(4)]], "node:3": [[spec(5)]]}
    (unsent,) = client.got
    assert unsent.tasks == [bad] and "cannot be encoded" in unsent.reason


def test_any_other_message_that_is_too_long_ends_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "FRAME_BYTES_MAX", 5_000)
    process, _, sinks = process_with("node:0")
    process.contexts["driver:0.0"].send("node:0", m.Event("kind", "x" * 9_000))
    process.turns.run_rounds()
    assert sinks["node:0"].closed and not sinks["node:0"].data


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
