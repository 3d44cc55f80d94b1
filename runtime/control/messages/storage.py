"""Messages between a node and its store: room in the arena, copies from other nodes, the disk.

The control plane of a node decides, and its store ``store:<n>`` moves the bytes; each world has a
store of its own.
"""

from __future__ import annotations

from typing import Union

from msgspec import Struct

IN_FILE = 1 << 48
"""Offsets from here on are places in the node's file on disk, which clients map as they map the
arena: those of objects that find no room in it."""


class Allocate(Struct, array_like=True, tag=60):
    object: bytes
    size: int
    client: str
    in_file: bool = False
    """Whether to allocate on disk, because nothing leaves the arena in time."""


class Allocated(Struct, array_like=True, tag=61):
    """The store has allocated room for an object. If there is none, it answers `NoRoom`."""

    object: bytes
    offset: int
    client: str


class Free(Struct, array_like=True, tag=62):
    object: bytes
    offset: int


class Fetch(Struct, array_like=True, tag=63):
    """Copy a large object from the store of ``node`` into this one.

    If ``node`` is the store's own node, the object is read from disk.
    """

    object: bytes
    size: int
    node: int
    first: bool = False
    """Whether the node has evicted objects for this one: the store allocates it first."""
    in_file: bool = False
    """As for `Allocate`."""


class Fetched(Struct, array_like=True, tag=64):
    """``offset`` < 0: it failed, for ``reason``."""

    object: bytes
    offset: int
    size: int
    elapsed_s: float
    reason: str = ""
    node: int = -1
    """The source of the `Fetch`."""
    gone: bool = False
    """That node does not have the object any more."""
    stalled: bool = False
    """No byte came for `Config.stall_s`."""


class Spill(Struct, array_like=True, tag=52):
    """Write a large object to disk; it stays in memory until `Free`."""

    object: bytes
    offset: int
    size: int


class Spilled(Struct, array_like=True, tag=53):
    """The object is also at ``place`` on disk; ``place`` < 0: it failed, for ``reason``."""

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
    """Free bytes, perhaps in several pieces."""
    client: str = ""
    node: int = -1
    """The source of the `Fetch`."""
    reason: str = ""
    """Why there is no room on disk either; empty if the arena was asked."""


StorageMessage = Union[
    Allocate, Allocated, Free, Fetch, Fetched, Spill, Spilled, DropSpilled, NoRoom,
]  # fmt: skip
