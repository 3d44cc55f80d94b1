"""Random programs of actors with CPUs, and tasks that need CPUs, end with the right values."""

from __future__ import annotations

import random
from typing import Any

import pytest

from raytwin.chaos.faults.plan import Plan
from raytwin.chaos.fuzz.generate.actors_with_cpus import actors_with_cpus
from raytwin.chaos.fuzz.generate.cases import Case
from raytwin.chaos.fuzz.generate.drawing import Draw, Scope
from raytwin.chaos.fuzz.generate.plans import draw_plan
from raytwin.chaos.fuzz.programs.program import Body
from raytwin.chaos.fuzz.run.case_run import run_case
from raytwin.runtime.control.core.worker_record import State, Worker
from raytwin.runtime.control.local_scheduler.dispatcher import Dispatcher

pytestmark = pytest.mark.slow


def run(seeds: range, faults: bool = False) -> list[str]:
    """Run rounds of actors that hold CPUs, alone; return what is wrong."""
    found = []
    for seed in seeds:
        rng = random.Random(f"holders/{seed}")
        nodes, cpus = rng.randint(1 + faults, 4), rng.randint(1, 2)
        draw, scope = Draw(rng, (), large_stores=True), Scope()
        for _ in range(rng.randint(1, 5)):
            actors_with_cpus(draw, scope)
        plan = draw_plan(rng, nodes, Case.heartbeat_timeout_s) if faults else Plan([])
        report = run_case(Case(seed, nodes, cpus, Body(tuple(scope.ops)), plan, lossless=False))
        found += [f"seed {seed}: {line}" for line in report.failures]
    return found


@pytest.mark.parametrize("faults", [False, True], ids=["healthy", "faults"])
def test_tasks_that_wait_for_an_actors_cpu_run_in_the_end(faults: bool) -> None:
    assert run(range(30), faults) == []


def test_an_actor_s_worker_that_is_given_away_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def drain(self: Any, worker: Worker) -> None:
        if worker.state is State.LEASED and not worker.assigned:
            self._resources.give(worker.demand)
            self._pool.make_idle(worker, bool(self.ready.size))

    def on_taken_back(self: Any, source: str, message: Any) -> None:
        real(self, source, message)
        if source in self.workers:
            drain(self, self.workers[source])

    real = Dispatcher.on_taken_back
    monkeypatch.setattr(Dispatcher, "on_taken_back", on_taken_back)
    assert run(range(20))
