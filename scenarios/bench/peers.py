"""The engines beside which ours is measured, and whether this machine has them."""

from __future__ import annotations

import importlib.util
import os

from raytwin.scenarios.bench import engines
from raytwin.scenarios.core.scenario import UsageError, did_you_mean

PEERS = ("ray", "dask")


def check_peers(peers: list[str]) -> None:
    """Raise UsageError for a peer that is unknown, not installed or has no room."""
    for peer in peers:
        if peer not in PEERS:
            raise UsageError(f"no peer {peer!r}: {did_you_mean(peer, PEERS)}")
        engine = engines.ENGINES[peer]
        if importlib.util.find_spec(engine.package) is None:
            raise UsageError(
                f"peer {peer!r} is not installed: pip install 'raytwin[{engine.extra}]'"
            )
        if engine.store is not None and engine.store.exists():
            system = os.statvfs(engine.store)
            free = system.f_bavail * system.f_frsize
            if free < engines.STORE_BYTES:
                # It would fall back to a disk, and be measured there.
                raise UsageError(
                    f"{peer} keeps objects in {engine.store}, where {free / 1e9:.1f} GB are free "
                    f"and {engines.STORE_BYTES / 1e9:.1f} GB are needed"
                    " (a container: --shm-size=3g)"
                )
