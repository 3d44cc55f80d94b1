"""What programs do on Ray they do on raytwin.

Each program (`ray_programs` and the modules beside it) runs on Ray and on raytwin's backends,
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
    calls_without_order,
    cancelled_calls,
    ends_at_once,
    ends_of_actors,
    event_loops,
    failing_early,
    found_by_name,
    handles_in_cycles,
    names,
    owners,
    threads,
)
from tests.ray_programs_of_deaths import (
    children_in_queues,
    children_of_a_lost_node,
    children_of_actors,
    children_of_tasks,
    constructors,
    inputs_of_constructors,
    restarting,
)
from tests.ray_programs_of_errors import (
    base_exceptions,
    ended_pools,
    more_yields,
    names_of_concurrent_calls,
    names_of_tasks,
    rows_of_groups,
    unordered_refs,
    unserializable,
)
from tests.ray_programs_of_memory import larger_than_memory, released_inputs
from tests.ray_programs_of_nesting import parents, siblings
from tests.ray_programs_of_resources import (
    actors_with_other_resources,
    actors_without_a_cpu,
    default_actors,
    gpus,
    system_resources,
    threads_of_libraries,
    visible_gpus,
)
from tests.requirements import require

pytestmark = pytest.mark.ray


PROGRAMS = [
    streams, retries, cancelling, awaiting, waiting, groups, context, affinity, pools,
    errors, failing_early, event_loops, ends_at_once, threads, arrays, cancelled_calls,
    ends_of_actors, names, owners, restarting, system_resources, default_actors,
    threads_of_libraries, constructors, children_of_tasks, children_of_actors,
    children_in_queues, inputs_of_constructors,
    base_exceptions, more_yields, unserializable, names_of_tasks, names_of_concurrent_calls,
    rows_of_groups, unordered_refs, ended_pools, found_by_name, handles_in_cycles,
    calls_without_order, parents, siblings,
]  # fmt: skip
"""They run on a cluster of two CPUs."""
OTHERS: dict[Callable[[Any], Any], dict[str, Any]] = {
    actors_with_other_resources: {"num_cpus": 2, "num_gpus": 1, "resources": {"x": 2.0}},
    actors_without_a_cpu: {"num_cpus": 0},
    larger_than_memory: {"num_cpus": 2, "object_store_memory": 100 << 20},
    released_inputs: {"num_cpus": 2},
    children_of_a_lost_node: {"num_cpus": 1, "resources": {"here": 1.0}},
    gpus: {"num_cpus": 2, "num_gpus": 4},
    visible_gpus: {"num_cpus": 2, "num_gpus": 4},
}
"""Programs that need other options, or kill nodes, with the options of their own cluster."""
ONLY_REAL = (cancelling, threads_of_libraries, visible_gpus)
"""They wait in real time, or look at a process's own environment."""


class OnRay:
    """Runs programs on Ray, in a process of its own.

    A check of Ray's own fails now and then when a task is cancelled whose input is being
    awaited, and ends the process: then the program runs once more, in another one.
    """

    TRIES = 3

    def __init__(self, folder: Path, **options: int) -> None:
        self._folder = folder
        self._options = options
        self._process: Any = None

    def run(self, program: Callable[[Any], Any]) -> Any:
        """Return what the program does; raises what it raises."""
        for _ in range(self.TRIES):
            if self._process is None:
                context = multiprocessing.get_context("spawn")
                self._pipe, theirs = context.Pipe()
                self._process = context.Process(
                    target=serve, args=(theirs, self._folder, self._options)
                )
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


def serve(pipe: Any, folder: Path, options: dict[str, int]) -> None:
    """Run the programs that are asked for, by name, until the other end is closed."""
    named = {program.__name__: program for program in (*PROGRAMS, *OTHERS)}
    with own_ray(folder=folder, cpus=options.pop("num_cpus"), **options) as ray:
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
        side = OnRay(folder, num_cpus=2)
        yield side
        side.close()


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_program_does_the_same(program: Callable[[Any], Any], on_ray: OnRay) -> None:
    on_both_backends(program, on_ray.run(program), num_cpus=2)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("program", OTHERS, ids=lambda program: program.__name__)
def test_a_program_does_the_same_on_its_own_cluster(program: Callable[[Any], Any]) -> None:
    require("ray", importlib.util.find_spec("ray") is not None, "Ray is not installed")
    options = OTHERS[program]
    with ray_folder() as folder:
        side = OnRay(folder, **options)
        try:
            expected = side.run(program)
        finally:
            side.close()
    on_both_backends(program, expected, **options)


def on_both_backends(program: Callable[[Any], Any], expected: Any, **options: Any) -> None:
    for backend in ("local", "sim"):
        if backend == "sim" and program in ONLY_REAL:
            continue
        raytwin.init(backend=backend, **options)
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
