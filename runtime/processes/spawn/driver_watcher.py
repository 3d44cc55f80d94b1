"""Waits for the end of a driver, and then removes what it has left.

    python -P driver_watcher.py MODULE SUBJECT PID

A driver starts the watcher before it makes what neither the zygote nor the kernel ends with it, and
ends the watcher when it has removed that itself. The watcher waits for the end of the driver's
process, calls ``clean_up(SUBJECT)`` of the module, and exits.
"""

from __future__ import annotations

import importlib
import os
import select
import subprocess
import sys
from pathlib import Path


class Watcher:
    """The driver's side of a watcher."""

    def __init__(self, module: str, subject: str) -> None:
        root = str(Path(__file__).absolute().parents[4])
        self._process = subprocess.Popen(
            # As a file it loads nothing of raytwin before it is needed.
            [sys.executable, "-P", __file__, module, subject, str(os.getpid())],
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
    module, subject, driver = sys.argv[1], sys.argv[2], int(sys.argv[3])
    try:
        pidfd = os.pidfd_open(driver)
    except ProcessLookupError:
        pidfd = -1
    if os.getppid() == driver:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.poll()
    importlib.import_module(module).clean_up(subject)


if __name__ == "__main__":
    main()
