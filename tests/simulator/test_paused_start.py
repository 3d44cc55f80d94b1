"""A process that is suspended while it starts begins when it is resumed, and its turns go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import raytwin as ray
from raytwin.simulator.machine.costs import load_profile


@ray.remote
def one() -> int:
    return 1


def test_a_head_that_is_suspended_while_it_starts_serves_once_it_is_resumed(tmp_path: Path) -> None:
    """Frames of nodes reach it before it has begun."""
    start_s = load_profile("paper").start_worker_s
    session: Any = ray.init(
        backend="sim",
        nodes=2,
        gcs_storage=str(tmp_path / "gcs"),
        timers={"heartbeat_s": 0.1 * start_s},
    )
    assert ray.get(one.remote()) == 1
    cluster = session.cluster
    cluster.kill_head()
    ray.sleep(1.2 * start_s)  # its process is there, and its replica starts
    cluster.pause_head()
    ray.sleep(10 * start_s)
    cluster.resume_head()
    ray.sleep(10 * start_s)
    assert ray.get([one.remote() for _ in range(4)]) == [1] * 4
