"""The processes of a Ray cluster, found by its folder, and their end.

All that a cluster runs has a file of output below that folder open: Ray directs the output of what
it starts there, and children inherit it. That holds when their parent has died, and for agents and
workers, which overwrite their command line and their environment with a title. (A driver that has
joined writes a log there, and no output.) The end of their raylet ends agents only in time: one
looks for it every 0.4 s, and then reports its death to the GCS, for which it waits a minute if that
is gone, too.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from contextlib import suppress

OUTPUT = (".out", ".err")
REMOVED = " (deleted)"
"""The kernel appends this to the path of an open file that was removed."""
POLL_S = 0.05


def members(folder: str) -> list[int]:
    """Return the PIDs of the processes of the cluster in a folder, whatever has started them."""
    below = os.path.realpath(folder) + os.sep
    return [
        pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _writes(pid, below)
    ]


def _writes(pid: int, below: str) -> bool:
    """Whether a process has a file of output open whose path begins so."""
    with suppress(OSError):  # it has ended, or is another user's
        for descriptor in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):  # closed since
                path = os.readlink(descriptor.path).removesuffix(REMOVED)
                if path.startswith(below) and path.endswith(OUTPUT):
                    return True
    return False


def clean_up(folder: str) -> None:
    """End all processes of the cluster in a folder, by SIGKILL, and remove the folder."""
    while left := members(folder):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)
    shutil.rmtree(folder, ignore_errors=True)
