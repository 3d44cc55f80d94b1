"""Callers of actors run again, and no call takes effect twice."""

from __future__ import annotations

from typing import Any

import raytwin.runtime.api as api

NODES = [{"CPU": 1}, {"CPU": 2, "actors": 1}, {"CPU": 2, "tasks": 1}]
"""The driver's, an actor's, and its caller's."""


@api.remote(max_restarts=-1, max_task_retries=-1, checkpoint_interval=1, resources={"actors": 0.1})
class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count

    def get(self) -> int:
        return self.count

    def __ray_save__(self) -> int:
        return self.count

    def __ray_restore__(self, count: int) -> None:
        self.count = count


@api.remote(max_retries=-1, resources={"tasks": 0.1})
def call_and_wait(counter: Any) -> int:
    count: int = api.get(counter.add.remote())
    api.sleep(3)
    return count


@api.remote(max_retries=-1, resources={"tasks": 0.1})
def start_and_call(nbytes: int) -> bytes:
    counter = Counter.remote()
    return bytes([api.get(counter.add.remote())]) * nbytes


def test_a_call_in_a_checkpoint_takes_effect_once() -> None:
    session: Any = api.init(backend="sim", nodes=NODES, heartbeat_timeout_s=2.0)
    try:
        counter = Counter.remote()
        ref = call_and_wait.remote(counter)
        api.sleep(1.0)
        session.cluster.kill_actor(0)
        api.sleep(1.0)
        session.cluster.restart_node(2)
        assert api.get(ref) == 1
        assert api.get(counter.get.remote()) == 1
    finally:
        api.shutdown()


def test_an_actor_is_created_again_when_its_creator_runs_again() -> None:
    session: Any = api.init(backend="sim", nodes=NODES, heartbeat_timeout_s=2.0)
    try:
        ref = start_and_call.remote(300_000)
        api.wait([ref], fetch_local=False)
        api.sleep(1.0)  # the actor has ended with its only handle
        session.cluster.restart_node(2)
        api.sleep(1.0)
        assert api.get(ref) == b"\x01" * 300_000
    finally:
        api.shutdown()
