"""What runs again asks for the same again, and gets what it got the first time.

Its children's IDs depend on what they are made of. That must look the same on another
worker, whose address has another length, in a process with other hash seeds, and for classes
that are made anew.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import raytwin as ray
from runtime.backend.session.plain import WHOLE_BYTES_MAX
from runtime.backend.session.recipes import of_arguments, of_value

LIMIT_S = 30
ENOUGH = 1 << 30


@pytest.fixture(params=["sim", "local"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Any]:
    session: Any = ray.init(
        backend=request.param, nodes=[{"CPU": 2, "here": 1}, {"CPU": 1, "there": 1}]
    )
    yield session.cluster
    ray.shutdown()


@ray.remote(num_cpus=0, resources={"here": 0.1})
class Counter:
    def __init__(self, box: Any = None) -> None:
        self.count = 0

    def add(self, x: Any = None) -> int:
        self.count += 1
        return self.count

    def read(self) -> int:
        return self.count


def put_of_reference(counter: Any) -> Any:
    return counter.add.remote(ray.put([ray.put(1)]))


def reference_inside(counter: Any) -> Any:
    return counter.add.remote([ray.put(1)])


def reference_inside_of_many(counter: Any) -> Any:
    refs = [ray.put(1), *ray.remote(lambda x: [x]).map([[ray.put(1)], [2]])]
    return counter.add.remote({"refs": refs})


def local_dataclass(counter: Any) -> Any:
    @dataclass
    class Local:
        x: int

    return counter.add.remote(Local(1))


def local_tuple(counter: Any) -> Any:
    return counter.add.remote(namedtuple("Local", "a b")(1, "b"))


def strings_in_any_order(counter: Any) -> Any:
    names = {f"name {number}" for number in range(50)}
    return counter.add.remote((names, {frozenset(names)}, [ray.put(names)]))


ALIKE: list[Callable[[Any], Any]] = [
    put_of_reference,
    reference_inside,
    reference_inside_of_many,
    local_dataclass,
    local_tuple,
    strings_in_any_order,
]


@pytest.mark.parametrize("call", ALIKE)
def test_a_call_takes_effect_once_though_its_task_runs_twice(
    cluster: Any, tmp_path: Path, call: Callable[[Any], Any]
) -> None:
    log = tmp_path / "runs"

    @ray.remote(max_retries=-1, resources={"there": 1})
    def parent(counter: Any) -> Any:
        with log.open("a") as file:
            file.write("run\n")
        found = ray.get(call(counter))
        if len(log.read_text().split()) == 1:
            ray.sleep(LIMIT_S)
        return found

    counter = Counter.remote()
    assert ray.get(counter.read.remote()) == 0
    ref = parent.remote(counter)
    while ray.get(counter.read.remote(), timeout=LIMIT_S) == 0:
        ray.sleep(0.05)
    ray.sleep(0.3)
    cluster.restart_node(1)
    assert ray.get(ref, timeout=LIMIT_S) == 1
    assert ray.get(counter.read.remote(), timeout=LIMIT_S) == 1
    assert len(log.read_text().split()) == 2


def made_of_a_local_class(name: str) -> Any:
    @ray.remote
    class Local:
        def read(self) -> int:
            return 1

    return Local.options(name=name).remote()


def made_with_a_reference(name: str) -> Any:
    return ray.remote(Counter.cls).options(name=name).remote(ray.put([ray.put(1)]))


@pytest.mark.parametrize("make", [made_of_a_local_class, made_with_a_reference])
def test_a_named_actor_is_the_one_that_the_first_run_has_made(
    tmp_path: Path, make: Callable[[str], Any]
) -> None:
    mark = tmp_path / "began"
    ray.init(backend="local", nodes=1, cpus_per_node=2)

    @ray.remote(max_retries=3)
    def parent() -> Any:
        actor = make("the one")
        found = ray.get(actor.read.remote())
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), 9)
        return found

    try:
        assert ray.get(parent.remote(), timeout=LIMIT_S) is not None
        assert mark.exists()
    finally:
        ray.shutdown()


def test_a_state_is_rebuilt_as_callers_have_seen_it() -> None:
    ray.init(backend="local", nodes=1, cpus_per_node=2)

    @ray.remote(max_restarts=-1, max_task_retries=-1)
    class Logging:
        def __init__(self) -> None:
            self.found: list[int] = []

        def go(self, counter: Any) -> list[int]:
            local = namedtuple("Local", "a")(2)
            box = ray.put([ray.put(1), local])
            self.found.append(ray.get(counter.add.remote(box)))
            self.found.append(ray.get(counter.add.remote([ray.put(1)])))
            return self.found

        def pid(self) -> int:
            return os.getpid()

    try:
        counter, logging = Counter.options(resources={}).remote(), Logging.remote()
        seen: list[int] = []
        for _ in range(3):
            now = ray.get(logging.go.remote(counter), timeout=LIMIT_S)
            assert now[: len(seen)] == seen and len(now) == len(seen) + 2
            seen = now
            os.kill(ray.get(logging.pid.remote(), timeout=LIMIT_S), 9)
        assert seen == [1, 2, 3, 4, 5, 6]
        assert ray.get(counter.read.remote()) == 6
    finally:
        ray.shutdown()


IN_ANOTHER_PROCESS = """
import collections, dataclasses, enum, itertools, random, typing
import numpy as np
from runtime.backend.session.recipes import of_value

