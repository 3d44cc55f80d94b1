"""Any actor's calls, errors, handles and names, in real and virtual time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import raytwin as ray
from raytwin.runtime.api.exceptions import (
    ActorDiedError,
    GetTimeoutError,
    RayActorError,
    RayTaskError,
)


@ray.remote
class Counter:
    """Counts, and remembers in which order."""

    def __init__(self, start: int = 0, *, step: int = 1) -> None:
        self.value = start
        self.step = step
        self.seen: list[Any] = []

    def add(self, tag: Any = None) -> int:
        self.value += self.step
        self.seen.append(tag)
        return self.value

    def order(self) -> list[Any]:
        return self.seen

    def fail(self) -> None:
        self.value += 100
        raise KeyError("lost")

    @ray.method(num_returns=2)
    def both(self) -> tuple[int, int]:
        return self.value, -self.value

    @ray.method(num_returns=0)
    def silent(self) -> None:
        self.value += self.step


@ray.remote
class Broken:
    def __init__(self, message: str) -> None:
        raise RuntimeError(message)

    def ping(self) -> int:
        return 1


@ray.remote(num_cpus=0)
def add_twice(counter: Any) -> int:
    ray.get(counter.add.remote())
    return int(ray.get(counter.add.remote()))


@ray.remote(num_cpus=0)
def fail() -> None:
    raise ValueError("no input")


@ray.remote(num_cpus=0)
def later(value: Any, seconds: float = 0.05) -> Any:
    ray.sleep(seconds)
    return value


# -- constructors --------------------------------------------------------------


def test_constructor_arguments(cluster: Any) -> None:
    assert ray.get(Counter.remote().add.remote()) == 1
    assert ray.get(Counter.remote(10, step=5).add.remote()) == 15
    assert ray.get(Counter.remote(ray.put(7)).add.remote()) == 8
    assert ray.get(Counter.remote(later.remote(20)).add.remote()) == 21


def test_wrong_arguments_raise_at_the_call(cluster: Any) -> None:
    with pytest.raises(TypeError):
        Counter.remote(1, 2, 3)
    counter = Counter.remote()
    with pytest.raises(TypeError):
        counter.add.remote(1, 2)
    with pytest.raises(AttributeError):
        counter.subtract  # noqa: B018
    with pytest.raises(TypeError, match=r"remote\(\)"):
        Counter()
    with pytest.raises(TypeError, match=r"remote\(\)"):
        counter.add()


def test_constructor_that_raises(cluster: Any) -> None:
    broken = Broken.remote("cannot start")
    for _ in range(2):  # calls before and after it is known
        with pytest.raises(ActorDiedError, match="cannot start"):
            ray.get(broken.ping.remote())
    with pytest.raises(RayActorError):
        ray.get(broken.__ray_ready__.remote())


def test_constructor_with_an_input_that_is_an_error(cluster: Any) -> None:
    counter = Counter.remote(fail.remote())
    with pytest.raises(ActorDiedError, match="argument of its constructor"):
        ray.get(counter.add.remote())


def test_ready_and_terminate(cluster: Any) -> None:
    counter = Counter.remote()
    assert ray.get(counter.__ray_ready__.remote()) is True
    ray.get([counter.add.remote() for _ in range(5)])
    with pytest.raises(RayActorError):
        ray.get(counter.__ray_terminate__.remote())
    with pytest.raises(ActorDiedError):
        ray.get(counter.add.remote())


def test_any_function_may_be_called_on_the_instance(cluster: Any) -> None:
    counter = Counter.remote(3)
    assert ray.get(counter.__ray_call__.remote(lambda self, x: self.value + x, 4)) == 7


# -- calls ---------------------------------------------------------------------


def test_calls_of_a_caller_are_in_order(cluster: Any) -> None:
    counter = Counter.remote()
    refs = [counter.add.remote(n) for n in range(200)]
    assert ray.get(refs) == list(range(1, 201))
    assert ray.get(counter.order.remote()) == list(range(200))


def test_an_input_that_is_late_does_not_change_the_order(cluster: Any) -> None:
    counter = Counter.remote()
    counter.add.remote(later.remote("first"))
    counter.add.remote("second")
    counter.add.remote(later.remote("third"))
    assert ray.get(counter.order.remote()) == ["first", "second", "third"]


def test_each_of_several_callers_keeps_its_order(cluster: Any) -> None:
    counter = Counter.remote()

    @ray.remote(num_cpus=0)
    def call(counter: Any, who: int) -> None:
        ray.get([counter.add.remote((who, n)) for n in range(30)])

    ray.get([call.remote(counter, who) for who in range(4)])
    seen = ray.get(counter.order.remote())
    assert len(seen) == 120
    for who in range(4):
        assert [n for by, n in seen if by == who] == list(range(30))


def test_errors_come_to_the_caller_and_the_actor_lives(cluster: Any) -> None:
    counter = Counter.remote()
    with pytest.raises(KeyError) as caught:
        ray.get(counter.fail.remote())
    assert isinstance(caught.value, RayTaskError)
    assert 'raise KeyError("lost")' in str(caught.value)
    assert "runtime/backend" not in str(caught.value)
    assert ray.get(counter.add.remote()) == 101
    with pytest.raises(ValueError, match="no input"):
        ray.get(counter.add.remote(fail.remote()))
    assert ray.get(counter.add.remote()) == 102


def test_several_values_and_none(cluster: Any) -> None:
    counter = Counter.remote(4)
    assert ray.get(counter.both.remote()) == [4, -4]
    assert counter.silent.remote() is None
    assert ray.get(counter.both.options(num_returns=1).remote()) == (5, -5)
    with pytest.raises(ValueError, match="2 values"):
        ray.get(counter.both.options(num_returns=3).remote())
    with pytest.raises(ValueError, match="num_returns"):
        counter.both.options(num_returns=-1)


def test_large_arguments_and_results(cluster: Any) -> None:
    @ray.remote
    class Store:
        def __init__(self, array: Any) -> None:
            self.array = array.copy()

        def add(self, other: Any, more: Any = 0) -> Any:
            self.array += other + more
            return self.array

        @ray.method(num_returns=2)
        def parts(self) -> tuple[Any, int]:
            return self.array[:100_000], len(self.array)

    ones = np.ones(200_000)
    store = Store.remote(ones)
    store.add.remote(ones, more=ray.put(ones))
    result = store.add.remote(ray.put(ones))
    assert np.array_equal(ray.get(result), 4 * ones)
    assert ray.get(store.add.remote(result))[0] == 8
    part, length = store.parts.remote()
    assert ray.get(length) == 200_000 and ray.get(part).sum() == 800_000

    @ray.remote(num_cpus=0)
    def total(array: Any) -> float:
        return float(array.sum())

    assert ray.get(total.remote(store.add.remote(0))) == 8 * 200_000


def test_get_with_timeout(cluster: Any) -> None:
    @ray.remote
    class Sleeper:
        def nap(self, seconds: float) -> float:
            ray.sleep(seconds)
            return seconds

    sleeper = Sleeper.remote()
    ref = sleeper.nap.remote(2.0)
    with pytest.raises(GetTimeoutError):
        ray.get(ref, timeout=0.01)
    ready, rest = ray.wait([ref], timeout=0.01)
    assert ready == [] and rest == [ref]
    assert ray.get(ref) == 2.0


# -- handles -------------------------------------------------------------------


def test_handles_go_to_tasks(cluster: Any) -> None:
    counter = Counter.remote()
    assert ray.get(add_twice.remote(counter)) == 2
    assert sorted(ray.get([add_twice.remote(counter) for _ in range(3)]))[-1] == 8
    assert ray.get(counter.add.remote()) == 9


def test_handles_are_kept_by_other_actors(cluster: Any) -> None:
    @ray.remote
    class Caller:
        def __init__(self, counters: list[Any]) -> None:
            self.counters = counters

        def call(self) -> list[int]:
            return [int(x) for x in ray.get([c.add.remote() for c in self.counters])]

        def give(self) -> Any:
            return self.counters[0]

    counters = [Counter.remote(), Counter.remote(10)]
    caller = Caller.remote(counters)
    same = counters[0]
    del counters
    assert ray.get(caller.call.remote()) == [1, 11]
    assert ray.get(caller.call.remote()) == [2, 12]
    back = ray.get(caller.give.remote())
    assert back == same and hash(back) == hash(same) and back in [same]
    assert ray.get(back.add.remote()) == 3


def test_a_handle_is_a_value(cluster: Any) -> None:
    counter = Counter.remote()
    again = ray.get(ray.put({"handle": counter}))["handle"]
    assert ray.get(again.add.remote()) == 1
    assert again == counter and repr(again) == repr(counter)
    assert again != Counter.remote()


def test_actors_start_tasks_and_actors(cluster: Any) -> None:
    @ray.remote
    class Parent:
        def __init__(self) -> None:
            self.child = Counter.remote(100)

        def work(self, n: int) -> list[int]:
            squares = ray.get([later.remote(x * x, 0.0) for x in range(n)])
            return [*squares, ray.get(self.child.add.remote())]

        def offspring(self) -> Any:
            return self.child

    parent = Parent.remote()
    assert ray.get(parent.work.remote(4)) == [0, 1, 4, 9, 101]
    child = ray.get(parent.offspring.remote())
    assert ray.get(child.add.remote()) == 102
    assert ray.get(parent.work.remote(1)) == [0, 103]


def test_a_tasks_actor_ends_with_its_last_handle_not_with_the_task(cluster: Any) -> None:
    @ray.remote(num_cpus=0)
    def make() -> Any:
        counter = Counter.remote(5)
        ray.get(counter.add.remote())
        return counter

    counter = ray.get(make.remote())
    assert ray.get(counter.add.remote()) == 7


def test_actors_call_in_a_chain(cluster: Any) -> None:
    @ray.remote
    class Link:
        def __init__(self, behind: Any = None) -> None:
            self.behind = behind

        def count(self) -> int:
            return 1 + (ray.get(self.behind.count.remote()) if self.behind else 0)

    link = Link.remote()
    for _ in range(6):
        link = Link.remote(link)
    assert ray.get(link.count.remote()) == 7


def test_classes_with_bases_static_and_class_methods(cluster: Any) -> None:
    class Base:
        def who(self) -> str:
            return type(self).__name__

        @staticmethod
        def double(x: int) -> int:
            return 2 * x

        @classmethod
        def name(cls) -> str:
            return cls.__name__

    @ray.remote
    class Derived(Base):
        def __call__(self, x: int) -> int:
            return x + 1

        def via(self) -> int:
            return self.double(21)

    derived = Derived.remote()
    assert ray.get(derived.who.remote()) == "Derived"
    assert ray.get(derived.double.remote(4)) == 8
    assert ray.get(derived.name.remote()) == "Derived"
    assert ray.get(derived.via.remote()) == 42
    assert ray.get(derived.__call__.remote(1)) == 2


# -- names ---------------------------------------------------------------------


def test_named_actors(cluster: Any) -> None:
    counter = Counter.options(name="named").remote(1)
    assert ray.get(ray.get_actor("named").add.remote()) == 2
    assert ray.get(counter.add.remote()) == 3
    with pytest.raises(ValueError, match="named"):
        Counter.options(name="named").remote()
    same = Counter.options(name="named", get_if_exists=True).remote(50)
    assert same == counter and ray.get(same.add.remote()) == 4
    fresh = Counter.options(name="fresh", get_if_exists=True).remote(50)
    assert ray.get(fresh.add.remote()) == 51
    for missing in ("nobody", "named2"):
        with pytest.raises(ValueError, match=missing):
            ray.get_actor(missing)

    @ray.remote(num_cpus=0)
    def find(name: str) -> int:
        return int(ray.get(ray.get_actor(name).add.remote()))

    assert ray.get(find.remote("named")) == 5


def test_namespaces(cluster: Any) -> None:
    here = Counter.options(name="spaced").remote(1)
    there = Counter.options(name="spaced", namespace="other").remote(2)
    assert ray.get_actor("spaced") == here
    assert ray.get_actor("spaced", namespace="other") == there
    with pytest.raises(ValueError):
        ray.get_actor("spaced", namespace="third")
    with pytest.raises(ValueError, match="a namespace is not empty"):
        ray.get_actor("spaced", namespace="")
    with pytest.raises(ValueError, match="a namespace is not empty"):
        Counter.options(name="spaced", namespace="")


def test_a_name_is_free_again(cluster: Any) -> None:
    counter = Counter.options(name="again").remote()
    ray.get(counter.add.remote())
    ray.kill(counter)
    with pytest.raises(ActorDiedError):
        ray.get(counter.add.remote())
    with pytest.raises(ValueError):
        ray.get_actor("again")
    assert ray.get(Counter.options(name="again").remote(1).add.remote()) == 2


def test_a_class_may_make_actors_of_itself(cluster: Any) -> None:
    @ray.remote
    class Nested:
        def depth(self, left: int) -> int:
            return 1 + ray.get(Nested.remote().depth.remote(left - 1)) if left else 0

        def items(self) -> Any:
            yield from "ab"

        def items_of_another(self) -> Any:
            return [ray.get(ref) for ref in Nested.remote().items.remote()]

    assert ray.get(Nested.remote().depth.remote(3), timeout=30) == 3
    assert ray.get(Nested.remote().items_of_another.remote(), timeout=30) == ["a", "b"]
