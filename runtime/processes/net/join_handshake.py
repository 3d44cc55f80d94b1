"""The message with which node 0 admits or refuses a driver that joins.

`driver_door` in the node sends it, `joining` in the driver receives it, after the mutual proof
of the token (see `auth`): its length in `LENGTH_BYTES` bytes, big-endian, then a `Welcome` in
msgpack, with the arena's descriptor attached.
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
