"""Batches of calls of which some are cancelled, or whose actor dies."""

from __future__ import annotations

import gc
import os
import tempfile
import weakref
from typing import Any

import pytest

import raytwin as ray
from tests.actors.conftest import Start
from tests.actors.programs import Account
from tests.actors.test_call_batches import Mixed


@pytest.mark.parametrize("max_restarts", [0, 1])
def test_a_call_in_the_middle_of_a_batch_is_cancelled(start: Start, max_restarts: int) -> None:
    start()
    mixed = Mixed.options(max_restarts=max_restarts).remote()
    ray.get(mixed.plain.remote())
    blocker = mixed.slow.remote(0.5)
    refs = [mixed.plain.remote(n) for n in range(30)]
    ray.sleep(0.1)
    for ref in refs[1::3]:
        ray.cancel(ref)
    for n, ref in enumerate(refs):
        if n % 3 == 1:
            with pytest.raises(ray.exceptions.TaskCancelledError):
                ray.get(ref)
        else:
            assert isinstance(ray.get(ref), int)
    ray.get(blocker)
    assert ray.get(mixed.growing.remote())[1:] == [n for n in range(30) if n % 3 != 1]


def test_each_call_takes_effect_once_if_the_actor_dies_in_a_burst(local: Start) -> None:
    local()

    @ray.remote(max_restarts=-1, max_task_retries=-1)
    class Mortal(Account.cls):  # type: ignore[name-defined,misc]
        def add(self, item: Any) -> int:
            self.history.append(item)
            if item in (40, 130) and not os.path.exists(f"{self.flags}/{item}"):
                open(f"{self.flags}/{item}", "w").close()
                os._exit(4)
            return len(self.history)

        def use(self, flags: str) -> None:
            self.flags = flags

    with tempfile.TemporaryDirectory() as flags:
        mortal = Mortal.remote()
        mortal.use.remote(flags)
        assert ray.get([mortal.add.remote(n) for n in range(300)]) == list(range(1, 301))
        assert ray.get(mortal.all.remote()) == list(range(300))


def test_replies_of_a_dead_actor_without_restarts_are_kept(local: Start) -> None:
    local()
    account = Account.remote()
    ray.get(account.add.remote(0))
    refs = [account.add.remote(n) for n in range(1, 100)]
    ray.wait(refs, num_returns=len(refs))
    dead = account.die.remote()
    after = [account.add.remote(n) for n in range(10)]
    assert ray.get(refs) == list(range(2, 101))
    for ref in (dead, *after):
        with pytest.raises(ray.exceptions.ActorDiedError):
            ray.get(ref)


def test_the_timeline_counts_every_call(start: Start) -> None:
    session = start(nodes=1, cpus_per_node=2)
    mixed = Mixed.remote()
    ray.get([mixed.plain.remote() for _ in range(500)])
    rows = [row for row in session.query("timeline") if row[0] == "Mixed.plain"]
    assert sum(row[5] for row in rows) == 500


class Thing:
    """What can be told to be gone."""


MADE: list[Any] = []


def make_and_fail() -> None:
    thing = Thing()
    MADE.append(weakref.ref(thing))
    raise ValueError(thing is None)


@ray.remote
class Failing:
    def fails(self) -> None:
        make_and_fail()


@pytest.mark.parametrize("kind", ["task", "call"])
def test_an_error_keeps_nothing_alive_once_it_is_reported(kind: str) -> None:
    # Virtual time: its workers are in this process.
    ray.init(backend="sim", nodes=1, cpus_per_node=1)
    MADE.clear()
    gc.disable()
    try:
        method = ray.remote(make_and_fail) if kind == "task" else Failing.remote().fails
        refs = [method.remote() for _ in range(3)]
        for ref in refs:
            with pytest.raises(ValueError, match="False"):
                ray.get(ref)
        assert [thing() for thing in MADE] == [None] * 3
    finally:
        gc.enable()
        ray.shutdown()
