"""The most frequent operations call no more functions than they need.

Calls of Python are counted, not time: that differs from one machine and moment to the next.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import raytwin as ray

Profile = Callable[[FrameType, str, Any], object]


def noting(names: set[str]) -> Profile:
    """Return what notes the functions that are called, as `module.function`."""

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            names.add(f"{frame.f_globals['__name__']}.{frame.f_code.co_name}")

    return note


@contextmanager
def noted() -> Iterator[set[str]]:
    """Note what this thread calls."""
    names: set[str] = set()
    before = sys.getprofile()
    sys.setprofile(noting(names))
    try:
        yield names
    finally:
        sys.setprofile(before)


def of_contextlib(names: set[str]) -> list[str]:
    return [name for name in names if name.startswith("contextlib.")]


LEFT = ["contextlib.__exit__"]
"""What `noted` itself has called in the end."""


def test_a_driver_puts_and_submits_without_generators_for_contexts(cluster: Any) -> None:
    @ray.remote
    def double(number: int) -> int:
        return 2 * number

    assert ray.get(double.remote(1)) == 2
    with noted() as names:
        refs = [ray.put(3), double.remote(4)]
    assert ray.get(refs) == [3, 8]
    assert {
        "raytwin.runtime.session.values.put",
        "raytwin.runtime.api.tasks.remote",
    } <= names
    assert of_contextlib(names) == LEFT


def test_a_worker_puts_and_submits_without_generators_for_contexts(cluster: Any) -> None:
    @ray.remote
    def double(number: int) -> int:
        return 2 * number

    @ray.remote
    def nested() -> tuple[set[str], list[int]]:
        double.remote(1)  # the first one has the function to send
        with noted() as names:
            refs = [ray.put(3), double.remote(4)]
        return names, ray.get(refs)

    names, values = ray.get(nested.remote())
    assert values == [3, 8]
    assert "raytwin.runtime.session.values.put" in names
    assert of_contextlib(names) == LEFT


def test_an_actor_that_does_not_leave_looks_at_neither_its_calls_nor_other_threads(
    cluster: Any,
) -> None:
    class Server:
        def __init__(self) -> None:
            self.names: set[str] = set()

        def begin(self) -> None:
            sys.setprofile(noting(self.names))

        def end(self) -> set[str]:
            sys.setprofile(None)
            return self.names

    server = ray.remote(Server).remote()
    ray.get(server.begin.remote())
    names = ray.get(server.end.remote())
    assert "raytwin.runtime.processes.client.local_world.block" in names
    assert not {
        "raytwin.runtime.execution.actor_execution.is_idle",
        "raytwin.runtime.processes.client.local_world._wake_successor",
    }.intersection(names)
