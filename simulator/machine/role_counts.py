"""Turns, messages and frames of a simulated cluster's components so far, by role.

Every cluster counts, from its first turn on: no clock is read and no time is charged for
it. A *role* is the kind of a component's address: ``gcs`` and ``global`` (both in the
head's process), ``node``, ``store``, ``worker``, ``driver``, ... Replicas
of the GCS have the role ``replica``.
"""

from __future__ import annotations

from dataclasses import dataclass

from raytwin.runtime.control.core.addresses import Address


@dataclass(slots=True)
class Counts:
    """The counts of one role, over all components that ever had it."""

    turns: int = 0
    messages: int = 0
    """Received, from other processes and from components of the same one."""
    frames: int = 0
    """Sent to other processes."""
    bytes: int = 0
    """Bytes of these frames."""


def role_of(address: Address) -> str:
    """Return the role of a component.

    >>> role_of("node:3"), role_of("worker:3.7"), role_of("gcs"), role_of("gcs.2")
    ('node', 'worker', 'gcs', 'gcs')
    """
    return address.partition(":")[0].partition(".")[0]
