"""Options of actors and methods that limit or retry calls, or are unsupported."""

from __future__ import annotations

from typing import Any

import pytest

import raytwin as ray
from raytwin.runtime.api.exceptions import PendingCallsLimitExceeded

pytestmark = pytest.mark.usefixtures("cluster")


class Moody(Exception):
    pass


@ray.remote(max_task_retries=2, max_restarts=-1)
class Fails:
    def __init__(self) -> None:
        self.calls = 0

    def _fail(self, times: int, kind: type[Exception]) -> int:
        self.calls += 1
        if self.calls <= times:
            raise kind("again")
        return self.calls

    @ray.method(retry_exceptions=[Moody])
    def some(self, times: int, kind: type[Exception]) -> int:
        return self._fail(times, kind)

    @ray.method(retry_exceptions=True)
    def every(self, times: int) -> int:
        return self._fail(times, ValueError)

    @ray.method
    def plain(self, times: int) -> int:
        return self._fail(times, ValueError)

    def count(self) -> int:
        return self.calls


@ray.remote(max_task_retries=2)
class FailsAsync:
    def __init__(self) -> None:
        self.calls = 0

    @ray.method(retry_exceptions=True)
    async def every(self, times: int) -> int:
        self.calls += 1
        if self.calls <= times:
            raise Moody
        return self.calls


def get(ref: Any) -> Any:
    return ray.get(ref, timeout=60)


def test_a_method_is_retried_after_the_given_errors() -> None:
    assert get(Fails.remote().every.remote(2)) == 3
    assert get(Fails.remote().some.remote(2, Moody)) == 3
    assert get(FailsAsync.remote().every.remote(2)) == 3
    actor = Fails.remote()
    with pytest.raises(ValueError, match="again"):
        get(actor.some.remote(2, ValueError))
    assert get(actor.count.remote()) == 1
    with pytest.raises(ValueError, match="again"):
        get(actor.plain.remote(9))
    assert get(actor.plain.options(retry_exceptions=True).remote(4)) == 5
    with pytest.raises(Moody):
        get(actor.some.remote(99, Moody))
    assert get(actor.count.remote()) == 8


def test_tries_come_before_the_next_call() -> None:
    actor = Fails.remote()
    tried, after = actor.every.remote(2), actor.count.remote()
    assert (get(after), get(tried)) == (3, 3)


@ray.remote(max_pending_calls=2)
class Slow:
    def work(self, seconds: float) -> float:
        ray.sleep(seconds)
        return seconds


@ray.remote
def call_twice(actor: Any) -> int:
    return len([get(ref) for ref in [actor.work.remote(0.0), actor.work.remote(0.0)]])


def test_pending_calls_are_limited_for_each_caller() -> None:
    actor = Slow.remote()
    pending = [actor.work.remote(0.5), actor.work.remote(0.5)]
    with pytest.raises(PendingCallsLimitExceeded, match="max_pending_calls is 2"):
        actor.work.remote(0.0)
    assert get(call_twice.remote(actor)) == 2
    assert get(pending) == [0.5, 0.5]
    assert get(actor.work.remote(0.0)) == 0.0
    assert get([Slow.options(max_pending_calls=-1).remote().work.remote(0.0) for _ in range(4)])


@pytest.mark.parametrize(
    ("option", "value"), [("concurrency_groups", {"io": 2}), ("label_selector", {})]
)
def test_unsupported_actor_options_raise(option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{option}.*docs/api.md"):
        Slow.options(**{option: value})
    with pytest.raises(ValueError, match=option):
        ray.remote(**{option: value})


@pytest.mark.parametrize("option", ["concurrency_group", "enable_task_events"])
def test_unsupported_method_options_raise(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option}.*docs/api.md"):
        ray.method(**{option: "io"})
    with pytest.raises(TypeError, match="retry_exceptions"):
        ray.method(retry_exceptions=5)


@ray.remote
class Special:
    """What Ray's handles call, they call too."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return 2 * index

    def __enter__(self) -> str:
        return "in"

    def __repr__(self) -> str:
        return "the actor itself"


def test_special_methods_are_called_by_name() -> None:
    special = Special.remote()
    assert get(special.__len__.remote()) == 4  # type: ignore[attr-defined]
    assert get(special.__getitem__.remote(3)) == 6  # type: ignore[attr-defined]
    assert get(special.__enter__.remote()) == "in"  # type: ignore[attr-defined]
    assert repr(special).startswith("Actor(Special")
    with pytest.raises(AttributeError):
        special.__repr__.remote()  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        len(special)  # type: ignore[arg-type]
    assert not hasattr(special, "__iter__")
