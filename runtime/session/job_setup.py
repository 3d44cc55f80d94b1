"""The setup of a joined job, which its workers need before they can load its functions.

Workers are forked by the cluster that was there before the job, and have that cluster's
module paths. The functions of a job that joined carry the job's own: their
serialized form has them in front. A worker belongs to one job, so it is done once.
"""

from __future__ import annotations

import os
import sys

import msgspec

from raytwin.runtime.api import modules

MARK = b"J"
"""No pickle begins with it."""
_LENGTH_BYTES = 4


class JobSetup(msgspec.Struct, array_like=True):
    """A driver's directory and paths, and whether its ``ray`` is raytwin."""

    directory: str
    paths: list[str]
    as_ray: bool


def describe() -> bytes:
    """Return the setup of the calling process's job."""
    paths = [path or os.getcwd() for path in sys.path]
    return msgspec.msgpack.encode(JobSetup(os.getcwd(), paths, modules.AS_RAY in os.environ))


def wrap(setup: bytes, function: bytes) -> bytes:
    """Return a serialized function with a setup in front; as it is without one."""
    if not setup:
        return function
    return MARK + len(setup).to_bytes(_LENGTH_BYTES, "big") + setup + function


def unwrap(blob: bytes) -> tuple[bytes, bytes]:
    """Return (setup, function)."""
    if not blob.startswith(MARK):
        return b"", blob
    begin = len(MARK) + _LENGTH_BYTES
    end = begin + int.from_bytes(blob[len(MARK) : begin], "big")
    return blob[begin:end], blob[end:]


def apply(setup: bytes) -> None:
    """Make this process find what the driver finds.

    A directory that is gone leaves the process where it is.
    """
    wanted = msgspec.msgpack.decode(setup, type=JobSetup)
    sys.path[:] = wanted.paths
    if os.path.isdir(wanted.directory):
        os.chdir(wanted.directory)
    if wanted.as_ray:
        os.environ[modules.AS_RAY] = "1"
        modules.install("ray")
