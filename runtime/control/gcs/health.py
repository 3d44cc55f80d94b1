"""Failure detection: who has not been heard of for too long.

A node sends a heartbeat every ``heartbeat_s``; one that stays silent for
``heartbeat_timeout_s`` is suspected. With the defaults that is 50 missed beats:
on a busy machine a beat may be late by a few scheduling quanta, never by that.
"""

from __future__ import annotations


class FailureDetector:
    """When each node was last heard of."""

    def __init__(self, timeout_s: float) -> None:
        if not timeout_s > 0:
            raise ValueError(f"a heartbeat timeout of {timeout_s} s")
        self.timeout_s = timeout_s
        self._heard: dict[int, float] = {}

    def heard(self, node: int, now: float) -> None:
        """Note a sign of life."""
        self._heard[node] = now

    def excuse(self, stall_s: float) -> None:
        """The listener itself was held up: nobody is to blame for that time."""
        for node in self._heard:
            self._heard[node] += stall_s

    def forget(self, node: int) -> None:
        """Stop watching a node."""
        self._heard.pop(node, None)

    def suspects(self, now: float) -> list[int]:
        """Return the nodes whose silence is longer than the timeout."""
        return [n for n, heard in self._heard.items() if now - heard > self.timeout_s]
