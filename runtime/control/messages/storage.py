"""A node and its store: room in the arena, copies from other nodes, the disk.

The node's control plane decides, its store does: ``store:<n>`` is no component, but
what moves bytes; each world has its own.
"""

from __future__ import annotations

from typing import Union

from msgspec import Struct


class Allocate(Struct, array_like=True, tag=60):
    object: bytes
    size: int
    client: str


class Allocated(Struct, array_like=True, tag=61):
    """Where; the answer is `NoRoom` if it does not fit."""

    object: bytes
    offset: int
    client: str


class Free(Struct, array_like=True, tag=62):
    object: bytes
    offset: int


class Fetch(Struct, array_like=True, tag=63):
    """Copy a large object from the store of ``node`` into this one.

    If that is its own node: from its disk back into memory.
    """

    object: bytes
    size: int
    node: int
    first: bool = False
    """Room was made for it: take that now, before others do, and fetch it next."""


class Fetched(Struct, array_like=True, tag=64):
    """``offset`` < 0: it failed, for ``reason``."""

    object: bytes
    offset: int
    size: int
    elapsed_s: float
    reason: str = ""
    node: int = -1
    """The node that was asked."""
    gone: bool = False
    """That node does not have the object any more."""


class Spill(Struct, array_like=True, tag=52):
    """Write a large object to disk; it stays in memory until `Free`."""

    object: bytes
    offset: int
    size: int


class Spilled(Struct, array_like=True, tag=53):
    """It is at ``place`` on disk, too; ``place`` < 0: it failed, for ``reason``."""

    object: bytes
    offset: int
    size: int
    place: int
    reason: str = ""


class DropSpilled(Struct, array_like=True, tag=54):
    """The object's copy on disk is not needed any more."""

    object: bytes
    place: int


class NoRoom(Struct, array_like=True, tag=55):
    """The object of an `Allocate` (of ``client``) or a `Fetch` does not fit now."""

    object: bytes
    size: int
    capacity: int
    free: int
    """Bytes, perhaps in pieces."""
    client: str = ""
    node: int = -1
    """The node that a `Fetch` was to ask."""


StorageMessage = Union[
    Allocate, Allocated, Free, Fetch, Fetched, Spill, Spilled, DropSpilled, NoRoom,
]  # fmt: skip
