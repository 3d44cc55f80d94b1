"""What node 0 sends to a driver that joins, and where the driver finds it.

Both sides use it: `driver_door` in the node, `joining` in the driver. The message follows
the mutual proof of the token (see `auth`): its length in `LENGTH_BYTES` bytes, big-endian,
then a `Welcome` in msgpack, with the arena's descriptor.
"""

from __future__ import annotations

import msgspec

from raytwin.runtime.control.core.config import Config

LENGTH_BYTES = 4


class Welcome(msgspec.Struct):
    """The node's answer to a driver that joins."""

    address: str
    """The driver's address; empty if the node refuses it, for `reason`."""
    job: int
    node: int
    config: Config
    reason: str = ""


def abstract(name: str) -> str:
    """Return the address of an abstract Unix socket."""
    return f"\0{name}"
