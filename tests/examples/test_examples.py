"""Every example gives the same result in real time, in virtual time and on Ray."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

import raytwin
from raytwin.scenarios.applications import maze
from tests.own_ray import own_ray, ray_folder
from tests.requirements import require


def check_maze(path: list[tuple[int, int]]) -> bool:
    connected = all(abs(a[0] - b[0]) + abs(a[1] - b[1]) == 1 for a, b in pairwise(path))
    free = all(maze.MAZE[row][column] != "#" for row, column in path)
    ends = (path[0], path[-1]) == (maze.START, maze.GOAL)
    return connected and free and ends and len(path) == 9


EXAMPLES = {
    "actor_tree": lambda primes: primes == 96,  # below 36 * 14 = 504
    "batch_prediction": lambda rows: rows == 3 * 4_000,
    "arrays": lambda total: total == 250_000 * 28,
    "counter": lambda total: total == 10 * 45,
    "es": lambda scores: sum(scores[-5:]) > sum(scores[:5]) + 5 * 150,
    "map_reduce": lambda top: [word for word, _ in top] == ["word1", "word2", "word3"],
    "maze": check_maze,
    "monte_carlo_pi": lambda pi: abs(pi - 3.1416) < 0.05,
    "pipeline": lambda total: total == 4 * 780,
    "parameter_server": lambda error: error < 1e-3,
    "sgd": lambda losses: len(losses) == 30 and losses[-1] < losses[0] / 3,
    "serving": lambda error: error == 0.0,
    "ppo": lambda scores: min(scores[-2:]) > 2 * max(scores[:2]),
    "synchronous_server": lambda right: right > 0.7,
    "word_count": lambda top: top == [("a", 5), ("object", 4), ("task", 4), ("the", 4), ("and", 3)],
}
"""By name: whether a result is right."""
SMALL = {
    "actor_tree": 14, "batch_prediction": 3, "map_reduce": 2_000, "monte_carlo_pi": 2_000,
    "synchronous_server": 12,
}  # fmt: skip
"""By name: the size of what takes seconds by default."""
PLAY = ("es", "ppo")
"""Those that need gymnasium."""


@pytest.fixture(scope="module", params=["local", "sim", pytest.param("ray", marks=pytest.mark.ray)])
def ray(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The module that an example gets, connected to a cluster."""
    if request.param == "ray":
        require("ray", importlib.util.find_spec("ray") is not None, "Ray is not installed")
        with ray_folder() as folder, own_ray(4, folder) as ray:
            yield ray
    else:
        raytwin.init(backend=request.param, nodes=2, cpus_per_node=2)
        yield raytwin
        raytwin.shutdown()


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(ray: Any, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name in PLAY:
        require("rl", importlib.util.find_spec("gymnasium") is not None, "needs gymnasium")
    result = importlib.import_module(f"raytwin.scenarios.applications.{name}").main(
        ray, *([SMALL[name]] if name in SMALL else [])
    )
    assert EXAMPLES[name](result), result
    assert capsys.readouterr().out.count("\n") == 1
