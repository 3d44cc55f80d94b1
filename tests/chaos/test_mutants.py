"""Mutants: the fuzz finds each defect of the control plane."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raytwin.chaos.fuzz.generate import cases
from raytwin.chaos.fuzz.generate.cases import STORE_BYTES, draw_case
from raytwin.chaos.fuzz.run import case_run
from raytwin.chaos.fuzz.run.campaign import run_seeds
from raytwin.chaos.fuzz.run.case_run import run_case
from raytwin.runtime.control.actors.actor_reconstruction import ActorReconstruction
from raytwin.runtime.control.actors.actor_record import ReplyCache
from raytwin.runtime.control.actors.call_queue import CallQueue
from raytwin.runtime.control.client.direct_calls import DirectCalls
from raytwin.runtime.control.client.submitter import Submitter
from raytwin.runtime.control.core.resources import ResourcePool, parse_demand
from raytwin.runtime.control.gcs.node_table import NodeTable
from raytwin.runtime.control.gcs.task_object_table import TaskObjectTable
from raytwin.runtime.control.local_scheduler.bundles import Bundles
from raytwin.runtime.control.local_scheduler.dependencies import TaskInputs
from raytwin.runtime.control.local_scheduler.dispatcher import Dispatcher
from raytwin.runtime.control.objects.object_memory import ObjectMemory
from raytwin.runtime.control.objects.release_manager import ReleaseManager
from raytwin.runtime.control.ownership.contained_references import ContainedReferences
from raytwin.runtime.control.ownership.reference_counter import ReferenceCounter
from raytwin.runtime.control.scheduling import placement_groups
from raytwin.runtime.control.worker.direct_answers import DirectAnswers
from raytwin.runtime.control.worker.executor import Executor
from raytwin.runtime.execution.actor_execution import ActorRunner

pytestmark = pytest.mark.slow


def signs_in(signs: tuple[str, ...], seeds: range, large_stores: bool = False) -> bool:
    """Whether some seed fails with one of the signs; with `large_stores`, of such a seed."""
    cases = (
        case
        for case in map(draw_case, seeds)
        if not large_stores or case.store_bytes == STORE_BYTES
    )
    failures = (line for case in cases for line in run_case(case).failures)
    return any(sign in line for line in failures for sign in signs)


def mutant_without(cls: type, method: str) -> Callable[[pytest.MonkeyPatch], None]:
    def break_it(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(cls, method, lambda *args, **kwargs: None)

    return break_it


def never_taken(patch: pytest.MonkeyPatch) -> None:
    """A pool that gives without taking: more runs than there is room for."""
    for method in ("take", "retake", "give"):
        patch.setattr(ResourcePool, method, lambda self, demand: None)


def never_taken_back(patch: pytest.MonkeyPatch) -> None:
    """A pool in which the CPUs of tasks that go on stay free: others begin beside them."""

    def give(self: ResourcePool, demand: str) -> None:
        for name, units in parse_demand(demand):
            self.free[name] = min(self.free[name] + units, self.total[name])

    patch.setattr(ResourcePool, "give", give)
    patch.setattr(ResourcePool, "retake", lambda self, demand: None)


def mixed_up(patch: pytest.MonkeyPatch) -> None:
    """A task gets its inputs in another order than it was given them."""
    inputs = TaskInputs.take

    def wrong(self: TaskInputs, spec: Any, worker: str) -> Any:
        found = inputs(self, spec, worker)
        return None if found is None else found[::-1]

    patch.setattr(TaskInputs, "take", wrong)


def seen_twice(patch: pytest.MonkeyPatch) -> None:
    """A result that is lost with its node is taken to be there for ever."""
    patch.setattr(TaskObjectTable, "on_node_died", lambda self, node, reason: None)


def retries_lost(patch: pytest.MonkeyPatch) -> None:
    """A worker's death fails its task, whatever retries it has left."""
    retry = Dispatcher._retry

    def wrong(self: Dispatcher, worker: Any, reason: str) -> None:
        for spec in worker.assigned:
            spec.retries = 0
        retry(self, worker, reason)

    patch.setattr(Dispatcher, "_retry", wrong)


def items_without_task(patch: pytest.MonkeyPatch) -> None:
    """The GCS takes the number of a stream's item for the number of its task."""
    for module in ("array_row", "lineage"):
        name = f"raytwin.runtime.control.gcs.{module}.task_of"
        patch.setattr(name, lambda index: index)


def run_again(patch: pytest.MonkeyPatch) -> None:
    """A worker forgets a direct call that has ended."""
    answer = DirectAnswers.answer

    def wrong(self: DirectAnswers, result: Any, timing: Any) -> None:
        answer(self, result, timing)
        self.call = b""

    patch.setattr(DirectAnswers, "answer", wrong)


def never_replayed(patch: pytest.MonkeyPatch) -> None:
    """An actor starts again as if it had never been called."""
    restore = ActorReconstruction.restore

    def wrong(self: ActorReconstruction, actor: Any) -> None:
        actor.lineage.clear()
        actor.replaying.clear()
        restore(self, actor)

    patch.setattr(ActorReconstruction, "restore", wrong)


