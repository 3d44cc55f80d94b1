"""Values that are nested more deeply than the interpreter's limit of recursion lets pickle go."""

from __future__ import annotations

import pickle
import sys
import threading
from typing import Any

import pytest

from raytwin.runtime.serialization.serialization import deserialize, serialize


def test_a_value_that_is_nested_deeply() -> None:
    levels = 1_000  # Ray's most, of lists
    value: Any = {}
    for level in range(levels):
        value = [value] if level % 2 else {level: value}
    limit = sys.getrecursionlimit()
    again = deserialize(serialize(value).to_bytes())
    assert sys.getrecursionlimit() == limit
    depth = 0
    while again:
        again = next(iter(again.values() if isinstance(again, dict) else again))
        depth += 1
    assert depth == levels


class Unending:
    def __reduce__(self) -> Any:
        return Unending, (Unending(),)


def test_a_value_without_end_says_so() -> None:
    limit = sys.getrecursionlimit()
    with pytest.raises(pickle.PicklingError, match="deep recursion"):
        serialize(Unending())
    assert sys.getrecursionlimit() == limit


class Meeting:
    """Two are pickled at the same time, in two threads."""

    limit = sys.getrecursionlimit()
    both = threading.Barrier(2, timeout=20)

    def __reduce__(self) -> Any:
        if sys.getrecursionlimit() > self.limit:
            self.both.wait()
        return Meeting, ()


def test_several_threads_may_go_deep() -> None:
    """The limit is one for all; it is what it was when the last of them has left."""
    failed = []

    def run() -> None:
        value: Any = Meeting()
        for _ in range(700):
            value = [value]
        try:
            serialize(value)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failed
    assert sys.getrecursionlimit() == Meeting.limit
