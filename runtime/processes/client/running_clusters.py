"""Files of this user's running clusters on this machine, by which drivers join one.

The driver that starts a cluster writes a file with its address and token, and removes it
at the end; if the driver is killed, the zygote removes it. Only the user can read the file
(0600 in a directory of 0700), and the token is in no command line and no environment. If
driver and zygote are killed at once the file remains, until the next driver finds that no
process listens at its address.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import msgspec


class ClusterFile(msgspec.Struct):
    """The data that a driver needs to join."""

    address: str
    """``host:port`` of the head: the cluster's name."""
    join_socket: str
    """The abstract Unix socket on which node 0 admits drivers."""
    token: str
    """Hexadecimal."""
    pid: int
    """PID of the driver that started it."""
    started_s: float
    """Since the epoch."""


def directory() -> Path:
    """Return the directory of the files; make it if there is none.

    Raises PermissionError if other users could enter it.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK | os.X_OK):
        path = Path(runtime) / "raytwin"
    else:
        path = Path(tempfile.gettempdir()) / f"raytwin-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not is_own or stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(f"{path} must be a directory that only its user may enter")
    return path


def write(cluster: ClusterFile) -> Path:
    """Write a cluster's file and return its path."""
    path = directory() / f"{cluster.address.replace(':', '-')}.json"
    # A cluster that was killed may have had the same port.
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(msgspec.json.encode(cluster))
    return path


def running() -> list[tuple[Path, ClusterFile]]:
    """Return all files, the newest cluster first."""
    found = []
    for path in directory().glob("*.json"):
        try:
            found.append((path, msgspec.json.decode(path.read_bytes(), type=ClusterFile)))
        except FileNotFoundError:
            continue  # the cluster has just ended
        except msgspec.DecodeError:
            continue  # the file is being written
    return sorted(found, key=lambda entry: -entry[1].started_s)
