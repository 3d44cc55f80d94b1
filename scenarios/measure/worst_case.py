"""A search for the program of which a prediction is worst.

The first half of the programs are random draws; each of the second half is the worst so far with
one parameter changed. The caller predicts and measures each program, and says how bad it is: the
search depends on these answers and on its seed alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from raytwin.scenarios.workloads.layered_graph import LayeredGraph, draw_graph

Judge = Callable[[Sequence[LayeredGraph]], Sequence[float]]
"""Says how bad each of some programs is; more is worse."""


def search(count: int, seed: int, judge: Judge) -> LayeredGraph:
    """Try `count` different programs; return the worst.

    The judge's figures are noisy, and the worst is the largest of `count`: only a new measurement
    tells how bad that program is.
    """
    draw = random.Random(seed)
    found: dict[LayeredGraph, float] = {}

    def drawn(batch: Sequence[LayeredGraph]) -> LayeredGraph:
        while (graph := draw_graph(draw)) in found or graph in batch:
            pass
        return graph

    def judged(batch: Sequence[LayeredGraph]) -> None:
        found.update(zip(batch, judge(batch), strict=True))

    first: list[LayeredGraph] = []
    while len(first) < (count + 1) // 2:
        first.append(drawn(first))
    judged(first)
    while len(found) < count:
        near = [each for each in _worst(found).neighbours() if each not in found]
        judged([draw.choice(near) if near else drawn(())])
    return _worst(found)


def _worst(found: dict[LayeredGraph, float]) -> LayeredGraph:
    return max(found, key=found.__getitem__)
