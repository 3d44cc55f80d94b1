"""The recovery fuzz passes, and is reproducible. `test_mutants` shows that it can fail."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from raytwin.chaos.faults.plan import from_data
from raytwin.chaos.fuzz.generate.cases import draw_case
from raytwin.chaos.fuzz.oracle.findings import Finding, Kind
from raytwin.chaos.fuzz.run.api_engine import Api
from raytwin.chaos.fuzz.run.campaign import run_seeds, write_failure
from raytwin.chaos.fuzz.run.case_run import run_case
from raytwin.simulator.cluster.simulated_cluster import SimCluster

pytestmark = pytest.mark.slow


def run(seeds: range | list[int], lossless: bool = False, jobs: int = 1) -> list[str]:
    return [
        f"seed {report.case.seed}: {line}"
        for report in run_seeds(seeds, jobs, lossless)
        for line in report.failures
    ]


@pytest.mark.parametrize("start", [10_000, 10_050, 10_100])
def test_programs_survive_faults(start: int) -> None:
    assert run(range(start, start + 50)) == []


def test_nothing_is_lost_while_nodes_live() -> None:
    assert run(range(20_000, 20_050), lossless=True) == []


@pytest.mark.slow
def test_many_programs_survive_faults() -> None:
    assert run(range(100), jobs=2) == []


def test_one_seed_is_one_execution() -> None:
    first, second = (run_case(draw_case(9)) for _ in range(2))
    assert first == second
    assert first.tasks and first.faults


def test_seeds_differ() -> None:
    cases = [draw_case(seed) for seed in range(30)]
    assert len({str(case.plan) for case in cases}) == 30
    assert len({case.program for case in cases}) == 30


def test_several_processes_find_the_same() -> None:
    alone = list(run_seeds(range(30)))
    together = list(run_seeds(range(30), jobs=2))
    assert [(r.case.seed, r.failures, r.verdicts) for r in alone] == [
        (r.case.seed, r.failures, r.verdicts) for r in together
    ]


def test_a_failure_is_written_with_its_plan(tmp_path: Path) -> None:
    report = run_case(draw_case(3))
    report.failures.append(Finding(Kind.VALUE, "1 is 2 and not 3"))
    data = json.loads(write_failure(report, tmp_path).read_text())
    assert data["seed"] == 3
    assert data["failures"] == ["value: 1 is 2 and not 3"]
    assert from_data({"steps": data["steps"]}) == report.case.plan


def test_finished_seeds_take_no_memory() -> None:
    def left(seeds: Iterable[int]) -> tuple[int, int]:
        for seed in seeds:
            assert run_case(draw_case(seed)).failures == []
        gc.collect()
        kinds = [type(each) for each in gc.get_objects()]
        clusters = sum(issubclass(kind, SimCluster) for kind in kinds)
        return clusters, kinds.count(Api)

    # A test before this one may have left a cluster that something still refers to.
    before, _ = left([])
    # In the first of these coroutines wait when it ends.
    clusters, engines = left([1005])
    assert clusters <= before
    assert left([1001, 1002])[0] <= before
    assert left([1005]) == (clusters, engines)
