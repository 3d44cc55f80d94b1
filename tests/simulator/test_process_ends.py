"""The parent of a process learns of its end once the kernel has given back its memory."""

from __future__ import annotations

from pathlib import Path

import pytest

import raytwin as ray
from raytwin.runtime.api.backend import current
from tests.simulator.conftest import changed

END_S = 0.5


@ray.remote(max_restarts=1)
class Echo:
    def now(self) -> float:
        return ray.now()


def seconds_to(event: str, kill: str, *target: int, profile: str, replicas: int) -> float:
    """Return how long it takes from a kill to the event by which the cluster reports it."""
    ray.init(
        backend="sim", nodes=3, profile=profile, gcs_replicas=replicas, heartbeat_timeout_s=100.0
    )
    try:
        actor = Echo.options(resources={"node:1": 0.001}).remote()
        ray.get(actor.now.remote())
        session = current()
        killed_s = ray.now()
        getattr(session.cluster, kill)(*target)
        while True:
            ray.sleep(0.01)
            found = [row for row in session.query("events") if row[1] == event]
            if found:
                return float(found[0][0]) - killed_s
    finally:
        ray.shutdown()


@pytest.mark.parametrize(
    ("event", "kill", "target", "replicas", "figure"),
    [
        ("actor_restarting", "kill_actor", (0,), 1, "end_process_s"),
        ("node_died", "kill_node", (2,), 1, "end_node_s"),
        ("replica_died", "kill_member", (0, 1), 2, "end_process_s"),
    ],
)
def test_a_kill_is_noticed_after_the_time_that_the_process_takes_to_end(
    event: str,
    kill: str,
    target: tuple[int, ...],
    replicas: int,
    figure: str,
    free: str,
    tmp_path: Path,
) -> None:
    slow = changed(free, tmp_path, **{figure: END_S})
    at_once_s, later_s = (
        seconds_to(event, kill, *target, profile=profile, replicas=replicas)
        for profile in (free, slow)
    )
    assert later_s - at_once_s == pytest.approx(END_S)
