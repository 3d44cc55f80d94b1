"""Frames that the network loses, delivers twice or delivers late, by the kind of their messages.

A fault affects frames between nodes, or a node and the head, that carry a message of one class, or
of any; each such frame with a probability, drawn from the simulation's seed. A frame that is late
may arrive after frames that were sent later.
"""

from __future__ import annotations

import random
from enum import Enum
from typing import Any

ANY_KIND = "any"
"""The kind that stands for messages of every class."""


class FrameFault(Enum):
    """The faults of a frame."""

    LOSE = "lose"
    DOUBLE = "double"
    DELAY = "delay"


class FrameFaults:
    """The faults in force, one of each sort for each kind of message."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"frames/{seed}")
        self.rules: dict[tuple[FrameFault, str], tuple[float, float]] = {}
        """By fault and kind of message: the probability, and the delay in seconds."""

    def set(self, fault: FrameFault, kind: str, probability: float, delay_s: float = 0.0) -> None:
        """Have a fault hit frames with a probability from now on; 0 ends it."""
        self.rules.pop((fault, kind), None)
        if probability:
            self.rules[fault, kind] = probability, delay_s

    def delays_s(self, messages: list[Any]) -> list[float]:
        """Return the delay of each copy of a frame that arrives; none if the frame is lost."""
        kinds = {type(message).__name__ for message in messages} | {ANY_KIND}
        copies, late_s = 1, 0.0
        for (fault, kind), (probability, delay_s) in self.rules.items():
            if kind not in kinds or self._rng.random() >= probability:
                continue
            if fault is FrameFault.LOSE:
                return []
            if fault is FrameFault.DOUBLE:
                copies = 2
            else:
                late_s += delay_s
        return [late_s] * copies
