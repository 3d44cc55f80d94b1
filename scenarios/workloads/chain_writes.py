"""Writes to the GCS, one after the other, while a member of its chain is killed.

Figure 10a runs them: a new member joins in place of the one that is killed, and gets the state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import raytwin as ray

REPLICAS = 2
MEMBERS = ("head", "tail")
KEY_BYTES = 25
VALUE_BYTES = 512
WARM_UP = 100
LOOK_EVERY = 10
"""Writes between two looks at the chain while a replica joins."""


@dataclass(frozen=True)
class Writes:
    """How long a client's writes took; times are in seconds since the first began, if not said
    otherwise."""

    victim: str
    """The name of the member that was killed."""
    began_s: float
    """On the cluster's clock."""
    killed_s: float
    joined_s: float
    """When the chain was seen to be whole again."""
    samples: list[tuple[float, float]]
    """When each write began, and how long it took."""

    @property
    def slowest_s(self) -> float:
        """How long the slowest write took that ended after the kill."""
        return max(took_s for at_s, took_s in self.samples if at_s + took_s >= self.killed_s)


def key(number: int) -> bytes:
    """Return the key of a write."""
    return b"key%0*d" % (KEY_BYTES - 3, number)


def value(number: int) -> bytes:
    """Return the value of a write."""
    return b"%0*d" % (VALUE_BYTES, number)


def write_while_killed(
    session: Any, member: str, kill_s: float, for_s: float, each_second: Callable[[], None]
) -> Writes:
    """Write one key after another for a time, and at least until the chain is whole again.

    After `kill_s` the "head" or the "tail" of the chain is killed; `each_second` is called after
    each second.
    """
    chain = session.query("chain")[0]
    victim = chain["names"][0 if member == "head" else -1]
    for number in range(WARM_UP):
        session.kv_put(b"warm", value(number))
    killed_s = joined_s = 0.0
    samples: list[tuple[float, float]] = []
    began_s = last_s = ray.now()
    reported = 0
    while last_s - began_s < for_s or not joined_s:
        if not killed_s and last_s - began_s >= kill_s:
            killed_s = last_s - began_s
            session.cluster.kill_replica(victim)
        number = len(samples)
        name, content = key(number), value(number)
        start_s = ray.now()
        session.kv_put(name, content)
        last_s = ray.now()
        samples.append((start_s - began_s, last_s - start_s))
        if killed_s and not joined_s and number % LOOK_EVERY == 0:
            now = session.query("chain")[0]
            if now["members"] == REPLICAS and victim not in now["names"]:
                joined_s = last_s - began_s
        if last_s - began_s >= reported + 1:
            reported += 1
            each_second()
    return Writes(victim, began_s, killed_s, joined_s, samples)
