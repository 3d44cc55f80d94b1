"""Chains of tasks: each link takes what the link before it has returned.

So a node that dies may take along what the next link needs. Figure 11a runs chains while nodes go
and come back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import raytwin as ray
from raytwin.scenarios.core.execution_record import begin

MODULUS = 2**31 - 1


def _link(state: Any, key: int, seconds: float, nbytes: int, record: str = "") -> Any:
    """One link of a chain: takes its time, and folds its key into what came before."""
    if record:
        begin(record)
    ray.sleep(seconds)
    number = (fold(state) * 31 + key) % MODULUS
    return number.to_bytes(8, "big") * (-(-nbytes // 8)) if nbytes else number


def fold(state: Any) -> int:
    """Return the number that a link's value stands for."""
    return state if isinstance(state, int) else int.from_bytes(state[:8], "big")


link = ray.remote(_link)


@dataclass
class Chains:
    """The links that chains had, side by side, and the numbers that they came to."""

    began_s: float
    lengths: list[int]
    values: list[int]
    """The number that the last link of each stands for."""
    ended_s: list[float]
    """When the driver learned of each link's end, since they began."""


def run_chains(
    chains: int,
    segment: int,
    for_s: float,
    task_s: float,
    nbytes: int,
    record: str,
    links_min: int = 0,
) -> Chains:
    """Run chains side by side for a time, and at least until `links_min` links have ended.

    Each link takes `task_s` and has a value of `nbytes`.

    A chain is submitted `segment` links at a time, the next when the last of them
    is done. Links write down in the file `record` that they have begun, if there is one.
    """
    began_s = ray.now()
    end_s = began_s + for_s
    lengths = [0] * chains
    waiting: dict[Any, int] = {}
    """Chain by its last link that was submitted; -1 for other links."""
    ended_s: list[float] = []

    def extend(chain: int, state: Any) -> None:
        for _ in range(segment):
            lengths[chain] += 1
            state = link.options(max_retries=-1).remote(
                state, lengths[chain], task_s, nbytes, record
            )
            waiting[state] = -1
        waiting[state] = chain

    for chain in range(chains):
        extend(chain, chain)
    finished: dict[int, Any] = {}
    while waiting:
        refs = list(waiting)
        ray.wait(refs, fetch_local=False)
        ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)
        now_s = ray.now()
        del refs
        for ref in ready:
            chain = waiting.pop(ref)
            ended_s.append(now_s - began_s)
            if chain < 0:
                continue
            if now_s < end_s or len(ended_s) < links_min:
                extend(chain, ref)
            else:
                finished[chain] = ref
    values = [fold(ray.get(finished[chain])) for chain in range(chains)]
    return Chains(began_s, lengths, values, ended_s)


def expected(chain: int, length: int) -> int:
    """Return what a chain of that length comes to when nothing fails."""
    number = chain
    for key in range(1, length + 1):
        number = (number * 31 + key) % MODULUS
    return number
