"""A task that has called an actor dies and runs again: what its calls are answered with."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import raytwin as ray
from runtime.api.exceptions import ObjectLostError

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
    """Let go of what a call made, be killed, run again."""
    value = use(maker)
    assert set(value) == {7}
    if not Path(mark).exists():
        del value
        ray.sleep(0.2)  # what it has let go of is free
        Path(mark).touch()
        if kills_itself:
            os.kill(os.getpid(), signal.SIGKILL)
        ray.sleep(WAIT_S)
        return 0
    return value[0]


def kill_caller(cluster: Any) -> None:
    """Kill all workers of the last node."""
    for which in range(2):
        with contextlib.suppress(ValueError):
            cluster.kill_worker(2, which)


def restart_callers(cluster: Any) -> None:
    cluster.restart_node(2)


def check(session: Any, use: Any, mark: Path, strike: Any, near: bool, **options: int) -> None:
    """Hold that the second run gets the right value, or hears that it is lost, and that
    nothing happens to anybody else."""
    where = {"callers" if near else "actor": 0.1}
    maker = Maker.options(resources=where, **options).remote()
    options_of = caller.options(resources={"callers": 0.1})
    ran = options_of.remote(use, maker, str(mark), strike is None)
    while not mark.exists():
        ray.sleep(0.05)
    if strike is not None:
        strike(session.cluster)
    others = [put_there.options(resources=where).remote(200 + i) for i in range(5)]
    if use is small:
        assert ray.get(ran, timeout=WAIT_S) == 7
    else:
        with pytest.raises(ObjectLostError, match=r"let go of it|released it"):
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


@OPTIONS
@KINDS
@pytest.mark.parametrize("strike", [kill_caller, restart_callers])
def test_what_its_first_run_let_go_of_is_lost_and_nothing_else(
    start: Any, tmp_path: Path, use: Any, options: dict[str, int], strike: Any
) -> None:
    session = start(nodes=NODES, heartbeat_timeout_s=2.0)
    check(session, use, tmp_path / "mark", strike, False, **options)


@OPTIONS
@KINDS
def test_so_it_is_on_the_node_of_the_actor(
    local: Any, tmp_path: Path, use: Any, options: dict[str, int]
) -> None:
    session = local(nodes=NODES)
    check(session, use, tmp_path / "mark", None, True, **options)
