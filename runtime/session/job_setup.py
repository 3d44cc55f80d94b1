"""The setup of a joined job, which its workers need before they can load its functions.

The running cluster forks the workers of a job that joins it, so they have the module paths of the
driver that started the cluster. Each function of the job has the job's own directory and paths in
front of its serialized form. A worker belongs to one job, so it applies them once.
"""

from __future__ import annotations

import os
import sys

import msgspec

from raytwin.runtime.api import modules

MARK = b"J"
"""Begins a function with a setup; no pickle begins with it."""
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
    """Return a serialized function with a setup in front, or unchanged if the setup is empty."""
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
    """Give this process the driver's module paths and directory.

    The process keeps its own directory if the driver's is gone.
    """
    wanted = msgspec.msgpack.decode(setup, type=JobSetup)
    sys.path[:] = wanted.paths
    if os.path.isdir(wanted.directory):
        os.chdir(wanted.directory)
    if wanted.as_ray:
        os.environ[modules.AS_RAY] = "1"
        modules.install("ray")
