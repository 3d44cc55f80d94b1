"""An actor whose log of calls has grown too long works on, but does not restart."""

from __future__ import annotations

import pytest

import raytwin as ray
from raytwin.runtime.api.exceptions import ActorDiedError
from tests.actors.conftest import Start
from tests.actors.programs import Account, Saved

WAIT_S = 30


def test_without_checkpoints_an_actor_with_a_full_log_does_not_restart(start: Start) -> None:
    start(actor_log_bytes_max=100_000)
    account = Account.options(max_restarts=-1, max_task_retries=-1).remote()
    other = Account.options(max_restarts=-1, max_task_retries=-1).remote()
    ray.get(other.add.remote("kept"))
    assert ray.get([account.add.remote(n) for n in range(200)], timeout=WAIT_S)[-1] == 200
    ray.kill(account, no_restart=False)
    ray.kill(other, no_restart=False)
    with pytest.raises(ActorDiedError, match="outgrew actor_log_bytes_max"):
        ray.get(account.add.remote(200), timeout=WAIT_S)
    assert ray.get(other.add.remote("too"), timeout=WAIT_S) == 2


def test_with_checkpoints_an_actor_keeps_its_log_short(start: Start) -> None:
    start(actor_log_bytes_max=100_000)
    saved = Saved.remote()
    assert ray.get([saved.add.remote(1) for _ in range(300)], timeout=WAIT_S)[-1] == 300
    ray.kill(saved, no_restart=False)
    assert ray.get(saved.add.remote(1), timeout=WAIT_S) == 301
