"""Lost items of generator tasks are reconstructed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import raytwin as ray
from raytwin.runtime.api.exceptions import ObjectLostError
from raytwin.runtime.api.options.scheduling_strategies import NodeAffinitySchedulingStrategy

LIMIT_S = 30.0
LARGE_BYTES = 500_000


@pytest.fixture(params=["sim", "local"])
def session(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Three nodes with one CPU each; tests kill node 1."""
    yield ray.init(backend=request.param, nodes=3, cpus_per_node=1)
    ray.shutdown()


def items(n: int, lasts: int = 0, notes: str = "") -> Iterator[Any]:
    """Yield (i, many bytes); with `notes`, all but `lasts` of them only the first time."""
    first = not notes or not Path(notes).exists()
    if notes:
        Path(notes).touch()
    for i in range(n if first else lasts):
        yield i, bytes(LARGE_BYTES)


@ray.remote
def number(item: tuple[int, bytes]) -> int:
    return item[0]


def stream_on(node: int, n: int, lasts: int = 0, notes: str = "", **options: Any) -> Any:
    place = NodeAffinitySchedulingStrategy(str(node), soft=True)
    return ray.remote(items).options(scheduling_strategy=place, **options).remote(n, lasts, notes)


def lose(session: Any, refs: list[Any]) -> None:
    """Wait until all are made and known, and kill node 1."""
    assert len(ray.wait(refs, num_returns=len(refs), timeout=LIMIT_S, fetch_local=False)[0])
    ray.sleep(0.5)
    session.cluster.kill_node(1)
    ray.sleep(0.5)


def test_lost_items_of_a_stream_are_made_again(session: Any) -> None:
    refs = list(stream_on(1, 3))
    lose(session, refs)
    assert ray.get(number.remote(refs[2]), timeout=LIMIT_S) == 2
    assert [ray.get(ref, timeout=LIMIT_S)[0] for ref in refs] == [0, 1, 2]


def test_lost_items_of_a_dynamic_generator_are_made_again(session: Any) -> None:
    refs = list(ray.get(stream_on(1, 3, num_returns="dynamic"), timeout=LIMIT_S))
    lose(session, refs)
    assert [ref[0] for ref in ray.get(refs, timeout=LIMIT_S)] == [0, 1, 2]


def test_objects_referenced_only_by_a_lost_item_are_reconstructed(session: Any) -> None:
    """Its references are gone, and the stream runs again for the task that needs it."""
    place = NodeAffinitySchedulingStrategy("1", soft=True)
    second = ray.remote(lambda item: item).options(scheduling_strategy=place)
    refs = list(stream_on(1, 2))
    made = second.remote(refs[1])
    ray.wait([made], timeout=LIMIT_S, fetch_local=False)
    kept = [made]
    del refs
    ray.put(0)
    lose(session, kept)
    assert ray.get(made, timeout=LIMIT_S)[0] == 1


def test_a_lost_stream_without_retries_raises(session: Any) -> None:
    refs = list(stream_on(1, 2, max_retries=0))
    lose(session, refs)
    with pytest.raises(ObjectLostError, match="has no retries left"):
        ray.get(refs[0], timeout=LIMIT_S)


@ray.remote
def twice(notes: str) -> Iterator[int]:
    """Yield two items, then wait; the second time, fail before the first."""
    if Path(notes).exists():
        raise KeyError("the second time")
    Path(notes).touch()
    yield from (0, 1)
    ray.sleep(LIMIT_S)


def test_a_stream_that_fails_when_it_runs_again_ends_with_the_error(
    session: Any, tmp_path: Path
) -> None:
    place = NodeAffinitySchedulingStrategy("1", soft=True)
    stream = twice.options(scheduling_strategy=place).remote(str(tmp_path / "ran"))
    first = [next(stream), next(stream)]
    assert ray.get(first, timeout=LIMIT_S) == [0, 1]
    session.cluster.kill_node(1)
    rest = list(stream)
    assert len(rest) == 1
    with pytest.raises(KeyError, match="the second time"):
        ray.get(rest[0], timeout=LIMIT_S)


def test_an_item_that_is_not_yielded_again_is_lost(session: Any, tmp_path: Path) -> None:
    refs = list(stream_on(1, 3, 1, str(tmp_path / "ran"), max_retries=-1))
    lose(session, refs)
    assert ray.get(refs[0], timeout=LIMIT_S)[0] == 0
    with pytest.raises(ObjectLostError, match="has not yielded it again"):
        ray.get(refs[2], timeout=LIMIT_S)
