"""A caller dies and runs again: the replies to its repeated calls."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import raytwin as ray
from raytwin.runtime.api.exceptions import ActorDiedError, ObjectLostError

WAIT_S = 30
LARGE_BYTES = 150_000
FOREVER = {"max_restarts": -1, "max_task_retries": -1}


@ray.remote
class Maker:
    """Makes values of which only one byte matters."""

    def __init__(self) -> None:
        self.calls = 0

    def small(self, i: int) -> bytes:
        self.calls += 1
        return bytes([i])

    def large(self, i: int) -> bytes:
        self.calls += 1
        return bytes([i]) * LARGE_BYTES

    def two(self, i: int) -> tuple[bytes, bytes]:
        self.calls += 1
        return bytes([i]) * LARGE_BYTES, bytes([i + 1]) * LARGE_BYTES

    def items(self, i: int) -> Iterator[bytes]:
        self.calls += 1
        for k in range(3):
            yield bytes([i + k]) * LARGE_BYTES

    def put(self, i: int) -> list[Any]:
        self.calls += 1
        return [ray.put(bytes([i]) * LARGE_BYTES)]

    def count(self) -> int:
        return self.calls


def small(maker: Any) -> bytes:
    value: bytes = ray.get(maker.small.remote(7))
    return value


def large(maker: Any) -> bytes:
    value: bytes = ray.get(maker.large.remote(7))
    return value


def two(maker: Any) -> bytes:
    value: bytes = ray.get(maker.two.options(num_returns=2).remote(7))[0]
    return value


def items(maker: Any) -> bytes:
    value: bytes = ray.get(next(maker.items.remote(7)))
    return value


def put(maker: Any) -> bytes:
    value: bytes = ray.get(ray.get(maker.put.remote(7))[0])
    return value


@ray.remote(max_retries=-1)
def caller(use: Callable[[Any], bytes], maker: Any, mark: str, kills_itself: bool) -> int:
    """Release the value of a call, be killed, run again."""
    value = use(maker)
    assert set(value) == {7}
    if not Path(mark).exists():
        del value
        ray.sleep(0.5)  # until the released objects are freed
        Path(mark).touch()
        if kills_itself:
            os.kill(os.getpid(), signal.SIGKILL)
        ray.sleep(WAIT_S)
        return 0
    return value[0]


def kill_caller(cluster: Any) -> None:
    """Kill the workers of the last node; where they are processes, the caller kills itself."""
    if is_simulated(cluster):
        for which in range(2):
            cluster.kill_worker(2, which)


def is_simulated(cluster: Any) -> bool:
    return type(cluster).__module__.startswith("raytwin.simulator")


def restart_callers(cluster: Any) -> None:
    cluster.restart_node(2)


def check(session: Any, use: Any, mark: Path, strike: Any, near: bool, **options: int) -> None:
    """Hold that the second run gets the right value, or hears that it is lost, and that
    nothing happens to anybody else."""
    where = {"callers" if near else "actor": 0.1}
    maker = Maker.options(resources=where, **options).remote()
    options_of = caller.options(resources={"callers": 0.1})
    kills_itself = strike is not restart_callers and not is_simulated(session.cluster)
    ran = options_of.remote(use, maker, str(mark), kills_itself)
    while not mark.exists():
        ray.sleep(0.05)
    if strike is not None:
        strike(session.cluster)
    others = [put_there.options(resources=where).remote(200 + i) for i in range(5)]
    if use is small:
        assert ray.get(ran, timeout=WAIT_S) == 7
    elif use is put:
        # When its owner lets go of it, nobody here decides.
        with contextlib.suppress(ObjectLostError):
            assert ray.get(ran, timeout=WAIT_S) == 7
    else:
        with pytest.raises(ObjectLostError, match="has released it"):
            ray.get(ran, timeout=WAIT_S)
    assert [ray.get(ref, timeout=WAIT_S)[0] for ref in others] == [200, 201, 202, 203, 204]
    assert ray.get(maker.count.remote(), timeout=WAIT_S) == 1


@ray.remote
def put_there(i: int) -> bytes:
    """Take the room that is free by now."""
    return bytes([i]) * LARGE_BYTES


NODES = [{"CPU": 2}, {"CPU": 2, "actor": 1}, {"CPU": 2, "callers": 1}]
KINDS = pytest.mark.parametrize("use", [small, large, two, items, put])
OPTIONS = pytest.mark.parametrize("options", [{}, FOREVER], ids=["once", "forever"])


STRIKES = pytest.mark.parametrize("strike", [kill_caller, restart_callers])
# Real processes get each value of the three at least once; all their combinations are simulated.
MIXED = pytest.mark.parametrize(
    ("use", "options", "strike"),
    [
        (small, {}, restart_callers),
        (large, FOREVER, kill_caller),
        (two, {}, kill_caller),
        (items, FOREVER, restart_callers),
        (put, {}, kill_caller),
    ],
)


@OPTIONS
@KINDS
@STRIKES
def test_only_results_that_the_first_run_released_are_lost(
    simulated: Any, tmp_path: Path, use: Any, options: dict[str, int], strike: Any
) -> None:
    session = simulated(nodes=NODES, heartbeat_timeout_s=2.0)
    check(session, use, tmp_path / "mark", strike, False, **options)


@MIXED
def test_only_results_that_the_first_run_released_are_lost_on_real_processes(
    local: Any, tmp_path: Path, use: Any, options: dict[str, int], strike: Any
) -> None:
    session = local(nodes=NODES, heartbeat_timeout_s=2.0)
    check(session, use, tmp_path / "mark", strike, False, **options)


@pytest.mark.parametrize(
    ("use", "options"), [(small, FOREVER), (large, {}), (two, FOREVER), (items, {}), (put, FOREVER)]
)
def test_only_released_results_are_lost_on_the_actors_node(
    local: Any, tmp_path: Path, use: Any, options: dict[str, int]
) -> None:
    session = local(nodes=NODES)
    check(session, use, tmp_path / "mark", None, True, **options)


@pytest.mark.parametrize("lets_go", [False, True])
def test_a_reconstructed_actor_makes_results_again_for_a_restarted_caller(
    start: Any, tmp_path: Path, lets_go: bool
) -> None:
    """Both died with their node, which is back; the task runs on another one by then."""

    @ray.remote(max_retries=-1, resources={"callers": 0.1})
    def parent(maker: Any, mark: str) -> int:
        ref = maker.large.remote(7)
        value = ray.get(ref)
        if lets_go:
            del ref
        Path(mark).touch()
        ray.sleep(1.0)
        assert set(value) == {7}
        return len(value)

    nodes = [{"CPU": 1}, {"CPU": 2, "actor": 1, "callers": 1}]
    cluster = start(nodes=nodes, heartbeat_timeout_s=2.0).cluster
    maker = Maker.options(resources={"actor": 0.1}, **FOREVER).remote()
    ran = parent.remote(maker, str(tmp_path / "mark"))
    while not (tmp_path / "mark").exists():
        ray.sleep(0.05)
    ray.sleep(0.2)
    cluster.add_node({"CPU": 1, "callers": 1})
    cluster.kill_node(1)
    ray.sleep(0.3)
    cluster.restart_node(1)
    assert ray.get(ran, timeout=WAIT_S) == LARGE_BYTES
    assert ray.get(maker.count.remote(), timeout=WAIT_S) == 1


@pytest.mark.parametrize("where", ["actor", "callers"])
def test_an_actor_whose_inputs_are_lost_is_not_reconstructed(start: Any, where: str) -> None:
    """It would be another one without it, and its callers hear of that."""

    @ray.remote(resources={"actor": 0.1}, **FOREVER)
    class Trainer:
        def __init__(self, maker: Any) -> None:
            self.maker = maker
            self.seen: list[int] = []

        def step(self, i: int) -> list[int]:
            self.seen.append(ray.get(self.maker.large.remote(i))[0])
            return self.seen

    start(nodes=NODES)
    maker = Maker.options(resources={where: 0.1}).remote()
    trainer = Trainer.remote(maker)
    steps = [trainer.step.remote(i) for i in range(4)]
    assert ray.get(steps, timeout=WAIT_S)[-1] == [0, 1, 2, 3]
    ray.sleep(0.5)
    ray.kill(trainer, no_restart=False)
    with pytest.raises(ActorDiedError, match=r"cannot be rebuilt: .*Trainer\.step raised"):
        ray.get(trainer.step.remote(4), timeout=WAIT_S)
    assert ray.get(maker.count.remote(), timeout=WAIT_S) == 4


def test_a_call_forgotten_by_the_reply_cache_does_not_take_effect_twice(
    start: Any, tmp_path: Path
) -> None:
    """A node remembers 32 MB of results, and of the other calls that they took effect."""

    @ray.remote
    class Counter:
        def __init__(self) -> None:
            self.n = 0

        def add(self, nbytes: int) -> bytes:
            self.n += 1
            return bytes(nbytes)

        def count(self) -> int:
            return self.n

    @ray.remote(max_retries=-1, resources={"callers": 0.1})
    def parent(counter: Any, mark: str, kills_itself: bool) -> int:
        lost = 0
        for _ in range(400):
            try:
                ray.get(counter.add.remote(90_000))
            except ObjectLostError as error:
                assert "not remembered" in str(error)
                lost += 1
        if not Path(mark).exists():
            Path(mark).touch()
            if kills_itself:
                os.kill(os.getpid(), signal.SIGKILL)
            ray.sleep(WAIT_S)
        return lost

    cluster = start(nodes=NODES).cluster
    counter = Counter.options(resources={"actor": 0.1}).remote()
    mark = tmp_path / "mark"
    ran = parent.remote(counter, str(mark), not is_simulated(cluster))
    while not mark.exists():
        ray.sleep(0.05)
    kill_caller(cluster)
    assert 0 < ray.get(ran, timeout=WAIT_S) < 400
    assert ray.get(counter.count.remote(), timeout=WAIT_S) == 400


@pytest.mark.parametrize("interval", [1, 2])
def test_a_call_that_a_checkpoint_contains_does_not_take_effect_twice(
    start: Any, tmp_path: Path, interval: int
) -> None:
    """Its caller had the result; then the actor starts again, and then the caller does."""

    @ray.remote(checkpoint_interval=interval, resources={"actor": 0.1}, **FOREVER)
    class Counter:
        def __init__(self) -> None:
            self.n = 0

        def add(self) -> int:
            self.n += 1
            return self.n

        def __ray_save__(self) -> int:
            return self.n

        def __ray_restore__(self, n: int) -> None:
            self.n = n

    @ray.remote(max_retries=-1, resources={"callers": 0.1})
    def parent(counter: Any, mark: str) -> list[int]:
        found = [ray.get(counter.add.remote()) for _ in range(3)]
        if not Path(mark).exists():
            Path(mark).touch()
            ray.sleep(WAIT_S)
        return found

    cluster = start(nodes=NODES, heartbeat_timeout_s=2.0).cluster
    counter = Counter.remote()
    mark = tmp_path / "mark"
    ran = parent.remote(counter, str(mark))
    while not mark.exists():
        ray.sleep(0.05)
    ray.sleep(0.5)  # the GCS has heard that the caller has the results
    cluster.kill_actor(0)
    ray.sleep(0.5)
    cluster.restart_node(2)
    assert ray.get(ran, timeout=WAIT_S) == [1, 2, 3]
    assert ray.get(counter.add.remote(), timeout=WAIT_S) == 4


@pytest.mark.parametrize("is_back", [False, True])
def test_results_from_before_a_checkpoint_are_lost_with_their_node(
    start: Any, tmp_path: Path, is_back: bool
) -> None:
    """The actor goes on elsewhere, and does not repeat the call that made it."""

    @ray.remote(checkpoint_interval=1, resources={"actor": 0.1}, **FOREVER)
    class Saves:
        def large(self) -> bytes:
            return bytes([7]) * LARGE_BYTES

        def __ray_save__(self) -> int:
            return 0

        def __ray_restore__(self, state: int) -> None:
            pass

    @ray.remote(max_retries=-1, resources={"callers": 0.1})
    def parent(actor: Any, mark: str) -> int:
        first = ray.get(actor.large.remote())[0]
        if not Path(mark).exists():
            ray.sleep(0.5)
            Path(mark).touch()
            ray.sleep(WAIT_S)
        return int(first)

    cluster = start(nodes=NODES, heartbeat_timeout_s=2.0).cluster
    mark = tmp_path / "mark"
    ran = parent.remote(Saves.remote(), str(mark))
    while not mark.exists():
        ray.sleep(0.05)
    cluster.add_node({"CPU": 1, "actor": 1})
    ray.sleep(0.3)
    cluster.kill_node(1)
    ray.sleep(1.0)
    if is_back:
        cluster.restart_node(1)
        ray.sleep(0.3)
    cluster.restart_node(2)
    with pytest.raises(ObjectLostError):
        ray.get(ran, timeout=WAIT_S)
