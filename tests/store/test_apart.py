"""Values that travel together and of which one cannot be loaded: the others are there.

What is expected of each is what happens to it when it travels alone.
"""

from __future__ import annotations

import functools
import gc
import pickle
import traceback
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.backend.apart import PartlyLoaded
from runtime.store import serialization
from runtime.store.serialization import SHARED_BYTES_MIN, SerializationError
from simulator import values as simulated

calls: list[str] = []


def refuse(text: str, *_: Any) -> Any:
    calls.append(text)
    raise LookupError(text)


def length(items: Any) -> int:
    return len(items)


class Bad:
    """Raises when it is made."""

    def __init__(self, text: str = "bad") -> None:
        self.text = text

    def __reduce__(self) -> Any:
        return refuse, (self.text,)


class BadState:
    """Raises when it has been made, and is given its state."""

    def __init__(self, *held: Any) -> None:
        self.held = held

    def __setstate__(self, state: Any) -> None:
        refuse(f"state {state['held'][:1]}")


class BadHash:
    """Raises when it becomes a key."""

    def __init__(self) -> None:
        self.key = 1

    def __hash__(self) -> int:
        return hash(self.key)

    def __reduce__(self) -> Any:
        return object.__new__, (BadHash,)


class BadItems(list[Any]):
    """Raises when it gets its items."""

    def extend(self, _: Any) -> None:
        refuse("items")

    append = extend


class BadItemsAndState(BadItems):
    def __setstate__(self, state: Any) -> None:
        calls.append("state")


class Gone:
    """Is not found again."""

    def __reduce__(self) -> str:
        return "gone"


gone = Gone()


class Eof:
    def __reduce__(self) -> Any:
        return _eof, ()


def _eof() -> None:
    raise EOFError("the end")


class Counted:
    """What it reduces to depends on what is in it, and does not contain that."""

    def __init__(self, *items: Any) -> None:
        self.items = items

    def __reduce__(self) -> Any:
        return length, (list(self.items),)


