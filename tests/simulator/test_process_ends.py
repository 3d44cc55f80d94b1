"""The parent of a process learns of its end once the kernel has given back its memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import raytwin as ray
from raytwin.runtime.api.backend import current
from tests.simulator.conftest import changed

END_S = 0.5
RANGE_S = 0.01


@ray.remote(max_restarts=1)
class Echo:
    def now(self) -> float:
        return ray.now()


def seconds_to(event: str, kill: str, *target: int, profile: str, **options: Any) -> float:
    """Return how long it takes from a kill to the event by which the cluster reports it."""
    ray.init(backend="sim", nodes=3, profile=profile, heartbeat_timeout_s=100.0, **options)
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
        seconds_to(event, kill, *target, profile=profile, gcs_replicas=replicas)
        for profile in (free, slow)
    )
    assert later_s - at_once_s == pytest.approx(END_S)


def test_a_new_head_starts_when_the_old_one_has_ended_and_reads_its_file(
    free: str, tmp_path: Path
) -> None:
    def took_s(name: str, **changes: Any) -> float:
        profile, storage = changed(free, tmp_path, **changes), tmp_path / name
        return seconds_to("head_started", "kill_head", profile=profile, gcs_storage=storage)

    at_once_s = took_s("free")
    slow = {"end_node_s": END_S, "start_node_s": 2 * END_S}
    assert took_s("slow", **slow) - at_once_s == pytest.approx(3 * END_S)
    # The file has some commands, each of some ranges.
    head = {"received": {"range_s": RANGE_S}}
    assert took_s("reads", head=head) - at_once_s > 3 * RANGE_S


def test_a_node_starts_as_a_worker_does_if_the_profile_does_not_tell_them_apart(
    free: str, tmp_path: Path
) -> None:
    def took_s(**changes: Any) -> float:
        profile = changed(free, tmp_path, **changes)
        ray.init(backend="sim", nodes=2, profile=profile, heartbeat_timeout_s=100.0)
        try:
            cluster: Any = current().cluster
            cluster.kill_node(1)
            began_s = ray.now()
            cluster.restart_node(1)
            while not any(
                row[1] == "node_added" and row[0] > began_s for row in current().query("events")
            ):
                ray.sleep(0.01)
            return ray.now() - began_s
        finally:
            ray.shutdown()

    worker_s = took_s(start_worker_s=END_S)
    assert worker_s == pytest.approx(END_S, rel=0.1)
    assert took_s(start_worker_s=END_S, start_node_s=0.0) < END_S / 2
