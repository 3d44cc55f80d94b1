"""Actors end, restart and are reconstructed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import raytwin as ray
from raytwin.runtime.api.exceptions import ActorDiedError, ActorUnavailableError
from tests.actors.programs import Account, Saved, rows
from tests.processes.helpers import eventually


def crash(actor: Any, session: Any, name: str, incarnation: int) -> None:
    """Let an actor that may restart die, and wait until it lives again."""
    ray.kill(actor, no_restart=False)
    ray.get(actor.__ray_ready__.remote())
    assert [row[2] for row in rows(session, name)] == [incarnation]


# -- restarts on either backend ------------------------------------------------


def test_state_is_reconstructed(cluster: Any) -> None:
    account = Account.options(max_restarts=2, max_task_retries=-1).remote(["new"])
    ray.get([account.add.remote(n) for n in range(20)])
    for incarnation in (1, 2):
        crash(account, cluster, "Account", incarnation)
        assert ray.get(account.all.remote()) == ["new", *range(20)]
    ((_, _, incarnation, state, calls, replayed, *_),) = rows(cluster, "Account")
    # 20 calls to add, then an `all` for each restart; __ray_ready__ does not count.
    assert (incarnation, state, calls, replayed) == (2, "alive", 22, 21)
    ray.kill(account, no_restart=False)  # one more than it may
    with pytest.raises(ActorDiedError):
        ray.get(account.all.remote())


def test_interrupted_calls_are_retried_once(cluster: Any) -> None:
    account = Account.options(max_restarts=-1, max_task_retries=-1).remote()
    refs = []
    for n in range(60):
        refs.append(account.add.remote(n))
        if n % 20 == 10:
            ray.kill(account, no_restart=False)
    assert ray.get(refs) == list(range(1, 61))
    assert ray.get(account.all.remote()) == list(range(60))


def test_without_retries_calls_fail_until_the_actor_has_restarted(cluster: Any) -> None:
    # The actor takes a while to start again, so the driver submits the next call before that.
    account = Account.options(max_restarts=1).remote(start_s=0.3)
    ray.get(account.add.remote("before"))
    under_way = account.nap.remote(60)
    ready, _ = ray.wait([under_way], timeout=0.2)
    assert not ready
    ray.kill(account, no_restart=False)
    after = account.add.remote("lost")
    for ref in (under_way, after):
        with pytest.raises(ActorUnavailableError):
            ray.get(ref)
    assert ray.get(account.add.options(max_task_retries=1).remote("after")) == 2
    assert ray.get(account.all.remote()) == ["before", "after"]


def test_actors_that_may_not_restart_die(cluster: Any) -> None:
    account = Account.remote()
    ray.get(account.add.remote(1))
    waiting = account.nap.remote(60)
    ray.kill(account, no_restart=False)
    for ref in (waiting, account.all.remote()):
        with pytest.raises(ActorDiedError):
            ray.get(ref)


def test_checkpoints_shorten_the_replay(cluster: Any) -> None:
    saved = Saved.remote()
    assert ray.get([saved.add.remote(1) for _ in range(24)])[-1] == 24
    crash(saved, cluster, "Saved", 1)
    ((_, _, _, _, calls, replayed, *_),) = rows(cluster, "Saved")
    assert (calls, replayed) == (24, 4)
    assert ray.get(saved.add.remote(1)) == 25
    assert ray.get(saved.restorations.remote()) == 1
    # After 30 calls the third checkpoint; with the next result the GCS has it.
    ray.get([saved.add.remote(1) for _ in range(5)])
    crash(saved, cluster, "Saved", 2)
    ((_, _, _, _, calls, replayed, *_),) = rows(cluster, "Saved")
    assert (calls, replayed) == (31, 1)
    assert ray.get(saved.add.remote(1)) == 31
    assert ray.get(saved.restorations.remote()) == 2


def test_checkpoints_need_hooks() -> None:
    with pytest.raises(ValueError, match="__ray_save__"):

        @ray.remote(max_restarts=1, checkpoint_interval=5)
        class Plain:
            pass


def test_large_inputs_are_replayed(cluster: Any) -> None:
    @ray.remote(max_restarts=-1, max_task_retries=-1)
    class Sum:
        def __init__(self, start: Any) -> None:
            self.sum = start.copy()

        def add(self, other: Any) -> Any:
            self.sum += other
            return self.sum

    total = Sum.remote(np.ones(50_000))
    results = [total.add.remote(np.full(50_000, float(n))) for n in range(4)]
    assert ray.get(results[-1])[0] == 7
    ray.kill(total, no_restart=False)
    assert ray.get(total.add.remote(np.zeros(50_000)))[-1] == 7
    assert [ray.get(ref)[0] for ref in results] == [1, 2, 4, 7]


@ray.remote(max_restarts=-1, max_task_retries=-1)
class Reader:
    """Its state is the lengths of what it has read."""

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def read(self, value: Any) -> list[int]:
        inside = value if isinstance(value, np.ndarray) else ray.get(value[0])
        self.lengths.append(len(inside))
        return self.lengths


def test_large_items_of_streams_are_replayed(cluster: Any) -> None:
    @ray.remote
    def items() -> Any:
        yield np.ones(50_000)

    reader, stream = Reader.remote(), items.remote()
    assert ray.get(reader.read.remote(next(stream))) == [50_000]
    del stream
    ray.sleep(0.4)  # what the driver lets go of is released
    crash(reader, cluster, "Reader", 1)
    assert ray.get(reader.read.remote(np.ones(3))) == [50_000, 3]


def test_references_inside_of_small_inputs_are_replayed(cluster: Any) -> None:
    reader, box = Reader.remote(), ray.put([ray.put([1, 2])])
    assert ray.get(reader.read.remote(box)) == [2]
    del box
    ray.sleep(0.4)
    crash(reader, cluster, "Reader", 1)
    assert ray.get(reader.read.remote(np.ones(3))) == [2, 3]


def test_a_named_actor_gets_its_large_inputs(cluster: Any) -> None:
    for restarts in (0, -1):
        name = f"large{restarts}"
        kept = Account.options(name=name, max_restarts=restarts).remote([np.ones(50_000)])
        assert ray.get(kept.all.remote())[0].sum() == 50_000
        found = Account.options(name=name, get_if_exists=True).remote([np.zeros(50_000)])
        assert found == kept
        ray.get(ray.get_actor(name).add.remote(np.full(50_000, 2.0)))
        ray.kill(kept, no_restart=False)
        if restarts:
            assert ray.get(kept.all.options(max_task_retries=1).remote())[-1][0] == 2.0


def test_large_inputs_of_other_callers_are_replayed(cluster: Any) -> None:
    account = Account.options(max_restarts=-1, max_task_retries=-1).remote()

    @ray.remote
    class Caller:
        def call(self, account: Any, n: int) -> int:
            return int(ray.get(account.add.remote(np.full(50_000, n))))

    caller = Caller.remote()
    assert ray.get([caller.call.remote(account, n) for n in range(3)]) == [1, 2, 3]
    ray.kill(account, no_restart=False)
    assert [int(item[7]) for item in ray.get(account.all.remote())] == [0, 1, 2]


def test_children_of_an_actor_are_not_started_again(cluster: Any) -> None:
    counter = Account.options(name="log").remote()

    @ray.remote(max_restarts=-1, max_task_retries=-1)
    class Parent:
        def __init__(self, log: Any) -> None:
            self.log = log

        def work(self, n: int) -> int:
            return int(ray.get(self.log.add.remote(n)))

    parent = Parent.remote(counter)
    assert ray.get([parent.work.remote(n) for n in range(5)]) == [1, 2, 3, 4, 5]
    ray.kill(parent, no_restart=False)
    assert ray.get(parent.work.remote(5)) == 6
    assert ray.get(counter.all.remote()) == [0, 1, 2, 3, 4, 5]


# -- ends ----------------------------------------------------------------------


def test_kill_ends_running_calls(cluster: Any) -> None:
    account = Account.options(max_restarts=5, max_task_retries=5).remote()
    running = account.nap.remote(3600)
    ready, _ = ray.wait([running], timeout=0.2)
    assert not ready
    ray.kill(account)
    for ref in (running, account.add.remote(1)):
        with pytest.raises(ActorDiedError, match="kill"):
            ray.get(ref)
    ray.kill(account)  # again: nothing happens
    with pytest.raises(ValueError):
        ray.kill(running)  # type: ignore[arg-type]


def test_exit_actor(cluster: Any) -> None:
    account = Account.options(max_restarts=5, max_task_retries=5).remote()
    before = account.add.remote(1)
    leaving, after = account.leave.remote(), account.add.remote(2)
    assert ray.get(before) == 1
    for ref in (leaving, after, account.add.remote(3)):
        with pytest.raises(ActorDiedError):
            ray.get(ref)
    with pytest.raises(TypeError):
        ray.exit_actor()

    @ray.remote(num_cpus=0)
    def leave() -> None:
        ray.exit_actor()

    with pytest.raises(TypeError):
        ray.get(leave.remote())


def test_calls_before_exit_actor_are_answered(cluster: Any) -> None:
    """In virtual time its last words were lost, and it came back to leave once more, for ever."""
    account = Account.options(max_restarts=-1, max_task_retries=-1).remote()
    before, leaving = account.add.remote(1), account.leave.remote(0.001)
    assert ray.get(before, timeout=30) == 1
    with pytest.raises(ActorDiedError, match="exit_actor"):
        ray.get(leaving, timeout=30)


def test_out_of_scope(cluster: Any) -> None:
    account = Account.options(name="scoped").remote()
    last = account.nap.remote(0.05)
    del account
    assert ray.get(last) == "rested"  # what was called is still done
    eventually(lambda: not exists("scoped"))


def exists(name: str) -> bool:
    """Whether there is an actor of that name; lets time pass on either clock."""
    ray.sleep(0.01)
    try:
        ray.get_actor(name)
    except ValueError:
        return False
    return True


def test_detached_actors_stay(cluster: Any) -> None:
    def make(name: str, lifetime: str) -> None:
        ray.get(Account.options(name=name, lifetime=lifetime).remote().add.remote(1))

    make("detached", "detached")
    make("not-detached", "non_detached")
    eventually(lambda: not exists("not-detached"))
    assert ray.get(ray.get_actor("detached").add.remote(2)) == 2
    ray.kill(ray.get_actor("detached"))
    assert not exists("detached")


def test_an_actors_actors_end_with_it(cluster: Any) -> None:
    @ray.remote
    class Parent:
        def __init__(self) -> None:
            self.child = Account.options(name="child").remote()

        def ready(self) -> bool:
            return bool(ray.get(self.child.__ray_ready__.remote()))

    parent = Parent.remote()
    assert ray.get(parent.ready.remote())
    assert exists("child")
    ray.kill(parent)
    eventually(lambda: not exists("child"))