class SetBy:
    """Is given its state by a function, whose value is dropped."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def __repr__(self) -> str:
        return f"SetBy({self.state})"

    def __reduce__(self) -> Any:
        return SetBy, (None,), self.state, None, None, set_by


def set_by(made: SetBy, state: Any) -> None:
    if state == "refuse":
        refuse("setter")
    made.state = state


def deep(inner: Any) -> Any:
    for _ in range(400):
        inner = [inner]
    return inner


def by_value(held: Any) -> Callable[[], Any]:
    return lambda: held


def in_a_ring(held: Any) -> Any:
    """A tuple that contains itself: it is made while what it contains is not done."""
    ring: list[Any] = []
    whole = (ring, held)
    ring += whole, held
    return whole


def around(held: Any) -> Any:
    """A tuple that is made before what it contains is found to be broken."""
    inner: list[Any] = []
    whole = (inner,)
    inner += whole, held
    return whole


class Held:
    """Made of what it holds, by its class and by what it is given then."""

    def __init__(self, *held: Any) -> None:
        self.held = held

    def __repr__(self) -> str:
        return f"Held{self.held}"

    def __reduce__(self) -> Any:
        return Held, self.held[:1], {"held": self.held}


def alone(value: Any) -> Any:
    return serialization.deserialize(serialization.serialize([value]).to_bytes())[0]


KINDS: list[Callable[[list[Any]], Any]] = [
    list,
    tuple,
    deque,
    SetBy,
    lambda parts: dict(enumerate(parts)),
    lambda parts: Held(*parts),
    lambda parts: Counted(*parts),
    lambda parts: BadState(str(len(parts)), *parts),
    lambda parts: Bad(str(len(parts))),
]


@settings(max_examples=300)
@given(st.data())
def test_each_value_is_what_it_is_alone(data: st.DataObject) -> None:
    made: list[Any] = [1, "x", []]
    for _ in range(data.draw(st.integers(1, 12))):
        parts = data.draw(st.lists(st.sampled_from(range(len(made))), max_size=4))
        made.append(data.draw(st.sampled_from(KINDS))([made[each] for each in parts]))
    chosen = data.draw(st.lists(st.sampled_from(range(len(made))), min_size=2, max_size=5))
    written = [made[each] for each in chosen]
    found = serialization.deserialize_values(serialization.serialize(written).to_bytes())
    for index, value in enumerate(written):
        expected = outcome(functools.partial(lambda value: repr(alone(value)), value))
        assert outcome(functools.partial(lambda index: repr(found[index]), index)) == expected


@pytest.fixture(params=["sim", "local"])
def load(request: pytest.FixtureRequest) -> Callable[[list[Any]], list[Any]]:
    """Return what travelled as one pickle."""

    def of(written: list[Any]) -> list[Any]:
        calls.clear()
        if request.param == "sim":
            return simulated.deserialize_values(simulated.serialize(written).to_bytes())
        data = serialization.serialize(written).to_bytes()
        return serialization.deserialize_values(data)

    return of


def outcome(values: Callable[[], Any]) -> Any:
    try:
        return values()
    except Exception as error:
        return type(error), str(error), type(error.__cause__)


UNLOADABLE: dict[str, Callable[[], Any]] = {
    "made": Bad,
    "state": BadState,
    "key": lambda: {BadHash(): 1},
    "keys": lambda: {BadHash(): 1, 2: 3},
    "set": lambda: {BadHash(), 1},
    "frozenset": lambda: frozenset((BadHash(),)),
    "items": lambda: BadItems((1, 2)),
    "item": lambda: BadItems((1,)),
    "end of file": Eof,
    "in a list": lambda: [1, Bad(), 2],
    "in a dict": lambda: {"a": Bad(), "b": 2},
    "in an object": lambda: SimpleNamespace(a=1, b=Bad()),
    "in a tuple": lambda: (Bad(),),
    "in a long tuple": lambda: (1, 2, 3, 4, Bad()),
    "in a deque": lambda: deque([1, Bad(), 2]),
    "in an ordered dict": lambda: OrderedDict(a=1, b=Bad()),
    "deep": lambda: deep(Bad()),
    "counted": lambda: Counted(1, Bad()),
    "counted deep": lambda: Counted(deep(Bad())),
    "setter": lambda: SetBy("refuse"),
    "set by a setter": lambda: SetBy([Bad()]),
    "in a function": lambda: by_value(Bad()),
    "in a ring": lambda: in_a_ring(Bad()),
    "around": lambda: around(Bad()),
    "state around": lambda: around(BadState()),
    "state in a ring": lambda: in_a_ring(BadState()),
    "of two the first": lambda: [Bad("first"), {1: Bad("second")}],
    "two thousand": lambda: [*range(1500), Bad(), *range(500)],
    "beside an array": lambda: [np.zeros(SHARED_BYTES_MIN), Bad()],
}


@pytest.mark.parametrize("name", UNLOADABLE)
def test_what_cannot_be_loaded_raises_as_if_alone_and_its_neighbours_are_there(
    load: Callable[[list[Any]], list[Any]], name: str
) -> None:
    make = UNLOADABLE[name]
    alone = outcome(lambda: load([make()]))
    assert issubclass(alone[0], Exception)
    array = np.arange(SHARED_BYTES_MIN)
    found = load([[1], make(), (2, "x"), make(), None, array])
    assert outcome(lambda: found[1]) == alone
    assert outcome(lambda: found[3]) == alone
    assert found[0] == [1] and found[2] == (2, "x") and found[4] is None
    assert np.array_equal(found[5], array) and not found[5].flags.writeable
    assert found[4:5] == [None]
    assert outcome(lambda: found[2:4]) == alone


def test_a_class_that_is_not_found_says_so(load: Callable[[list[Any]], list[Any]]) -> None:
    written = [1, gone, 2]
    pickled = serialization.serialize(written).to_bytes()
    global_gone = globals().pop("gone")
    try:
        alone = outcome(lambda: pickle.loads(pickled))
        found = serialization.deserialize_values(pickled)
    finally:
        globals()["gone"] = global_gone
    assert alone[0] is AttributeError
    assert outcome(lambda: found[1]) == alone
    assert (found[0], found[2]) == (1, 2)
    assert load([1, gone, 2]) == written


def test_values_share_what_they_shared(load: Callable[[list[Any]], list[Any]]) -> None:
    shared = [1]
    found = load([shared, [Bad(), shared, again := {2}], (shared, again), Bad()])
    assert found[2] == ([1], {2})
    assert found[2][0] is found[0]
    with pytest.raises(LookupError):
        found[1]


def test_what_an_object_holds_that_breaks_later_is_there(
    load: Callable[[list[Any]], list[Any]],
) -> None:
    held = [1]
    broken = BadState(held)
    found = load([broken, held, broken, [broken], SetBy("refuse"), held])
    assert found[1] == [1] and found[5] is found[1]
    for index in (0, 2, 3, 4):
        with pytest.raises(LookupError):
            found[index]


def test_an_argument_of_a_call_that_raises_is_not_broken_by_it(
    load: Callable[[list[Any]], list[Any]],
) -> None:
    class Takes:
        def __init__(self, held: Any) -> None:
            self.held = held

        def __reduce__(self) -> Any:
            return refuse, (self.held,)

    held = [1]
    found = load([held, Takes(held), held, SetBy(held)])
    assert found[0] == [1] and found[2] is found[0] and found[3].state is found[0]


@pytest.mark.parametrize("make", [SetBy, by_value, lambda held: [held]])
def test_what_was_given_something_that_breaks_later_is_broken(
    load: Callable[[list[Any]], list[Any]], make: Callable[[Any], Any]
) -> None:
    ring: list[Any] = []
    whole = make(ring)
    ring += whole, Bad()
    found = load([ring, whole, 5])
    assert found[2] == 5
    for index in (0, 1):
        with pytest.raises(LookupError):
            found[index]


def test_nobody_is_called_with_a_stand_in(load: Callable[[list[Any]], list[Any]]) -> None:
    class Looks:
        def __init__(self, held: Any) -> None:
            self.held = held

        def __reduce__(self) -> Any:
            return seen.append, (self.held,)

    global seen
    seen = []
    found = load([Looks([Bad()]), 5])
    assert found[1] == 5
    assert seen == []


seen: list[Any] = []


def test_nobody_is_asked_for_more_of_what_is_broken(
    load: Callable[[list[Any]], list[Any]],
) -> None:
    broken = BadItemsAndState((1,))
    broken.more = 2  # type: ignore[attr-defined]
    found = load([broken, 5])
    assert found[1] == 5
    assert calls == ["items"] * 2


def test_many_values_are_there_but_one(load: Callable[[list[Any]], list[Any]]) -> None:
    for count in (1000, 1001, 2001, 3000):
        for bad in (0, 999, count - 1):
            found = load([*([n] for n in range(bad)), Bad(), *([n] for n in range(bad + 1, count))])
            assert [n for n in range(count) if n != bad and found[n] != [n]] == []
            with pytest.raises(LookupError):
                found[bad]


def test_one_alone_is_not_loaded_again(load: Callable[[list[Any]], list[Any]]) -> None:
    with pytest.raises(LookupError) as caught:
        load([[1, Bad(), {2: (3, 4, 5, 6)}]])
    assert calls == ["bad"]
    assert caught.value.__context__ is None


def test_where_all_can_be_loaded_it_is_a_list(load: Callable[[list[Any]], list[Any]]) -> None:
    assert type(load([[1], {2: 3}])) is list
    assert calls == []


@pytest.mark.parametrize("bad", [Bad, Eof, BadState])
def test_an_error_has_the_users_frames_and_keeps_nothing_alive(
    load: Callable[[list[Any]], list[Any]], bad: type
) -> None:
    class Held:
        pass

    found = load([Held(), bad(), deep(Held())])
    assert type(found) is PartlyLoaded
    neighbour = weakref.ref(found[0])
    gc.disable()
    try:
        with pytest.raises((LookupError, EOFError, SerializationError)) as caught:
            found[1]
        assert caught.value.__context__ is None
        trace = (caught.value.__cause__ or caught.value).__traceback__
        assert traceback.extract_tb(trace)[-1].name in ("refuse", "_eof")
        del found
        assert neighbour() is None, "the traceback keeps it"
    finally:
        gc.enable()


def test_malformed_bytes_raise_as_they_do_alone() -> None:
    pickled = serialization.serialize([[1], [2]]).to_bytes()
    laid_out = serialization.serialize([[1], np.zeros(SHARED_BYTES_MIN)]).to_bytes()
    for data in (pickled[:-3], laid_out[:-1], b"RTW1", b"", b"\x80\x05", pickle.dumps(Bad(), 5)):
        alone = outcome(lambda data=data: serialization.deserialize(data))  # type: ignore[misc]
        together = outcome(lambda data=data: serialization.deserialize_values(data))  # type: ignore[misc]
        assert together == alone
        assert alone[0] in (SerializationError, LookupError)


def test_an_interruption_is_no_error_of_a_value(load: Callable[[list[Any]], list[Any]]) -> None:
    class Interrupted:
        def __reduce__(self) -> Any:
            return _interrupt, ()

    with pytest.raises(KeyboardInterrupt):
        load([Bad(), Interrupted(), 5])


def _interrupt() -> None:
    raise KeyboardInterrupt
