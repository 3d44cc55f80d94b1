"""A wait costs what it watches: each reference, unless it gets the list of the last wait."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import raytwin as ray
from raytwin.simulator.machine.costs import load_profile

WATCH_S = 1.0


@pytest.fixture
def nothing_else_costs(tmp_path: Path) -> Any:
    """A cluster in which only what a wait watches takes the program's time."""
    profile = msgspec.structs.replace(load_profile("paper"), call_s={"watch": WATCH_S})
    path = tmp_path / "profile.json"
    path.write_bytes(msgspec.json.encode(profile))
    yield ray.init(backend="sim", nodes=1, cpus_per_node=1, profile=str(path))
    ray.shutdown()


@ray.remote
def _nap(seconds: float) -> None:
    ray.sleep(seconds)


def waited_s(refs: list[Any], **options: Any) -> tuple[float, list[Any]]:
    """Return the seconds that a wait takes, and the references that are left."""
    began_s = ray.now()
    _, left = ray.wait(refs, **options)
    return ray.now() - began_s, left


@pytest.mark.parametrize("count", [8, 20])
def test_a_new_list_costs_each_of_its_references(nothing_else_costs: Any, count: int) -> None:
    refs = [_nap.remote(1000.0) for _ in range(count)]
    took_s, _ = waited_s(refs, timeout=0)
    assert took_s == pytest.approx(count * WATCH_S, abs=0.1)


def test_a_short_list_that_is_ready_costs_nothing(nothing_else_costs: Any) -> None:
    refs = [_nap.remote(0.0) for _ in range(8)]
    ray.get(refs)
    took_s, _ = waited_s(refs, num_returns=8)
    assert took_s == pytest.approx(0.0, abs=0.1)


def test_the_list_that_a_wait_returned_costs_nothing_more(nothing_else_costs: Any) -> None:
    refs = [_nap.remote(0.0) for _ in range(20)]
    ray.get(refs)
    first_s, left = waited_s(refs)
    again_s, _ = waited_s(left)
    assert first_s == pytest.approx(20 * WATCH_S, abs=0.1)
    assert again_s == pytest.approx(0.0, abs=0.1)
