"""The search for the worst case: which programs it tries, and that these are programs."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import msgspec
import pytest

from raytwin.scenarios.measure import fidelity_study, worst_case
from raytwin.scenarios.workloads.layered_graph import CHOICES, LayeredGraph, draw_graph
from raytwin.simulator.machine.costs import Profile
from tests.scenarios.test_fit import made

GRAPH = LayeredGraph(4, 16, 2, 0.0002, 10_000, 0, 0, (1, 1))


def badness(graph: LayeredGraph) -> float:
    return zlib.crc32(graph.name.encode()) / 2**32


def searched(count: int, seed: int, sign: int = 1) -> tuple[LayeredGraph, list[list[LayeredGraph]]]:
    """Return the worst, and what was tried, batch by batch."""
    batches = []

    def judge(batch: Sequence[LayeredGraph]) -> list[float]:
        batches.append(list(batch))
        return [sign * badness(each) for each in batch]

    return worst_case.search(count, seed, judge), batches


def test_half_are_draws_and_each_other_one_is_a_step_from_the_worst_so_far() -> None:
    worst, (first, *steps) = searched(12, 3)
    assert len(first) == 6 and [len(each) for each in steps] == [1] * 6
    tried = first
    for (graph,) in steps:
        assert graph in list(max(tried, key=badness).neighbours())
        tried = [*tried, graph]
    assert len(set(tried)) == 12 and worst == max(tried, key=badness)


def test_a_search_hangs_on_its_seed_and_on_what_was_measured() -> None:
    assert searched(12, 3) == searched(12, 3)
    assert searched(12, 3) != searched(12, 4)
    (_, [one, *steps]), (_, [other, *other_steps]) = searched(12, 3), searched(12, 3, -1)
    assert one == other and steps != other_steps


def test_one_program_is_enough_and_those_around_the_worst_may_run_out() -> None:
    worst, batches = searched(1, 0)
    assert batches == [[worst]]
    tried: list[LayeredGraph] = []

    def first_is_worst(batch: Sequence[LayeredGraph]) -> list[float]:
        tried.extend(batch)
        return [1.0 if each == tried[0] else 0.0 for each in batch]

    worst = worst_case.search(90, 0, first_is_worst)
    assert worst == tried[0] and len(set(tried)) == 90
    assert not set(worst.neighbours()) - set(tried)


def test_programs_fit_and_are_told_apart_by_their_names() -> None:
    assert list(CHOICES) == [each.name for each in fields(LayeredGraph)]
    draw = random.Random(1)
    graphs = {draw_graph(draw) for _ in range(500)}
    graphs |= {each for graph in list(graphs)[:20] for each in graph.neighbours()}
    assert all(graph.fits for graph in graphs)
    assert len({graph.name for graph in graphs}) == len(graphs)
    assert GRAPH.name == "layers=4 width=16 inputs=2 body=0.2ms result=10KB cpus=1+1"
    other = replace(GRAPH, children=4, actors=1, result_bytes=0)
    assert other.name == (
        "layers=4 width=16 inputs=2 body=0.2ms result=0KB children=4 actors=1 cpus=1+1"
    )


@pytest.mark.parametrize(
    "graph",
    [
        GRAPH,
        replace(GRAPH, children=1, result_bytes=200_000),
        replace(GRAPH, actors=4, cpus=(0, 1)),
        replace(GRAPH, actors=1, children=1, cpus=(1,)),
    ],
    ids=lambda graph: graph.name,
)
def test_each_program_takes_the_same_virtual_time_again(
    graph: LayeredGraph, tmp_path: Path
) -> None:
    profile = tmp_path / "profile.json"
    profile.write_bytes(msgspec.json.encode(msgspec.convert(made(2e-5, 0.5), Profile)))
    one, other = (fidelity_study.simulate(graph.workload(), profile) for _ in range(2))
    assert one == other
    assert {run.operations for run in one.ended} == {graph.operations}
    assert all(run.elapsed_s > 0 for run in one.ended)
