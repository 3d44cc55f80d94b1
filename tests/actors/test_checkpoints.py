"""Checkpoint hooks that fail: the actor and its callers stay consistent."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pytest

import raytwin as ray
from raytwin.runtime.api.backend import current
from raytwin.runtime.api.exceptions import ActorDiedError
from tests.actors.programs import rows

WAIT_S = 30


@ray.remote(max_restarts=-1, max_task_retries=-1, checkpoint_interval=3)
class Fails:
    """Counts; its hooks do what `how` says from the second checkpoint on."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.count = self.saves = 0

    def add(self) -> int:
        self.count += 1
        return self.count

    def __ray_save__(self) -> Any:
        self.saves += 1
        if self.saves > 1:
            if self.how == "raise":
                raise ValueError("the disk is full")
            if self.how == "unpicklable":
                return threading.Lock()
            if self.how == "long":
                config = current().client.config
                current().client.config = msgspec.structs.replace(config, checkpoint_bytes_max=1000)
                return bytes(2_000)
        return self.count

    def __ray_restore__(self, state: int) -> None:
        if self.how == "restore":
            raise KeyError("what is this?")
        self.count = state


@pytest.mark.parametrize("how", ["raise", "unpicklable", "long"])
def test_a_failed_checkpoint_keeps_the_last_one(cluster: Any, how: str) -> None:
    actor = Fails.remote(how)
    calls = [actor.add.remote() for _ in range(10)]
    assert ray.get(calls, timeout=WAIT_S) == list(range(1, 11))
    ray.kill(actor, no_restart=False)
    assert ray.get(actor.add.remote(), timeout=WAIT_S) == 11
    replayed = [row[5] for row in rows(cluster, "Fails") if row[4] == 11]
    assert replayed == [7]
    ray.kill(actor)


def test_an_actor_whose_restore_fails_dies(cluster: Any) -> None:
    actor = Fails.remote("restore")
    assert ray.get([actor.add.remote() for _ in range(4)], timeout=WAIT_S) == [1, 2, 3, 4]
    ray.kill(actor, no_restart=False)
    for _ in range(2):
        with pytest.raises(ActorDiedError, match=r"(?s)__ray_restore__ raised.*what is this\?"):
            ray.get(actor.add.remote(), timeout=WAIT_S)


def test_references_to_its_own_results_outlive_a_restart(cluster: Any) -> None:
    """They end with the worker: no checkpoint is taken, and the calls are repeated."""

    @ray.remote
    def model() -> int:
        return 50

    @ray.remote(max_restarts=-1, max_task_retries=-1, checkpoint_interval=1)
    class Server:
        def __init__(self) -> None:
            self.refs: list[Any] = []

        def take(self, refs: list[Any]) -> None:
            self.refs += refs

        def make(self) -> None:
            self.refs.append(model.remote())

        def total(self) -> int:
            return int(sum(ray.get(self.refs)))

        def __ray_save__(self) -> list[Any]:
            return self.refs

        def __ray_restore__(self, state: list[Any]) -> None:
            self.refs = state

    server = Server.remote()
    ray.get(server.take.remote([ray.put(7)]))
    ray.kill(server, no_restart=False)
    assert ray.get(server.total.remote()) == 7, "what others own is in a checkpoint"
    ray.get(server.make.remote())
    assert ray.get(server.total.remote()) == 57
    ray.kill(server, no_restart=False)
    assert ray.get(server.total.remote()) == 57