def placed_anywhere(patch: pytest.MonkeyPatch) -> None:
    """Bundles go where there is room, whatever the strategy says."""
    place = placement_groups.place

    def wrong(bundles: Any, free: Any, strategy: str, used: Any) -> Any:
        return place(bundles, free, "PACK" if "SPREAD" in strategy else "SPREAD", used)

    patch.setattr(placement_groups, "place", wrong)


def one_at_a_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ActorRunner, "has_room", lambda self: not self._actor.running)


def all_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ActorRunner, "has_room", lambda self: True)


def killed_for_good(patch: pytest.MonkeyPatch) -> None:
    """An actor that is killed does not start again, whatever was said."""
    kill = Submitter.kill_actor

    def wrong(self: Submitter, actor: bytes, restart: bool) -> None:
        kill(self, actor, False)

    patch.setattr(Submitter, "kill_actor", wrong)


def exit_is_a_crash(patch: pytest.MonkeyPatch) -> None:
    """An actor that leaves comes back."""
    patch.setattr(Executor, "leave", Executor.crash)


RARE_MUTANTS: dict[str, tuple[str, Callable[[pytest.MonkeyPatch], None], tuple[str, ...]]] = {
    "yielded items of calls are forgotten": (
        "streams actors callers", mutant_without(ReplyCache, "add_item"),
        ("value ", "RaySystemError", "has not ended"),
    ),
    "bundles are never returned": (
        "groups", mutant_without(Bundles, "on_return"), ("bundles:", "has not ended"),
    ),
    "strategies are not kept": ("groups", placed_anywhere, ("value ",)),
    "a group's removal is not applied at once": (
        "groups", mutant_without(Bundles, "on_remove"), ("and not 1",),
    ),
    "queued tasks of a removed group are left there": (
        "groups",
        mutant_without(Bundles, "_end_waiting"),
        ("bundles:", "resources:", "RaySystemError", "has not ended", "not there"),
    ),
    "calls run one at a time": (
        "concurrent", one_at_a_time, ("RaySystemError", "has not ended", "value "),
    ),
    "more calls run than max_concurrency allows": (
        "concurrent", all_at_once, ("beside", "has not ended"),
    ),
    "an actor is killed for good": ("ends", killed_for_good, ("was killed by kill()",)),
    "an actor that exits restarts": (
        "ends", exit_is_a_crash, ("value ", "RaySystemError", "has not ended"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RARE_MUTANTS)
def test_a_defect_of_a_rare_feature_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    features, break_it, signs = RARE_MUTANTS[name]
    for each in {"concurrent", "groups", "ends", "actors_with_cpus", *features.split()}:
        monkeypatch.setitem(cases.FEATURES, each, float(each in features.split()))
    monkeypatch.setattr(case_run, "LIMIT_S", 20.0)
    break_it(monkeypatch)
    assert signs_in(signs, range(31_100, 31_160)), "no seed saw it"


MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], tuple[str, ...]]] = {
    "resources are never taken": (never_taken, ("oversubscription:",)),
    "CPUs are never taken back": (never_taken_back, ("oversubscription:",)),
    "resources are never given back": (
        mutant_without(ResourcePool, "give"),
        ("resources:", "RaySystemError", "has not ended"),
    ),
    "nothing is released": (mutant_without(ReleaseManager, "release_all"), ("stores:", "tables:")),
    "the GCS never releases": (mutant_without(TaskObjectTable, "release"), ("tables:", "stores:")),
    "inputs are mixed up": (mixed_up, ("value ",)),
    "a dead node's work is forgotten": (
        seen_twice,
        ("value ", "Violation", "RaySystemError", "tables:"),
    ),
    "nodes are never declared dead": (
        mutant_without(NodeTable, "declare_dead"),
        ("value ", "Violation", "RaySystemError", "resources:"),
    ),
    "retries are forgotten": (retries_lost, ("value ",)),
    "items of streams have no task": (items_without_task, ("value ",)),
    "borrowers are not counted": (mutant_without(ReferenceCounter, "_on_update"), ("value ",)),
    "an owner's death is not announced": (
        mutant_without(ReleaseManager, "owner_died"),
        ("value ", "RaySystemError", "tables:", "stores:"),
    ),
    "references inside of values are never released": (
        mutant_without(ContainedReferences, "release"),
        ("references:", "tables:", "stores:"),
    ),
    "a direct call that is published runs again": (run_again, ("value ",)),
    "direct calls of dead workers are lost": (
        mutant_without(DirectCalls, "on_closed"),
        ("RaySystemError", "has not ended"),
    ),
    "actors are not reconstructed": (never_replayed, ("value ",)),
    "calls take effect twice": (
        lambda patch: patch.setattr(CallQueue, "repeat", lambda self, actor, spec: False),
        ("value ", "AssertionError"),
    ),
    "memory is never freed": (mutant_without(ObjectMemory, "_free"), ("stores:", "value ")),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_defect_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    break_it, signs = MUTANTS[name]
    break_it(monkeypatch)
    # A small store would be evicted for ever where nothing becomes free.
    assert signs_in(signs, range(30_000, 30_240), large_stores="stores:" in signs), "no seed saw it"


@pytest.mark.parametrize("start", range(30_000, 30_240, 60))
def test_without_a_defect_the_same_seeds_hold(start: int) -> None:
    reports = run_seeds(range(start, start + 60), jobs=2)
    assert [(each.case.seed, each.failures) for each in reports if each.failures] == []
