"""What the bodies of programs cost: what they declare, or the CPU time that they take here."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import raytwin as ray
from raytwin.runtime.control.core.ids import array_id, root_task_id, task_id
from raytwin.runtime.session.recording import Body, Driver, Recording
from raytwin.simulator.cluster.cluster_usage import Usage, UsageMeter

BODY_S = 0.02


def burn() -> int:
    """Use CPU time that nothing declares."""
    end_s = time.thread_time() + BODY_S
    while time.thread_time() < end_s:
        pass
    return 1


class Plain:
    def __init__(self) -> None:
        burn()

    def call(self) -> int:
        return burn()


class Coroutines:
    async def call(self) -> int:
        return burn()


@pytest.fixture
def start() -> Iterator[Any]:
    yield lambda **options: ray.init(backend="sim", seed=3, **options)
    ray.shutdown()


def elapsed_s(program: Any) -> float:
    began_s = ray.now()
    program()
    return ray.now() - began_s


def programs() -> dict[str, tuple[int, Any]]:
    """Return programs, each with the number of bodies that it runs one after another."""
    task, plain, coroutines = ray.remote(burn), ray.remote(Plain), ray.remote(Coroutines)

    def twice() -> Any:
        yield burn()
        yield burn()

    stream = ray.remote(twice).options(num_returns="streaming")
    return {
        "tasks, two at a time": (3, lambda: ray.get([task.remote() for _ in range(6)])),
        "an array": (3, lambda: ray.get(ray.remote(lambda _: burn()).map(range(6)))),
        "a stream": (2, lambda: [ray.get(item) for item in stream.remote()]),
        "an actor": (3, lambda: call_twice(plain.remote())),
        "an actor of coroutines": (2, lambda: call_twice(coroutines.remote())),
        "the driver": (1, burn),
    }


def call_twice(actor: Any) -> None:
    ray.get([actor.call.remote() for _ in range(2)])


def test_measured_bodies_cost_the_cpu_time_that_they_take_here(start: Any) -> None:
    start(nodes=1, cpus_per_node=2, cost="measured")
    for name, (bodies, program) in programs().items():
        took_s = elapsed_s(program)
        # More than that are the last turns of a body's loop, and what the runtime costs.
        assert bodies * BODY_S <= took_s <= 1.7 * bodies * BODY_S, name


def test_declared_bodies_cost_what_they_declare(start: Any) -> None:
    start(nodes=1, cpus_per_node=2)
    for name, (_, program) in programs().items():
        assert elapsed_s(program) < BODY_S, name
    assert elapsed_s(lambda: ray.get(ray.remote(ray.compute).remote(5.0))) > 5


def used(start: Any, program: Any, **options: Any) -> Usage:
    """Return what a program uses on one node with four CPUs."""
    meter = UsageMeter(start(nodes=1, cpus_per_node=4, **options).cluster)
    program()
    usage = meter.usage()
    ray.shutdown()
    return usage


def test_usage_has_what_bodies_take_and_not_what_they_or_the_driver_wait_for(start: Any) -> None:
    def naps() -> None:
        nap, waits, compute = (ray.remote(each) for each in (ray.sleep, ray.get, ray.compute))
        ray.get(waits.remote([nap.remote(1.0), compute.remote(1.0)]))
        ray.sleep(30.0)
        ray.compute(30.0)

    usage = used(start, naps)
    # Of four CPUs the waiting task needs none.
    assert usage.bodies_s == pytest.approx(2, rel=0.01)
    assert usage.tasks == 3


def test_usage_has_the_cpu_time_of_measured_bodies(start: Any) -> None:
    usage = used(start, lambda: [run() for _, run in programs().values()], cost="measured")
    bodies = 6 + 6 + 2 + 3 + 2
    assert bodies * BODY_S <= usage.bodies_s <= 1.7 * bodies * BODY_S


def test_a_measured_range_reports_while_it_runs(start: Any) -> None:
    start(nodes=1, cpus_per_node=1, cost="measured")
    work = ray.remote(lambda long: burn() if long else 0)
    ray.get(work.map([False] * 1000))  # so short that a worker is given many elements at once
    refs = list(work.map([True] * 5))
    first_s = elapsed_s(lambda: ray.wait(refs, num_returns=1))
    assert elapsed_s(lambda: ray.get(refs)) > 2 * first_s


def test_api_calls_cost_what_the_profile_says_not_what_they_take_here(start: Any) -> None:
    def puts() -> None:
        for number in range(500):
            ray.put(number)

    costs = {}
    for cost in ("declared", "measured"):
        start(nodes=1, cost=cost)
        costs[cost] = elapsed_s(puts)
        ray.shutdown()
    assert costs["declared"] <= costs["measured"] <= 2 * costs["declared"], costs


def test_a_profile_scales_what_is_measured(start: Any, tmp_path: Any) -> None:
    from importlib.resources import files

    paper = files("raytwin.simulator").joinpath("profiles", "paper.json").read_text()
    slow = tmp_path / "slow.json"
    slow.write_text(paper.replace('"cores"', '"body_scale": 3, "cores"', 1))
    start(nodes=1, cost="measured", profile=slow)
    assert 3 * BODY_S <= elapsed_s(burn) <= 1.7 * 3 * BODY_S
    ray.shutdown()
    slow.write_text(paper.replace('"cores"', '"body_scale": 0, "cores"', 1))
    with pytest.raises(ValueError, match="body_scale is 0"):
        start(nodes=1, profile=slow)


def test_an_unknown_cost_is_refused(start: Any) -> None:
    with pytest.raises(ValueError, match=re.escape("no cost 'guessed' of bodies; there are")):
        start(cost="guessed")
    with pytest.raises(TypeError, match="cost is an option of backend='sim'"):
        ray.init(backend="local", cost="measured")


def test_the_traceback_of_a_measured_body_is_that_of_user_code(start: Any) -> None:
    start(nodes=1, cost="measured")

    def fails() -> None:
        raise KeyError("k")

    with pytest.raises(KeyError) as caught:
        ray.get(ray.remote(fails).remote())
    assert "bodies.py" not in str(caught.value)
    assert "in fails" in str(caught.value)


# -- recorded ----------------------------------------------------------------------

ROOT = root_task_id("a recorded run")


def recorded(
    path: Path, bodies: dict[int, tuple[str, Any]], driver: list[tuple[float, float]]
) -> Path:
    """Write a recording in which the driver's n-th submission has such a name and own time."""
    found = Recording(
        "raytwin-recording", 1, "script.py", "local", [{"CPU": 1.0}], 1.0,
        Driver(ROOT.hex(), driver),
        [
            Body(
                task_id(array_id(ROOT, number), 0).hex(), name, "task", ROOT.hex(), {"CPU": 1.0},
                [], 0, 0, 0.0, 1.0, 0, own,
            )
            for number, (name, own) in bodies.items()
        ],
    )  # fmt: skip
    path.write_bytes(found.to_json())
    return path


