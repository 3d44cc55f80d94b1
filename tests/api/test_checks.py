"""Public arguments are checked where they are given, alike on both backends.

What gets past the checks stands in a message exactly as its field's type, or the process
that decodes it would have to drop whoever has sent it.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import raytwin as ray
from raytwin.runtime.api.options.checks import amount, encodable, integer, name_of, text
from raytwin.runtime.api.util.placement_group import PlacementGroup


class Text(str):
    def __str__(self) -> str:
        return "something else"


def test_an_integer_is_exactly_one() -> None:
    for given in (True, np.int64(1), np.uint8(1), 1):
        number = integer("it", given, -1)
        assert number == 1 and type(number) is int
    for wrong in (1.0, "1", None, [1]):
        with pytest.raises(TypeError, match="it is an integer, not"):
            integer("it", wrong, 0)
    with pytest.raises(ValueError, match=r"it is -1 \(for ever\) or more, not -2"):
        integer("it", -2, -1, note=" (for ever)")
    with pytest.raises(ValueError, match="it is at most"):
        integer("it", 2**63, 0)


def test_a_text_is_exactly_one() -> None:
    for given in (np.str_("ab"), Text("ab"), "ab"):
        plain = text("it", given)
        assert plain == "ab" and type(plain) is str
    with pytest.raises(TypeError, match="it is a string, not 3"):
        text("it", 3)
    with pytest.raises(ValueError, match="it cannot be encoded"):
        text("it", "\ud800")


def test_an_amount_is_finite() -> None:
    assert repr(amount("it", True)) == "1" and repr(amount("it", np.float64(0.5))) == "0.5"
    for wrong in (float("nan"), float("inf"), 10**400, -1):
        with pytest.raises(ValueError, match=r"^it is "):
            amount("it", wrong)
    with pytest.raises(TypeError, match="it is a number, not '1'"):
        amount("it", "1")


def test_a_function_may_have_any_name() -> None:
    def function() -> None: ...

    function.__qualname__ = "\udcff"
    assert name_of(function) == "\\udcff" and type(name_of(function)) is str
    assert encodable("plain") == "plain"


@ray.remote
def task(x: Any = 1) -> Any:
    return x


@ray.remote(num_cpus=0)
class Actor:
    def method(self) -> int:
        return 1


@ray.remote
def wait() -> None:
    ray.sleep(60)


WRONG: dict[str, tuple[type[Exception], Callable[[], Any]]] = {
    "name is a string, not 3": (TypeError, lambda: task.options(name=3)),
    "name cannot be encoded": (ValueError, lambda: task.options(name="\ud800")),
    "max_retries is at most": (ValueError, lambda: task.options(max_retries=2**70)),
    "accelerator_type is a string": (TypeError, lambda: task.options(accelerator_type=5)),
    "num_cpus is a number, not '1'": (TypeError, lambda: task.options(num_cpus="1")),
    "'x' in resources is 0 or more, not -1": (
        ValueError,
        lambda: task.options(resources={"x": -1}),
    ),
    "a name in resources is a string": (TypeError, lambda: task.options(resources={3: 1})),
    "'A=' cannot be the name of an environment variable": (
        ValueError,
        lambda: task.options(runtime_env={"env_vars": {"A=": "3"}}),
    ),
    "'A'. has a null character": (
        ValueError,
        lambda: Actor.options(runtime_env={"env_vars": {"A": "\0"}}),
    ),
    "max_restarts is an integer": (TypeError, lambda: Actor.options(max_restarts="1")),
    "max_pending_calls is at most": (
        ValueError,
        lambda: Actor.options(max_pending_calls=2**70),
    ),
    "namespace is a string, not 6": (TypeError, lambda: Actor.options(name="x", namespace=6)),
    "^name is a string, not 5": (TypeError, lambda: Actor.remote().method.options(name=5)),
    "max_task_retries is an integer, not 'a'": (
        TypeError,
        lambda: Actor.remote().method.options(max_task_retries="a"),
    ),
    "max_task_retries is an integer, not 'b'": (
        TypeError,
        lambda: ray.method(max_task_retries="b"),
    ),
    "namespace is a string, not 5": (TypeError, lambda: ray.get_actor("q", namespace=5)),
    "^name is a string, not 7": (
        TypeError,
        lambda: ray.util.placement_group([{"CPU": 1}], name=7),
    ),
    "'CPU' in a bundle is 0 or more, not -1": (
        ValueError,
        lambda: ray.util.placement_group([{"CPU": -1}]),
    ),
    "a name in a bundle is a string, not 3": (
        TypeError,
        lambda: ray.util.placement_group([{3: 1}]),
    ),
    "placement_group is a PlacementGroup, not 'g'": (
        TypeError,
        lambda: ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy("g"),
    ),
    "placement_group_bundle_index needs a placement group": (
        ValueError,
        lambda: ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(None, 0),
    ),
}


def test_wrong_arguments_raise_at_the_call(backend: str) -> None:
    for said, (error, call) in WRONG.items():
        with pytest.raises(error, match=said):
            call()
    assert ray.get(task.remote(7)) == 7


def test_number_and_string_subclasses_are_accepted(backend: str) -> None:
    for option in (
        {"name": np.str_("a")}, {"name": Text("a")}, {"max_retries": True},
        {"max_retries": np.int64(1)}, {"num_returns": True}, {"num_cpus": np.int32(1)},
        {"resources": {np.str_("node:1"): 0.1}}, {"scheduling_strategy": np.str_("SPREAD")},
        {"runtime_env": {"env_vars": {np.str_("A"): np.str_("b")}}},
    ):  # fmt: skip
        assert ray.get(task.options(**option).remote(7), timeout=60) == 7, option
    for option in (
        {"max_restarts": True}, {"max_task_retries": True}, {"max_concurrency": True},
        {"max_pending_calls": True}, {"name": np.str_("b"), "get_if_exists": 1},
        {"name": "c", "lifetime": np.str_("detached")},
    ):  # fmt: skip
        actor = Actor.options(**option).remote()
        assert ray.get(actor.method.remote(), timeout=60) == 1, option
    calls = [actor.method.options(name=Text("d")), actor.method.options(max_task_retries=True)]
    assert ray.get([call.remote() for call in calls], timeout=60) == [1, 1]
    ray.get_actor(np.str_("c"), namespace=None)
    group = ray.util.placement_group([{"CPU": np.float64(1)}], np.str_("PACK"), np.str_("g"))
    assert group.wait(60)
    strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
        group, np.int64(0), placement_group_capture_child_tasks=1
    )
    assert ray.get(task.options(scheduling_strategy=strategy).remote(7), timeout=60) == 7
    for option in ({"force": 1}, {"recursive": 1}, {"recursive": None}):
        ref = wait.remote()
        ray.cancel(ref, **option)
        with pytest.raises(ray.exceptions.TaskCancelledError):
            ray.get(ref, timeout=60)
    assert ray.get(task.remote(7)) == 7


def test_no_placement_group_means_none(backend: str) -> None:
    strategies = ray.util.scheduling_strategies
    none = strategies.PlacementGroupSchedulingStrategy(None)
    empty = strategies.PlacementGroupSchedulingStrategy(PlacementGroup.empty())

    @ray.remote
    def where() -> str | None:
        found: str | None = ray.get_runtime_context().get_placement_group_id()
        return found

    @ray.remote
    def inside() -> list[Any]:
        return ray.get(  # type: ignore[no-any-return]
            [
                where.remote(),
                *(where.options(scheduling_strategy=s).remote() for s in (none, empty)),
            ]
        )

    group = ray.util.placement_group([{"CPU": 2}])
    captures = strategies.PlacementGroupSchedulingStrategy(
        group, placement_group_capture_child_tasks=True
    )
    assert ray.get(inside.options(scheduling_strategy=captures).remote(), timeout=60) == [
        group.id.hex(), None, None
    ]  # fmt: skip


def test_remote_takes_callables_only() -> None:
    """Builtins, partials and objects too, where Ray takes functions and classes alone."""
    for target in (partial(max, 1), len, dict):
        ray.remote(target)
    for wrong in (3, "f", ray.remote(len)):
        for make in (ray.remote, ray.remote(num_cpus=1)):
            with pytest.raises(TypeError, match="takes a function or a class, not"):
                make(wrong)
    with pytest.raises(TypeError, match=r"not @remote\(\)"):
        ray.remote()


@pytest.mark.parametrize("kind", [ray.ObjectRef, ray.ObjectRefArray])
def test_a_failed_reference_is_not_counted_down(monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    ignored: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    for arguments in ((), (b"x",), (b"x", None), (b"x", 1, 1, None)):
        with pytest.raises((TypeError, AttributeError)):
            kind(*arguments)
    gc.collect()
    assert not ignored
