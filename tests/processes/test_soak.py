"""A driver that goes on for long: memory stays flat, the disk is freed, no file is left.

``RAYTWIN_SOAK=1`` does four times as much as well, with a store ten times as large.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import raytwin as ray
from tests.processes.conftest import Start
from tests.processes.helpers import eventually
from tests.processes.test_eviction import (
    MB,
    filled,
    first_and_last,
    get,
    is_freed,
    on_disk,
    spill_files,
)

WINDOW = 1_000
"""Small tasks that are submitted before their results are waited for."""
SOAK = [
    # At half time the timeline's rows have reached their limit.
    pytest.param(250_000, 2_500, 100 * MB, id="small")
]
if os.environ.get("RAYTWIN_SOAK"):
    SOAK.append(pytest.param(1_000_000, 10_000, 1_000 * MB, id="full"))


@ray.remote
def increment(number: int) -> int:
    return number + 1


def resident(session: Any) -> dict[str, int]:
    """Return the bytes that each process of the cluster has for itself alone, by its name."""
    session.cluster.poll()
    pids = {"driver": os.getpid(), **session.cluster.pids}
    return {name: psutil.Process(pid).memory_full_info().uss for name, pid in pids.items()}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("tasks", "objects", "store_bytes"), SOAK)
def test_soak(start: Start, tmp_path: Path, tasks: int, objects: int, store_bytes: int) -> None:
    """Small tasks and far more objects than the store holds, and more kept than it holds."""
    session = start(
        nodes=1, cpus_per_node=1, object_store_memory=store_bytes, object_spilling_dir=tmp_path
    )
    rng = np.random.default_rng(objects)
    keep = 3 * (store_bytes // MB) // 2
    kept: dict[int, Any] = {}
    memory: list[dict[str, int]] = []
    step = objects * WINDOW // tasks
    for window in range(tasks // WINDOW):
        first = window * WINDOW
        results = get([increment.remote(first + i) for i in range(WINDOW)])
        assert results == list(range(first + 1, first + WINDOW + 1))
        for i in range(window * step, (window + 1) * step):
            kept[i] = ray.put(filled(i, MB))
            if len(kept) > keep:
                # Now and then an old one, mostly a recent one: the order is no queue.
                numbers = list(kept)
                kept.pop(numbers[int(rng.integers(0, len(numbers) // 2))])
        numbers = list(kept)
        chosen = numbers[int(rng.integers(0, len(numbers)))]
        array = get(kept[chosen])
        assert array[0] == chosen and array[-1] == chosen
        del array
        if window % 5 == 4:
            assert get(first_and_last.remote(kept[chosen])) == (chosen, chosen)
        if window in (tasks // WINDOW // 2, tasks // WINDOW - 1):
            memory.append(resident(session))
    assert on_disk() > 0
    before, after = memory
    assert set(before) == set(after), "a process came or went"
    for name, nbytes in after.items():
        assert nbytes < 1.1 * before[name] + 8 * MB, (name, before, after)
    kept.clear()
    is_freed()
    node = session.cluster.pids["node:0"]
    eventually(lambda: sum(used for used, _ in spill_files(node, tmp_path)) == 0)
    assert not list(tmp_path.iterdir())