def nap(seconds: float) -> None:
    ray.sleep(seconds)


def test_recorded_bodies_cost_what_they_took_by_id_then_by_function(
    start: Any, tmp_path: Path
) -> None:
    bodies = {1: ("nap", [(1.0, 2.0)]), 2: ("nap", [(4.0, 0.0)])}
    start(cost="recorded", recording=recorded(tmp_path / "r.json", bodies, []))
    task = ray.remote(nap)
    # Its own; its own, of which it sleeps a part itself; it sleeps longer than was recorded.
    for sleeps_s, costs_s in ((0.0, 3.0), (1.0, 5.0)):
        assert costs_s <= elapsed_s(lambda: ray.get(task.remote(sleeps_s))) < costs_s + 0.1  # noqa: B023
    # The mean of its function: 2.5 s of CPU time, and 1 s of waiting; it sleeps for 3 s instead.
    assert 3.5 <= elapsed_s(lambda: ray.get(task.remote(0.0))) < 3.6
    assert 5.5 <= elapsed_s(lambda: ray.get(task.remote(3.0))) < 5.6
    assert elapsed_s(lambda: ray.get(ray.remote(burn).remote())) < BODY_S
    cluster = ray.init(ignore_reinit_error=True).world.cluster  # type: ignore[attr-defined]
    costs = cluster.costs_of_bodies
    assert (costs.known, costs.by_function, costs.unknown) == (2, 2, 1)
    assert cluster.bodies_s == pytest.approx(3.0 + 5.0 + 3.5 + 5.5)


def test_a_body_with_the_id_of_another_functions_body_costs_the_mean_of_its_own_function(
    start: Any, tmp_path: Path
) -> None:
    bodies = {1: ("set_up", [(9.0, 0.0)]), 2: ("nap", [(1.0, 0.0)]), 3: ("nap", [(3.0, 0.0)])}
    start(cost="recorded", recording=recorded(tmp_path / "r.json", bodies, []))
    assert 2.0 <= elapsed_s(lambda: ray.get(ray.remote(nap).remote(0.0))) < 2.1


def test_what_was_recorded_between_two_waits_passes_before_the_second(
    start: Any, tmp_path: Path
) -> None:
    def outer() -> float:
        ray.get(ray.remote(nap).remote(0.0))
        return ray.now()

    bodies = {1: ("outer", [(1.0, 0.0), (0.0, 4.0)])}
    driver = [(2.0, 0.0), (3.0, 0.0)]
    start(cost="recorded", recording=recorded(tmp_path / "r.json", bodies, driver))
    began_s = ray.now()
    between_s = ray.get(ray.remote(outer).remote())
    # The driver's first part passes while its task runs, the task's second one after its own wait.
    assert 1.0 <= between_s - began_s < 1.1
    assert 5.0 <= ray.now() - began_s < 5.2
    assert 3.0 <= elapsed_s(lambda: ray.get(ray.put(1))) < 3.1


def test_a_recorded_stream_takes_its_time_item_by_item(start: Any, tmp_path: Path) -> None:
    def items() -> Iterator[int]:
        yield from range(3)

    own = [(0.0, 0.0), (1.0, 0.0), (0.0, 2.0), (4.0, 0.0), (0.0, 0.0)]
    start(cost="recorded", recording=recorded(tmp_path / "r.json", {1: ("items", own)}, []))
    began_s = ray.now()
    came_s = []
    for ref in ray.remote(items).options(num_returns="streaming").remote():
        ray.get(ref)
        came_s.append(ray.now() - began_s)
    assert came_s == [pytest.approx(each_s, abs=0.1) for each_s in (1.0, 3.0, 7.0)]


def test_recorded_costs_need_a_recording(start: Any, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    for options in ({"cost": "recorded"}, {"recording": recorded(path, {}, [])}):
        with pytest.raises(ValueError, match="go together: 'raytwin record' writes the file"):
            start(**options)
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"r\.json is not a recording: Object missing"):
        start(cost="recorded", recording=path)
