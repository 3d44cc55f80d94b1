"""What programs do on Ray they do on raytwin.

Each program (`ray_programs`, `ray_programs_of_actors`) runs on Ray and on raytwin's backends,
and what it returns must be the same.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import raytwin
from tests.own_ray import own_ray, ray_folder
from tests.ray_programs import (
    affinity,
    arrays,
    awaiting,
    cancelling,
    context,
    errors,
    groups,
    pools,
    retries,
    streams,
    waiting,
)
from tests.ray_programs_of_actors import (
    cancelled_calls,
    ends_at_once,
    ends_of_actors,
    event_loops,
    failing_early,
    names,
    owners,
    threads,
)
from tests.requirements import require

pytestmark = pytest.mark.ray


PROGRAMS = [
    streams, retries, cancelling, awaiting, waiting, groups, context, affinity, pools,
    errors, failing_early, event_loops, ends_at_once, threads, arrays, cancelled_calls,
    ends_of_actors, names, owners,
]  # fmt: skip


class OnRay:
    """Runs programs on Ray, in a process of its own.

    A check of Ray's own fails now and then when a task is cancelled whose input is being
    awaited, and ends the process: then the program runs once more, in another one.
    """

    TRIES = 3

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: Any = None

    def run(self, program: Callable[[Any], Any]) -> Any:
        """Return what the program does; raises what it raises."""
        for _ in range(self.TRIES):
            if self._process is None:
                context = multiprocessing.get_context("spawn")
                self._pipe, theirs = context.Pipe()
                self._process = context.Process(target=serve, args=(theirs, self._folder))
                self._process.start()
                theirs.close()
            try:
                self._pipe.send(program.__name__)
                failed, result = self._pipe.recv()
            except (EOFError, ConnectionError):
                self.close()
                continue
            if failed:
                raise AssertionError(f"on Ray: {result}")
            return result
        raise AssertionError(f"Ray's process ended {self.TRIES} times in {program.__name__}")

    def close(self) -> None:
        """End the process, with its cluster."""
        if self._process is not None:
            self._pipe.close()
            self._process.join(60)
            self._process.kill()
            self._process = None


def serve(pipe: Any, folder: Path) -> None:
    """Run the programs that are asked for, by name, until the other end is closed."""
    named = {program.__name__: program for program in PROGRAMS}
    with own_ray(2, folder) as ray:
        while True:
            try:
                name = pipe.recv()
            except (EOFError, ConnectionError):
                break
            try:
                answer = (False, named[name](ray))
            except Exception:
                answer = (True, traceback.format_exc())
            pipe.send(answer)


@pytest.fixture(scope="module")
def on_ray() -> Iterator[OnRay]:
    require("ray", importlib.util.find_spec("ray") is not None, "Ray is not installed")
    with ray_folder() as folder:
        side = OnRay(folder)
        yield side
        side.close()


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_program_does_the_same(program: Callable[[Any], Any], on_ray: OnRay) -> None:
    expected = on_ray.run(program)
    for backend in ("local", "sim"):
        if backend == "sim" and program is cancelling:
            continue  # it waits in real time
        raytwin.init(backend=backend, num_cpus=2)
        try:
            assert program(raytwin) == expected, backend
        finally:
            raytwin.shutdown()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_ray_that_ends_is_started_anew(on_ray: OnRay) -> None:
    before = on_ray.run(awaiting)
    on_ray._process.kill()
    on_ray._process.join()
    assert on_ray.run(awaiting) == before