def looks(x): return x in {"a", "b", "cc", "ddd"}
def again(n): return again(n - 1) if n else looks(n)

class Above:
    def __init__(self): super().__init__()
    def me(self): return Above

class Colour(enum.Enum):
    RED = 1
    BLUE = 2

class Node:
    def __init__(self, name): self.name, self.near = name, set()

def graph(names, step):
    nodes = [Node(name) for name in names]
    for node, far in zip(nodes, nodes[step:] + nodes[:step]):
        node.near |= {nodes[0], nodes[1], far}
    return nodes

def values():
    @dataclasses.dataclass
    class Local:
        x: int
    yield Local(1)
    yield Local(2)
    @dataclasses.dataclass
    class Local:
        x: int
        y: int = 0
    yield Local(1)
    @dataclasses.dataclass
    class Other:
        x: int
    yield Other(1)
    yield looks
    yield again
    yield lambda x: x + 1
    yield lambda x: x + 2
    yield Above, Above()
    yield Colour.RED
    yield Colour.BLUE, {Colour.RED, Colour.BLUE}
    yield collections.namedtuple("Local", "a")(1)
    yield {"a", "b", "cc", None, 1}, frozenset("xyz"), {("a", frozenset("bcd"))}
    yield {1: {"q", "w", "e", Local, looks}}
    yield ["abc", "abc"]
    yield np.arange(4)
    yield np.arange(4).reshape(2, 2)
    yield np.arange(4, dtype="f4")
    yield typing.TypeVar("T")
    circle = []
    circle.append(circle)
    yield circle
    yield ValueError("x")
    # Ordered by what sets among their items hold; those have no order of their own.
    yield {frozenset({Colour.RED}), frozenset({Colour.RED, Colour.BLUE})}
    yield {frozenset({Colour.BLUE}), frozenset({Colour.RED, Colour.BLUE})}
    # Told apart only by what is far inside.
    yield {(one, ("x",) * 99, two) for one, two in itertools.product(Colour, Colour)}
    # Sets that are in themselves, as neighbours are.
    yield graph("ab", 1)
    yield graph(map(str, range(40)), 1)
    yield graph(map(str, range(40)), 2)
    yield set(graph(map(str, range(40)), 2))
    yield graph(map(str, range(40)), 2)[0]

