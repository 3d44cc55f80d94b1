"""What the bodies of programs cost: what they declare, or the CPU time that they take here."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

import raytwin as ray

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
