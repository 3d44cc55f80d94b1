"""What a dead worker owned and others have borrowed belongs to its node."""

from __future__ import annotations

from typing import Any

import pytest

import raytwin as ray
from runtime.api.exceptions import OwnerDiedError
from tests.references.conftest import Start, nothing_left, stored, until
from tests.references.test_borrowed import first, large, on
from tests.references.test_failures import kill_workers

LIMIT_S = 50.0
"""What only a hang takes."""
LONGER_S = 6.0
"""Than borrowers may take to say that they are some."""
KINDS = ("small put", "large put", "small task", "large task", "far task", "slow task")


def sleeper(seconds: float, value: Any) -> Any:
    ray.sleep(seconds)
    return value


def give(kind: str) -> Any:
    """Own something, and give a reference of it away."""
    size, _, what = kind.partition(" ")
    if what == "put":
        return [ray.put(large(7) if size == "large" else 7)]
    if size == "slow":
        # It needs what its dead submitter has put, and nobody else knows of.
        return [on(2)(sleeper).remote(9.0, ray.put(large(7)))]
    return [on(2 if size == "far" else 1)(large if size != "small" else first).remote(
        7 if size != "small" else ray.put(large(7))
    )]  # fmt: skip


def seven(ref: Any) -> bool:
    value = ray.get(ref, timeout=LIMIT_S)
    return bool((value if isinstance(value, int) else first(value)) == 7)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_there_when_the_tasks_idle_worker_is_killed(start: Start, kind: str) -> None:
    session = start(heartbeat_timeout_s=2.0)
    outer = on(1)(give).remote(kind)
    [ref] = ray.get(outer)
    ray.sleep(0.3)
    kill_workers(session, 1)
    assert seven(ref)
    del outer, ref
    nothing_left(session)


def test_it_is_kept_as_long_as_somebody_has_it(start: Start) -> None:
    session = start(heartbeat_timeout_s=2.0)

    class Holder:
        def keep(self, refs: Any) -> None:
            self.refs = refs

        def read(self) -> bool:
            return seven(self.refs[0])

        def drop(self) -> None:
            self.refs = None

    holder = on(2)(Holder).remote()
    refs = ray.get(on(1)(give).remote("large put"))
    ray.get(holder.keep.remote(refs))
    ray.sleep(0.3)
    kill_workers(session, 1)
    del refs
    ray.sleep(LONGER_S)
    assert ray.get(holder.read.remote())
    assert stored(session)
    ray.get(holder.drop.remote())
    until(lambda: not stored(session))
    del holder
    nothing_left(session)


def test_a_value_that_nobody_has_read_keeps_what_is_inside(start: Start) -> None:
    session = start(heartbeat_timeout_s=2.0)
    outer = on(1)(give).remote("large put")
    packed = ray.put([outer])
    ray.wait([outer], fetch_local=False)
    ray.sleep(0.3)
    kill_workers(session, 1)
    ray.sleep(LONGER_S)
    [ref] = ray.get(ray.get(packed)[0])
    assert seven(ref)
    del outer, packed, ref
    nothing_left(session)


def test_a_borrowers_death_frees_it(start: Start) -> None:
    session = start(heartbeat_timeout_s=2.0)

    class Holder:
        def keep(self, refs: Any) -> None:
            self.refs = refs

    holder = on(2)(Holder).remote()
    ray.get(holder.keep.remote(ray.get(on(1)(give).remote("large put"))))
    ray.sleep(0.3)
    kill_workers(session, 1)
    assert stored(session)
    session.cluster.kill_node(2)
    until(lambda: not stored(session))
    del holder
    nothing_left(session)


def test_what_its_node_takes_along_is_lost(start: Start) -> None:
    session = start(heartbeat_timeout_s=2.0)
    [ref] = ray.get(on(1)(give).remote("large put"))
    ray.sleep(0.3)
    kill_workers(session, 1)
    ray.sleep(0.3)
    session.cluster.kill_node(1)
    with pytest.raises(OwnerDiedError):
        ray.get(ref, timeout=LIMIT_S)
