"""retry_exceptions, scheduling_strategy, runtime_env, and options that are only Ray's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import raytwin as ray
from raytwin.runtime.api.exceptions import TaskUnschedulableError
from raytwin.runtime.api.options.scheduling_strategies import NodeAffinitySchedulingStrategy
from raytwin.runtime.api.options.task_options import UNSUPPORTED

pytestmark = pytest.mark.usefixtures("backend")

LIMIT_S = 30.0


class Flaky(Exception):
    pass


class Flakier(Flaky):
    pass


@ray.remote(max_retries=2)
def fail(path: str, error: type[Exception], times: int = 99) -> str:
    with open(path, "a", encoding="utf-8") as file:
        file.write("x")
    if os.path.getsize(path) <= times:
        raise error("again")
    return "done"


@pytest.mark.parametrize(
    ("option", "error", "runs"),
    [
        (False, Flaky, 1),
        (True, Flaky, 3),
        ([Flaky], Flakier, 3),
        ([Flakier], Flaky, 1),
        ([ValueError, Flaky], Flaky, 3),
    ],
)
def test_retry_exceptions_retries_user_errors(
    tmp_path: Path, option: Any, error: type[Exception], runs: int
) -> None:
    path = tmp_path / "runs"
    with pytest.raises(error):
        ray.get(fail.options(retry_exceptions=option).remote(str(path), error), timeout=LIMIT_S)
    assert path.stat().st_size == runs


def test_a_retry_may_succeed(tmp_path: Path) -> None:
    task = fail.options(retry_exceptions=[Flaky], max_retries=-1)
    ref = task.remote(str(tmp_path / "runs"), Flaky, 4)
    assert ray.get(ref, timeout=LIMIT_S) == "done"


def test_one_element_of_an_array_is_retried(tmp_path: Path) -> None:
    @ray.remote(retry_exceptions=True)
    def once(i: int) -> int:
        path = tmp_path / "once"
        if i == 5 and not path.exists():
            path.touch()
            raise Flaky
        return i

    assert ray.get(once.map(range(10)), timeout=LIMIT_S) == list(range(10))


@ray.remote
def variable(name: str, pause_s: float = 0.0) -> str | None:
    ray.sleep(pause_s)
    return os.environ.get(name)


@ray.remote
def variables(name: str) -> tuple[str | None, str | None]:
    ray.sleep(0.01)
    return os.environ.get(name), ray.get(variable.remote(name))


def test_variables_are_the_tasks_own_and_its_childrens() -> None:
    name = "RAYTWIN_TEST_VARIABLE"
    given = variables.options(runtime_env={"env_vars": {name: "1"}})
    assert ray.get([given.remote(name), variable.remote(name, 0.05)]) == [("1", "1"), None]
    assert ray.get([variable.remote(name) for _ in range(8)]) == [None] * 8
    assert name not in os.environ


def where(task: Any, count: int, name: str) -> list[int]:
    ray.get([task.options(name=name).remote(0.1) for _ in range(count)], timeout=LIMIT_S)
    events = ray.timeline()
    assert events is not None
    return [int(e["pid"].split()[1]) for e in events if e["name"] == name]


@ray.remote
def nap(seconds: float) -> None:
    ray.sleep(seconds)


def test_tasks_run_on_the_node_they_ask_for() -> None:
    for row in ray.nodes():
        number = int(row["NodeID"])
        for soft in (False, True):
            task = nap.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(row["NodeID"], soft)
            )
            assert where(task, 5, f"to-{number}-{soft}") == [number] * 5


def test_a_node_that_is_not_there() -> None:
    hard = nap.options(scheduling_strategy=NodeAffinitySchedulingStrategy("77", soft=False))
    with pytest.raises(TaskUnschedulableError, match="77"):
        ray.get(hard.remote(0.0), timeout=LIMIT_S)
    soft = nap.options(scheduling_strategy=NodeAffinitySchedulingStrategy("77", soft=True))
    assert ray.get(soft.remote(0.0), timeout=LIMIT_S) is None


def test_spread_uses_every_node() -> None:
    # Two each, but for one that would wait and finds the other node idle.
    found = where(nap.options(scheduling_strategy="SPREAD"), 4, "spread")
    assert set(found) == {0, 1}


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        *(({name: 1}, ValueError, f"Ray's option '{name}'") for name in UNSUPPORTED),
        ({"runtime_env": {"pip": ["x"]}}, ValueError, "env_vars only"),
        ({"runtime_env": {"env_vars": {"A": 1}}}, TypeError, "strings"),
        ({"runtime_env": 1}, TypeError, "dict"),
        ({"scheduling_strategy": "spread"}, ValueError, "SPREAD"),
        ({"retry_exceptions": ValueError}, TypeError, "list"),
        ({"retry_exceptions": ["ValueError"]}, TypeError, "classes"),
        ({"num_returns": "stream"}, ValueError, "streaming"),
    ],
    ids=str,
)
def test_impossible_options_raise(
    options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        nap.options(**options)


def test_options_with_rays_default_are_accepted() -> None:
    """As wrappers pass on, which have Ray's defaults."""

    @ray.remote
    class Actor:
        def f(self) -> int:
            return 1

    defaults = {"enable_task_events": True, "max_calls": 0, "placement_group": "default"}
    given = {**dict.fromkeys(UNSUPPORTED), **defaults, "placement_group_bundle_index": -1}
    assert ray.get(nap.options(**given).remote(0.0)) is None
    actor = Actor.options(**given).remote()
    method = actor.f.options(**given)
    assert ray.get(method.remote(), timeout=LIMIT_S) == 1
    for name in UNSUPPORTED:
        with pytest.raises(ValueError, match=f"Ray's actor option '{name}'"):
            Actor.options(**{name: 1})
    for name in defaults:
        with pytest.raises(ValueError, match=f"Ray's option '{name}'"):
            nap.options(**{name: None})


def test_an_accelerator_is_a_resource_of_a_node() -> None:
    ref = nap.options(accelerator_type="V9").remote(0.0)
    ready, _ = ray.wait([ref], timeout=0.2)
    assert not ready
    ray.cancel(ref)


def test_an_async_function_is_no_task() -> None:
    async def f() -> None:
        pass

    with pytest.raises(ValueError, match="asyncio"):
        ray.remote(f)


@pytest.mark.parametrize(
    "variables", [{"": "b"}, {"A=": "b"}, {"A\0": "b"}, {"A": "\0"}, {"A": "\ud800"}]
)
def test_a_variable_that_cannot_be_set_is_refused_where_it_is_given(variables: Any) -> None:
    with pytest.raises(ValueError, match=r"environment variable|env_vars"):
        ray.remote(runtime_env={"env_vars": variables})(len)
