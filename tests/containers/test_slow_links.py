"""Links between containers that are slow or stall, by Toxiproxy: the tests of links elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import raytwin as ray
from raytwin.chaos.faults.proxied_links import proxied
from tests.chaos.test_link_faults import (
    break_links_of_replicas,
    test_a_slow_link_does_not_hold_heartbeats_back,
    test_connections_that_break_all_the_time_change_nothing,
    test_latency_is_that_of_the_plan_in_the_round_trip,
    test_stalls_shorter_than_the_limit_change_nothing,
)
from tests.containers.conftest import Start

__all__ = [
    "test_a_slow_link_does_not_hold_heartbeats_back",
    "test_connections_that_break_all_the_time_change_nothing",
    "test_latency_is_that_of_the_plan_in_the_round_trip",
    "test_stalls_shorter_than_the_limit_change_nothing",
]

pytestmark = [pytest.mark.docker, pytest.mark.toxiproxy]

HEARTBEAT_TIMEOUT_S = 4.0
"""More than a busy machine silences a process for, and less than the slow link's transfers take."""


@pytest.fixture
def session(start: Start) -> Iterator[Any]:
    with proxied("docker"):
        yield start(heartbeat_timeout_s=HEARTBEAT_TIMEOUT_S)
        ray.shutdown()


def test_links_of_replicas_of_the_gcs_are_slow_break_and_are_cut(start: Start) -> None:
    with proxied("docker"):
        cluster = start(nodes=2, gcs_replicas=2, heartbeat_timeout_s=HEARTBEAT_TIMEOUT_S).cluster
    break_links_of_replicas(cluster)
    cluster.reset_links("node:0", "node:1", rst=False)
    cluster.cut("node:0", "head")
    cluster.heal("node:0", "head")


def test_without_proxies_links_are_not_slow(start: Start) -> None:
    cluster = start(nodes=2).cluster
    with pytest.raises(ValueError, match="without proxies"):
        cluster.set_latency("node:0", "node:1", 0.05)


def test_packets_are_not_lost_between_proxies(session: Any) -> None:
    with pytest.raises(ValueError, match="without proxies"):
        session.cluster.lose_packets("node:1", "node:2", 0.5)
