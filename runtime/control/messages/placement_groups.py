"""Placement groups: bundles of resources, reserved in two phases; see `placement_groups`.

``incarnation``: the node's; another incarnation ignores the message.
"""

from __future__ import annotations

from typing import Union

from msgspec import Struct


class CreateGroup(Struct, array_like=True, tag=27):
    """Reserve these bundles; answered by `GroupCreated`, see `placement_groups`."""

    group: str
    name: str
    bundles: list[dict[str, float]]
    strategy: str
    detached: bool = False
    """Whether the group outlives its job."""
    request: int = 0
    """The client's number of the request; the answer has it, too."""
    client: str = ""
    """The client that waits; its node fills it in."""


class GroupCreated(Struct, array_like=True, tag=125):
    """The group is in the table. If another group already had the name, the answer has that
    group's ID, and no group was created."""

    request: int
    client: str
    group: str


class RemoveGroup(Struct, array_like=True, tag=28):
    group: str


class PrepareBundle(Struct, array_like=True, tag=121):
    """Reserve these resources for a group; answered by `BundlePrepared`."""

    group: str
    index: int
    resources: dict[str, float]
    incarnation: int
    attempt: int
    """The number of this attempt to place the group; answers to earlier attempts are ignored."""


class BundlePrepared(Struct, array_like=True, tag=122):
    node: int
    group: str
    index: int
    ok: bool
    attempt: int


class CommitBundle(Struct, array_like=True, tag=123):
    """Every bundle is prepared: tasks may use this one."""

    group: str
    index: int
    incarnation: int


class ReturnBundle(Struct, array_like=True, tag=124):
    group: str
    index: int
    incarnation: int


GroupMessage = Union[
    CreateGroup, GroupCreated, RemoveGroup, PrepareBundle, BundlePrepared, CommitBundle,
    ReturnBundle,
]  # fmt: skip
