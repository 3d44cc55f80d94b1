"""What faults happen to: one file a kind, all of one shape.

A target is a frozen dataclass. ``kind`` is what stands before the colon in a
plan (``node:3``), ``form`` shows how one is written, ``parse`` makes one from
what stands after the colon (None: it is none), ``backends`` are those that have
it. A method named like an action carries that action out; an action that has no
such method does not apply.

A new kind is a new file here, and one line below.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, Self

from raytwin.chaos.faults.targets.actor import Actor
from raytwin.chaos.faults.targets.cluster import WholeCluster
from raytwin.chaos.faults.targets.head import Head
from raytwin.chaos.faults.targets.link import Link
from raytwin.chaos.faults.targets.node import Node
from raytwin.chaos.faults.targets.replica import Replica
from raytwin.chaos.faults.targets.worker import Worker


class Target(Protocol):
    """The shape of a target."""

    kind: ClassVar[str]
    form: ClassVar[str]
    backends: ClassVar[tuple[str, ...]]

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the target that `text` names, None if it names none."""


TARGETS: dict[str, Any] = {
    target.kind: target for target in (Node, Worker, Actor, Link, WholeCluster, Replica, Head)
}
