"""Removes the containers and the network of a cluster whose driver has ended without doing so.

    python -P cluster_watcher.py CLUSTER PID

A driver starts the watcher before it makes anything in the engine, and ends it when it has removed
the cluster itself. The watcher waits for the end of the driver's process; it removes what the
engine has of the cluster, and exits.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path

LATE_S = 2.0
"""How long a request of a driver that was killed may still be under way in the engine."""


class Watcher:
    """The driver's side of a watcher."""

    def __init__(self, cluster: str) -> None:
        root = str(Path(__file__).absolute().parents[3])
        self._process = subprocess.Popen(
            # As a file it loads nothing of raytwin before it is needed.
            [sys.executable, "-P", __file__, cluster, str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            # Ctrl-C at the terminal interrupts the driver alone.
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": root},
        )

    def dismiss(self) -> None:
        """End the watcher: nothing is left for it to remove."""
        self._process.kill()
        self._process.wait()


def main() -> None:
    """Wait for the driver's end; remove what it has left."""
    cluster, driver = sys.argv[1], int(sys.argv[2])
    try:
        pidfd = os.pidfd_open(driver)
    except ProcessLookupError:
        pidfd = -1
    if os.getppid() == driver:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.poll()
    from raytwin.runtime.containers import engine

    client = engine.connect()
    engine.remove_cluster(client, cluster)
    time.sleep(LATE_S)
    engine.remove_cluster(client, cluster)


if __name__ == "__main__":
    main()
