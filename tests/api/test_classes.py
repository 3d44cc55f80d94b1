"""The attributes of actor classes and references, and the errors for missing ones."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import raytwin as ray
from raytwin.runtime.serialization.serialization import dumps_function


@ray.remote(num_cpus=0)
class Shelf:
    SIZE = 3

    @staticmethod
    def double(x: int) -> int:
        return 2 * x

    def size(self) -> int:
        return self.SIZE


def test_an_actor_class_has_the_attributes_of_its_class(backend: str) -> None:
    cls: Any = Shelf
    assert (cls.SIZE, cls.double(2)) == (3, 4)
    assert not hasattr(cls, "nothing")
    with pytest.raises(AttributeError, match=r"raytwin has no ActorClass\.bind: raytwin has Ray's"):
        cls.bind()
    assert pickle.loads(pickle.dumps(cls.options(num_cpus=1).SIZE)) == 3
    assert ray.get(Shelf.remote().size.remote(), timeout=60) == 3


def test_ids_do_not_become_references(backend: str) -> None:
    kind: Any = ray.ObjectRef
    ref = ray.put(1)
    for given in ((), (ref.binary(),), ("x",)):
        with pytest.raises(TypeError, match="raytwin makes no ObjectRef of an ID: calls, put"):
            kind(*given)
    for name in ("nil", "from_hex", "from_random"):
        with pytest.raises(AttributeError, match=f"raytwin has no ObjectRef.{name}: docs/api.md"):
            getattr(kind, name)
    assert ray.get(ref) == 1


@ray.remote
class Sent:
    def value(self) -> int:
        return 1


def test_a_class_is_sent_with_its_methods() -> None:
    """They were found by name in the class's place, so that workers imported all of the module."""
    assert Sent.value.__qualname__ == "Sent.value"
    code = Sent.cls.value.__code__.co_filename.encode()
    assert code in dumps_function(Sent.cls)
