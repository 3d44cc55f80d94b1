"""Random layered graphs of tasks or calls: the programs among which a search looks for the worst.

Each operation takes results of the layer before, computes, and returns a result; it may submit
tasks of its own before and wait for them. A graph draws the same inputs in each of its runs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import raytwin as ray
from raytwin.scenarios.workloads.workload import SEED, Ended, Group, Run, Workload

OPERATIONS = (64, 1024)
"""Fewer end within moments, where noise is all; more take long."""
BODIES_S_MAX = 0.6
RESULTS_BYTES_MAX = 32_000_000
PARENTS_MAX = 16
"""In a layer: each waits in a worker of its own."""


@ray.remote
def _child(body_s: float) -> None:
    ray.compute(body_s)


def _operation(body_s: float, nbytes: int, children: int, *_inputs: Any) -> Any:
    ray.compute(body_s)
    if children:
        ray.get([_child.remote(body_s) for _ in range(children)])
    return ray.Blob(nbytes) if nbytes else None


class _Member:
    def operate(self, body_s: float, nbytes: int, children: int, *inputs: Any) -> Any:
        return _operation(body_s, nbytes, children, *inputs)


@dataclass(frozen=True)
class LayeredGraph:
    """A program of the family, by its parameters; `CHOICES` has their values."""

    layers: int
    width: int
    """Operations of a layer."""
    inputs: int
    """Results of the layer before that each takes."""
    body_s: float
    """CPU time of each operation and of each child."""
    result_bytes: int
    """Above 100 KB results are in the object store; at 0 they are None."""
    children: int
    """Tasks that each operation submits and waits for."""
    actors: int
    """Actors, which run the operations in turn, as calls; 0: operations are tasks."""
    cpus: tuple[int, ...]
    """Of each node; the driver is on the first."""

    @property
    def name(self) -> str:
        """The parameters, without children and actors if the program has none."""
        words = [
            f"layers={self.layers} width={self.width} inputs={self.inputs}",
            f"body={1e3 * self.body_s:g}ms result={self.result_bytes // 1000}KB",
            f"children={self.children}" if self.children else "",
            f"actors={self.actors}" if self.actors else "",
            f"cpus={'+'.join(map(str, self.cpus))}",
        ]
        return " ".join(filter(None, words))

    @property
    def operations(self) -> int:
        """Calls and tasks, with the children."""
        return self.layers * self.width * (1 + self.children)

    @property
    def fits(self) -> bool:
        """Whether there is such a program, and whether it is neither too short nor too large."""
        return (
            self.inputs <= self.width
            and OPERATIONS[0] <= self.operations <= OPERATIONS[1]
            and self.operations * self.body_s <= BODIES_S_MAX
            and self.layers * self.width * self.result_bytes <= RESULTS_BYTES_MAX
            and (not self.children or self.width <= PARENTS_MAX)
        )

    def neighbours(self) -> Iterator[LayeredGraph]:
        """Yield the programs that differ in one parameter."""
        for name, values in CHOICES.items():
            for value in values:
                other = replace(self, **{name: value})
                if other != self and other.fits:
                    yield other

    def workload(self) -> Workload:
        """Return the program as the study takes it."""
        return Workload(self._start, Group.SEARCHED, self.cpus, body_s=self.body_s)

    def _start(self) -> Run:
        if self.actors:
            member = ray.remote(num_cpus=0)(_Member)
            calls = [member.remote().operate for _ in range(self.actors)]
        else:
            calls = [ray.remote(_operation)]
        arguments = (self.body_s, self.result_bytes, self.children)

        def run() -> Ended:
            draw = random.Random(SEED)
            began_s = ray.now()
            refs: list[Any] = []
            before: list[Any] = []
            for _ in range(self.layers):
                layer = []
                for number in range(self.width):
                    inputs = draw.sample(before, self.inputs) if before else ()
                    layer.append(calls[number % len(calls)].remote(*arguments, *inputs))
                refs += layer
                before = layer
            # The last layer does not wait for all others: no task may take some of their results.
            ray.wait(refs, num_returns=len(refs), fetch_local=False)
            return Ended(self.operations, ray.now() - began_s)

        return run


CHOICES: dict[str, tuple[Any, ...]] = {
    "layers": (2, 4, 8, 16, 32, 64),
    "width": (1, 2, 4, 8, 16, 32, 64),
    "inputs": (1, 2, 4, 8),
    "body_s": (0.0, 0.0002, 0.001, 0.005),
    "result_bytes": (0, 1_000, 10_000, 50_000, 200_000, 1_000_000),
    "children": (0, 1, 4),
    "actors": (0, 1, 4),
    "cpus": ((1,), (2,), (1, 1), (0, 1)),
}


def draw_graph(draw: random.Random) -> LayeredGraph:
    """Return one of those that fit, each as likely."""
    while True:
        graph = LayeredGraph(**{name: draw.choice(values) for name, values in CHOICES.items()})
        if graph.fits:
            return graph
