"""Actors that hold resources, crash, or lose their node; each test has its own cluster."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import psutil
import pytest

import raytwin as ray
from raytwin.runtime.api.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    RayActorError,
    RaySystemError,
)
from tests.actors.conftest import Start
from tests.actors.programs import Account, Saved, rows
from tests.processes.helpers import eventually

# -- resources -----------------------------------------------------------------


@pytest.mark.parametrize("end", ["kill", "exit", "scope", "broken"])
def test_an_actor_keeps_its_resources_until_it_ends(start: Start, end: str) -> None:
    start(nodes=1, cpus_per_node=2)
    holder = Account.options(num_cpus=2).remote()
    ray.get(holder.add.remote(1))

    @ray.remote(num_cpus=1)
    def one() -> int:
        return 1

    task, other = one.remote(), Account.options(num_cpus=1).remote()
    ready = other.__ray_ready__.remote()
    assert ray.wait([task, ready], timeout=0.2)[0] == []
    if end == "kill":
        ray.kill(holder)
    elif end == "exit":
        holder.leave.remote()
    elif end == "broken":
        with pytest.raises(RayActorError):
            ray.get(holder.__ray_call__.remote(lambda self: ray.exit_actor()))
    else:
        del holder
    assert ray.get([task, ready]) == [1, True]


def test_an_actor_that_fits_nowhere_waits_and_may_be_killed(start: Start) -> None:
    start(nodes=1, cpus_per_node=2)
    vain = Account.options(num_cpus=64).remote()
    ref = vain.add.remote(1)
    assert ray.wait([ref], timeout=0.2)[0] == []
    ray.kill(vain)
    with pytest.raises(ActorDiedError):
        ray.get(ref)


def test_actors_spread_over_nodes(start: Start) -> None:
    session = start(nodes=2, cpus_per_node=2)
    accounts = [Account.options(num_cpus=1).remote() for _ in range(4)]
    ray.get([account.__ray_ready__.remote() for account in accounts])
    assert sorted(row[1] for row in rows(session, "Account")) == [0, 0, 1, 1]


# -- real processes ------------------------------------------------------------


def test_the_process_dies_in_a_method(local: Start) -> None:
    session = local()
    account = Account.options(max_restarts=3, max_task_retries=0).remote()
    assert ray.get([account.add.remote(n) for n in range(10)])[-1] == 10
    for crashes in (1, 2, 3):
        with pytest.raises(ActorUnavailableError):
            ray.get(account.die.remote())
        add = account.add.options(max_task_retries=-1)  # the call waits for the restart
        assert ray.get(add.remote(9 + crashes)) == 10 + crashes
        assert rows(session, "Account")[0][2] == crashes
    assert ray.get(account.all.remote()) == list(range(13))
    with pytest.raises(ActorDiedError):
        ray.get(account.die.remote())


def test_a_call_that_crashes_the_actor_uses_up_its_retries(local: Start) -> None:
    session = local()
    account = Account.options(max_restarts=10, max_task_retries=2).remote()
    ray.get(account.add.remote(1))
    with pytest.raises(RayActorError):
        ray.get(account.die.remote())
    assert ray.get(account.add.remote(2)) == 2
    assert rows(session, "Account")[0][2] == 3  # the call was made three times


def test_each_call_takes_effect_once_when_processes_die_at_random(local: Start) -> None:
    local()

    @ray.remote(max_restarts=-1, max_task_retries=-1)
    class Fragile(Account.cls):  # type: ignore[name-defined,misc]
        def add(self, item: Any) -> int:
            length = len(self.history) + 1
            self.history.append(item)
            # Dies for real, but not when that call is made anew.
            flag = f"{self.flags}/{item}"
            if item % 15 == 7 and not os.path.exists(flag):
                open(flag, "w").close()
                os._exit(4)
            return length

        def use(self, flags: str) -> None:
            self.flags = flags

    with tempfile.TemporaryDirectory() as flags:
        fragile = Fragile.remote()
        fragile.use.remote(flags)
        refs = [fragile.add.remote(n) for n in range(60)]
        assert ray.get(refs) == list(range(1, 61))
        assert ray.get(fragile.all.remote()) == list(range(60))


def test_killed_by_a_signal(local: Start) -> None:
    local()
    account = Account.options(max_restarts=-1, max_task_retries=-1).remote(["x"])
    pid = ray.get(account.pid.remote())
    psutil.Process(pid).kill()
    assert ray.get(account.add.remote("y")) == 2
    assert ray.get(account.__ray_call__.remote(lambda self: os.getpid())) != pid


def test_saved_state_after_a_crash(local: Start) -> None:
    session = local()
    saved = Saved.options(max_task_retries=0).remote()
    ray.get([saved.add.remote(2) for _ in range(13)])
    with pytest.raises(RayActorError):
        ray.get(saved.die.remote())
    assert ray.get(saved.add.options(max_task_retries=-1).remote(2)) == 28
    assert rows(session, "Saved")[0][5] == 3


def test_a_node_dies(local: Start) -> None:
    session = local(nodes=3)
    accounts = [Account.options(num_cpus=1, max_restarts=-1, max_task_retries=-1).remote()
                for _ in range(3)]  # fmt: skip
    refs = [account.add.remote(n) for n in range(40) for account in accounts]
    ray.get(refs[:30])
    victim = next(row[1] for row in rows(session, "Account") if row[1] != 0)
    psutil.Process(session.cluster.pids[f"node:{victim}"]).kill()
    assert ray.get(refs) == [n + 1 for n in range(40) for _ in accounts]
    for account in accounts:
        assert ray.get(account.all.remote()) == list(range(40))
    assert all(row[1] != victim for row in rows(session, "Account"))


def test_shutdown_leaves_no_process(local: Start) -> None:
    local()
    accounts = [Account.remote() for _ in range(3)]
    detached = Account.options(name="detached", lifetime="detached").remote()
    pids = ray.get([account.pid.remote() for account in [*accounts, detached]])
    accounts[0].nap.remote(3600)
    assert all(psutil.pid_exists(pid) for pid in pids)
    ray.shutdown()
    eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids))
    # What is left of it does not begin another cluster.
    with pytest.raises(RaySystemError):
        accounts[0].pid.remote()
    with pytest.raises(RaySystemError):
        ray.kill(detached)
    assert not ray.is_initialized()
