"""The owner keeps the inputs of a constructor as long as the actor may restart, and no longer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import raytwin as ray
from raytwin.runtime.api.exceptions import ActorDiedError
from tests.actors.programs import rows
from tests.processes.helpers import eventually

LIMIT_S = 30.0
RELEASED_S = 0.5
"""After so long the owner and all nodes have released what the driver has dropped."""


@ray.remote(num_cpus=0)
def make(value: Any) -> Any:
    return value


@ray.remote(num_cpus=0)
def box() -> list[Any]:
    return [ray.put("a reference"), make.remote("inside of a result")]


def read(value: Any) -> Any:
    if isinstance(value, ray.ObjectRef):
        return read(ray.get(value, timeout=LIMIT_S))
    if isinstance(value, np.ndarray):
        return len(value)
    return [read(inside) for inside in value] if isinstance(value, list) else value


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Reader:
    def __init__(self, *inputs: Any) -> None:
        ray.sleep(0.2)
        self.inputs = read(list(inputs))

    def values(self) -> Any:
        return self.inputs

    def add(self, value: Any) -> None:
        self.inputs.append(read(value))

    def leave(self) -> None:
        ray.exit_actor()


@ray.remote(num_cpus=0)
class Owner:
    """Creates an actor from a value that somebody else owns."""

    def create(self, inputs: list[Any]) -> Any:
        return Reader.remote(inputs[0])

    def keep(self, readers: list[Any]) -> None:
        self.readers = readers

    def values(self) -> Any:
        return ray.get([reader.values.remote() for reader in self.readers], timeout=LIMIT_S)


def values(actor: Any) -> Any:
    return ray.get(actor.values.remote(), timeout=LIMIT_S)


def crash(session: Any, actor: Any) -> None:
    """Let an actor die twice, and wait each time until another incarnation lives."""
    values(actor)
    ray.sleep(RELEASED_S)
    for incarnation in (1, 2):
        ray.kill(actor, no_restart=False)
        values(actor)
        assert incarnation in [row[2] for row in rows(session, "Reader")]


INPUTS: dict[str, tuple[Callable[[], list[Any]], Any]] = {
    "put": (lambda: [ray.put("small")], ["small"]),
    "results": (lambda: [make.remote(1), make.remote([2])], [1, [2]]),
    "large": (lambda: [ray.put(np.ones(50_000)), make.remote(3)], [50_000, 3]),
    "references in a value": (lambda: [ray.put([ray.put(4), make.remote(5)])], [[4, 5]]),
    "references in a result": (lambda: [box.remote()], [["a reference", "inside of a result"]]),
    "references in an argument": (lambda: [[ray.put(6)], [[make.remote(7)]]], [[6], [[7]]]),
}


@pytest.mark.parametrize("kind", INPUTS)
def test_inputs_that_were_released_come_again(cluster: Any, kind: str) -> None:
    inputs, expected = INPUTS[kind]
    reader = Reader.remote(*inputs())
    crash(cluster, reader)
    assert values(reader) == expected


def test_a_detached_actor_keeps_its_inputs_without_any_handle(cluster: Any) -> None:
    Reader.options(name="detached", lifetime="detached").remote(ray.put([make.remote(1)]))
    once = {"name": "once", "lifetime": "detached", "max_restarts": 0}
    Reader.options(**once).remote(make.remote(2))
    reader = ray.get_actor("detached")
    crash(cluster, reader)
    assert (values(reader), values(ray.get_actor("once"))) == ([[1]], [2])
    for name in ("detached", "once"):
        ray.kill(ray.get_actor(name))


def test_any_handle_of_an_actor_keeps_its_inputs(cluster: Any) -> None:
    owner = Owner.remote()
    reader = Reader.remote(make.remote(1), [ray.put(2)])
    ray.get(owner.keep.remote([reader]), timeout=LIMIT_S)
    crash(cluster, reader)
    del reader
    ray.sleep(RELEASED_S)
    assert ray.get(owner.values.remote(), timeout=LIMIT_S) == [[1, [2]]]


def test_inputs_of_other_owners_are_kept(cluster: Any) -> None:
    owner = Owner.remote()
    reader = ray.get(owner.create.remote([make.remote(1)]), timeout=LIMIT_S)
    crash(cluster, reader)
    assert values(reader) == [1]


# -- releases ------------------------------------------------------------------


def is_kept(session: Any, name: bytes) -> bool:
    ray.get(make.remote(None), timeout=LIMIT_S)  # what was dropped is counted by the next call
    return name in session.client.entries


def kept_input(session: Any, create: Callable[[Any], Any]) -> tuple[Any, Callable[[], bool]]:
    """Create an actor from a value that only it keeps; return it and whether the value is kept."""
    value = ray.put("small")
    array = value.binary()[:12]
    reader = create(value)
    assert values(reader) == ["small"]
    del value
    return reader, lambda: is_kept(session, array)


def is_released(kept: Callable[[], bool]) -> bool:
    return bool(eventually(lambda: not kept(), LIMIT_S))


@pytest.mark.parametrize("lifetime", [None, "detached"])
def test_an_actor_that_never_restarts_keeps_no_inputs(cluster: Any, lifetime: Any) -> None:
    options = {"max_restarts": 0, "max_task_retries": 0, "lifetime": lifetime}
    options["name"] = "never" if lifetime else None
    _reader, kept = kept_input(cluster, Reader.options(**options).remote)
    assert is_released(kept)
    ray.kill(_reader)


@pytest.mark.parametrize("lifetime", [None, "detached"])
@pytest.mark.parametrize("end", ["killed", "left"])
def test_a_dead_actor_keeps_no_inputs(cluster: Any, end: str, lifetime: Any) -> None:
    create = Reader.options(name="dies" if lifetime else None, lifetime=lifetime).remote
    reader, kept = kept_input(cluster, create)
    ray.get([reader.add.remote(ray.put([ray.put(n)])) for n in range(3)], timeout=LIMIT_S)
    ray.sleep(RELEASED_S)
    assert kept()
    if end == "killed":
        ray.kill(reader)
    else:
        reader.leave.remote()
    assert is_released(kept)
    boxed = ray.put([ray.put("late")])
    late = boxed.binary()[:12]
    with pytest.raises(ActorDiedError):
        ray.get(reader.add.remote(boxed), timeout=LIMIT_S)
    del boxed
    assert is_released(lambda: is_kept(cluster, late))


def test_inputs_go_with_the_last_handle(cluster: Any) -> None:
    reader, kept = kept_input(cluster, Reader.remote)
    ray.sleep(RELEASED_S)
    assert kept()
    del reader
    assert is_released(kept)


def test_a_name_that_is_taken_keeps_no_inputs(cluster: Any) -> None:
    options = {"name": "taken", "lifetime": "detached", "get_if_exists": True}
    first = Reader.options(**options).remote(make.remote(1))
    value = ray.put("small")
    array = value.binary()[:12]
    assert values(Reader.options(**options).remote(value)) == [1]
    del value
    assert is_released(lambda: is_kept(cluster, array))
    ray.kill(first)