found = [of_value(value, 100).hex() for value in values()]
assert len(set(found)) == len(found), "two are alike"
assert not any(bytes.fromhex(each).startswith(b"?") for each in found), "told by its type alone"
print(*found)
"""


def test_values_look_the_same_in_every_process() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", IN_ANOTHER_PROCESS],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            timeout=LIMIT_S,
        ).stdout
        for seed in "123"
    }
    assert len(found) == 1


def test_a_value_whose_sets_are_in_themselves_is_an_argument(cluster: Any) -> None:
    class Person:
        def __init__(self, name: str) -> None:
            self.name = name
            self.friends: set[Person] = set()

    people = [Person(str(number)) for number in range(12)]
    for person in people:
        person.friends |= set(people) - {person}

    @ray.remote
    def friends(them: list[Any]) -> list[int]:
        return [len(each.friends) for each in them]

    @ray.remote
    def ask(them: list[Any]) -> list[int]:
        return ray.get(friends.remote(them))

    assert ray.get(ask.remote(people), timeout=LIMIT_S) == [11] * 12


def test_it_does_not_matter_whether_equal_strings_are_one() -> None:
    # Results that came together share theirs, others do not.
    one = "abc"
    other = "".join(["ab", "c"])
    assert one is not other
    for more in ([], [np.float64(1)]):
        same = of_value([one, one, *more], ENOUGH)
        assert same == of_value([one, other, *more], ENOUGH)
        assert same != of_value([one, "abd", *more], ENOUGH)
        assert same != of_value([one, b"abc", *more], ENOUGH)


def test_what_is_in_many_places_is_not_written_in_each() -> None:
    shared: Any = ["x"] * 100
    for _ in range(12):
        shared = [shared] * 100
    assert of_value(shared, 20_000) != of_value([shared], 20_000)


class Asked:
    """Counts how often it is asked what it is made of."""

    asked: ClassVar[list[str]] = []

    def __init__(self, how: str) -> None:
        self.how = how

    def __reduce__(self) -> Any:
        self.asked.append(self.how)
        return Asked, (self.how,)


class AskedForState(Asked):
    __reduce__ = object.__reduce__

    def __getstate__(self) -> Any:
        self.asked.append(self.how)
        return {"how": self.how}


class AskedForItems(list[Any]):
    how = "items"

    def __reduce_ex__(self, protocol: Any) -> Any:
        Asked.asked.append(self.how)
        return AskedForItems, (), None, (number for number in range(3))


def test_what_a_worker_sends_is_asked_once_what_it_is_made_of(cluster: Any) -> None:
    @ray.remote
    def take(value: Any) -> Any:
        one, other, items, among, _ = value
        return one.how, other.how, list(items), len(among)

    @ray.remote
    def send(how: str, nbytes: int) -> Any:
        Asked.asked.clear()
        among = {Asked("one of a set"), AskedForState("another")}
        value = [Asked(how), AskedForState("state"), AskedForItems(), among, bytes(nbytes)]
        if how == "put":
            ref = take.remote(ray.put(value))
        elif how == "map":
            ref = take.map([value])[0]
        else:
            ref = take.remote(value)
        asked = list(Asked.asked)
        return sorted(asked), ray.get(ref)

    for how in "put", "map", "argument":
        for nbytes in 0, 300_000:
            asked, found = ray.get(send.remote(how, nbytes), timeout=LIMIT_S)
            assert asked == sorted([how, "state", "items", "one of a set", "another"])
            assert found == (how, "state", [0, 1, 2], 2)


def test_values_nested_deeply_are_told_apart() -> None:
    def nested(inner: Any) -> Any:
        for _ in range(800):
            inner = [inner]
        return inner

    # A reference's neighbour: what is not plain. Too deep for the limit of recursion as it is.
    found = [of_value(nested(inner), 5) for inner in (Counter, Counter, np.float64(2))]
    assert found[0] == found[1] != found[2]
    assert not found[0].startswith(b"?"), "told by its type alone"


def test_arguments_by_place_and_by_name_differ() -> None:
    found = [
        of_arguments((1,), {}, ENOUGH),
        of_arguments((), {"x": 1}, ENOUGH),
        of_arguments((True,), {}, ENOUGH),
        of_arguments((1.0,), {}, ENOUGH),
    ]
    assert len(set(found)) == 4


@pytest.mark.parametrize("make", [bytes, np.frombuffer, lambda b: {"in": np.frombuffer(b)}])
def test_of_long_blocks_samples_are_looked_at(make: Callable[[bytes], Any]) -> None:
    def recipe(at: int, nbytes: int) -> bytes:
        block = bytearray(nbytes)
        block[at] ^= 1
        return of_value(make(bytes(block)), nbytes)

    whole, long = WHOLE_BYTES_MAX, 8 * WHOLE_BYTES_MAX
    assert len({recipe(at, whole) for at in (0, 100_000, whole // 2, whole - 1)}) == 4
    assert len({recipe(at, long) for at in (0, long - 1)}) == 2
    assert recipe(0, long) != recipe(0, long + 8)
    # The rest would take as long as the copy.
    assert recipe(50_000, long) == recipe(60_000, long)
