"""Removes the containers and the network of a cluster whose driver has ended without doing so."""

from __future__ import annotations

import time

from raytwin.runtime.containers import engine

LATE_S = 2.0
"""How long a request of a driver that was killed may still be under way in the engine."""


def clean_up(cluster: str) -> None:
    """Remove what the engine has of a cluster; `driver_watcher` calls it."""
    client = engine.connect()
    engine.remove_cluster(client, cluster)
    time.sleep(LATE_S)
    engine.remove_cluster(client, cluster)
