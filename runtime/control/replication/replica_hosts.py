"""On which host a new replica of a chain runs, where there are several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def host_of_replica(number: int, chain: int, hosts: int, living: Iterable[int]) -> int:
    """Return the host with the fewest living replicas of the chain; among equals, in turn.

    So one host's death ends at most one of them while there are as many hosts. `number` counts the
    replicas of the chain, `living` are the hosts of those that live.

    >>> [host_of_replica(number, 0, 3, ()) for number in (1, 2, 4)]
    [0, 1, 0]
    >>> host_of_replica(4, 0, 3, [0, 1])
    2
    """
    used = Counter(living)
    in_turn = ((number - 1 + chain + step) % hosts for step in range(hosts))
    return min(in_turn, key=lambda host: used[host])
