"""The recovery fuzz: it holds, it is reproducible, and it can fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chaos import cases, fuzz
from chaos.bodies import Beside, Body, Call, Handing, Op, Teller
from chaos.campaign import run_seeds, write_failure
from chaos.cases import Case, draw_case
from chaos.ended import Ended
from chaos.fuzz import excuse, run_case
from chaos.interpreter import Told, run_body
from chaos.invariants import Violation
from chaos.outcomes import Boom, Stream, digest, mix
from chaos.plan import from_data
from chaos.sequential import Sequential
from runtime.api.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    ObjectLostError,
    RaySystemError,
    TaskCancelledError,
    TaskPlacementGroupRemoved,
    WorkerCrashedError,
)
from runtime.backend.actor_execution import ActorRunner
from runtime.control import placement_groups
from runtime.control.actor_host import ActorHost
from runtime.control.arrays import ArrayTable
from runtime.control.borrowing import Borrowing
from runtime.control.call_items import CallItems
from runtime.control.client import Client
from runtime.control.custody import Custody
from runtime.control.direct_calls import DirectCalls
from runtime.control.dispatcher import Dispatcher
from runtime.control.executor import Executor
from runtime.control.gcs import Gcs
from runtime.control.inheritance import Inheritance
from runtime.control.letting_go import LettingGo
from runtime.control.objects import ObjectDirectory
from runtime.control.placement_groups import Bundles
from runtime.control.resources import ResourcePool, parse_demand
from runtime.control.task_inputs import TaskInputs

PUT = "12" * 18
LOST_PUT = f"ObjectLostError: object {PUT} is lost: it was put, and node 1 died"
LOST_ONCE = "ObjectLostError: object 34 is lost: node 1 died, and k2r1 has no retries left"
FAILED = Path(__file__).with_name("failed_seeds.txt")


def failed_seeds() -> list[tuple[int, tuple[str, ...]]]:
    """Return each seed and the kinds that it failed with, most without any of today's."""
    lines = FAILED.read_text(encoding="utf-8").splitlines()
    found = (line.split()[0].partition("/") for line in lines if line and line[0] != "#")
    return [(int(seed), tuple(kinds.split("+")) if kinds else ()) for seed, _, kinds in found]


def run(seeds: range | list[int], lossless: bool = False, jobs: int = 1) -> list[str]:
    return [
        f"seed {report.case.seed}: {line}"
        for report in run_seeds(seeds, jobs, lossless)
        for line in report.failures
    ]


@pytest.mark.parametrize(("seed", "kinds"), failed_seeds())
def test_what_failed_once_holds_now(seed: int, kinds: tuple[str, ...]) -> None:
    assert set(kinds) <= set(cases.KINDS)
    assert run([seed]) == []
    assert run_case(draw_case(seed, kinds=kinds)).failures == []
    # Most failed before heads were killed.
    assert run_case(draw_case(seed, heads=False, kinds=kinds)).failures == []


@pytest.mark.parametrize("start", [10_000, 10_050, 10_100])
def test_programs_survive_faults(start: int) -> None:
    assert run(range(start, start + 50)) == []


def test_nothing_is_lost_while_nodes_live() -> None:
    assert run(range(20_000, 20_050), lossless=True) == []


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 2_000, 100))
def test_many_programs_survive_faults(start: int) -> None:
    assert run(range(start, start + 100), jobs=2) == []


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
    assert [(r.case.seed, r.failures, r.excused) for r in alone] == [
        (r.case.seed, r.failures, r.excused) for r in together
    ]


def test_a_failure_is_written_with_its_plan(tmp_path: Path) -> None:
    report = run_case(draw_case(3))
    report.failures.append("value 1 is 2 and not 3")
    data = json.loads(write_failure(report, tmp_path).read_text())
    assert data["seed"] == 3
    assert data["failures"] == ["value 1 is 2 and not 3"]
    assert from_data({"steps": data["steps"]}) == report.case.plan


# -- the oracle and the rules ------------------------------------------------------


def test_the_oracle_hands_errors_on() -> None:
    boom = Call(1, fails=True)
    program = Body(
        (
            Op("call", (), 0, boom),
            Op("call", (0,), 1, Call(2)),
            Op("lend", (0,), 2, Call(3)),
            Op("map", (), 3, Call(4), 2),
        )
    )
    outcomes = run_body(Sequential(), program)
    assert isinstance(outcomes[0], Boom)
    assert outcomes[1] == outcomes[0]
    assert isinstance(outcomes[2], int)
    assert len(outcomes) == 5


def test_the_oracle_calls_when_it_is_told_to_and_not_when_items_are_taken() -> None:
    call = Call(2, fails=True, parts=4)
    program = Body(
        (
            Op("actor", (), 0, teller=Teller(1)),
            Op("yields", (0,), 1, call),
            Op("tell", (0,), 2, Call(3)),
            Op("take", (1,), 3),
        )
    )
    *_, stream, after, first = run_body(Sequential(), program)
    told = Told(Teller(1))
    parts = told.parts(Sequential(), call, [])
    assert after == told.tell(Sequential(), Call(3), [])
    assert first == parts[0]
    # The first was taken, and is among those that are asked for; half-way it raises.
    assert digest(stream) == mix(9, *map(digest, (*parts[:2], Boom(mix(2, 2)))))


@pytest.mark.parametrize(
    ("error", "kills", "deaths", "ok"),
    [
        (WorkerCrashedError("worker:1.1 died while it ran k3r0: killed"), 1, 0, True),
        (WorkerCrashedError("worker:1.1 died while it ran k3r0: killed"), 0, 0, False),
        (WorkerCrashedError("the node that ran k3r1 died: gone"), 1, 1, False),
        (WorkerCrashedError("the node that ran k3r1 died: gone"), 2, 1, True),
        (WorkerCrashedError("the node that ran k3r-1 died: gone"), 9, 9, False),
        (WorkerCrashedError("something died"), 9, 9, False),
        (ObjectLostError(f"object {PUT} is lost: it was put, and node 1 died"), 1, 1, True),
        (ObjectLostError(f"object {PUT} is lost: it was put, and node 1 died"), 1, 0, False),
        (ObjectLostError(f"object {PUT} is lost: its owner has died or released it"), 9, 9, False),
        (ObjectLostError(f"object {'34' * 18} is lost: it was put, and node 1 died"), 9, 9, False),
        (
            ObjectLostError("what k1r3 made is lost: k1r3 has no retries left"),
            2,
            2,
            False,
        ),
        (ObjectLostError("what k1r1 made is lost: gone, and k1r1 has no retries left"), 2, 1, True),
        (ActorDiedError("a3r1 died: its node died: gone"), 2, 1, True),
        (ActorDiedError("a3r1 died: its worker ended: killed"), 1, 1, False),
        (ActorDiedError("a3r-1 died: its worker ended: killed"), 9, 9, False),
        (ActorDiedError(f"it cannot be rebuilt: {LOST_PUT}"), 1, 1, True),
        (ActorDiedError("it cannot be rebuilt: an input is an error"), 9, 9, False),
        (ActorUnavailableError("t7r2: the actor started anew"), 3, 0, True),
        (ActorUnavailableError("t7r2: the actor started anew"), 2, 2, False),
        (RaySystemError("nothing has happened"), 9, 9, False),
        (Violation("wait"), 9, 9, False),
    ],
)
def test_which_errors_are_legitimate(error: Exception, kills: int, deaths: int, ok: bool) -> None:
    assert (excuse(error, kills, deaths, puts={PUT}) == "") == ok


def test_what_a_killed_worker_owned_may_not_be_lost() -> None:
    oid = "ab" * 18
    assert excuse(ObjectLostError(f"object {oid} is lost: its owner has died"), 1, 0)


def test_what_a_value_refers_to_is_not_lost_while_others_need_the_value() -> None:
    error = ObjectLostError(f"object {'ab' * 18} is lost: its owner has died or released it")
    assert excuse(error, 9, 9)


@pytest.mark.parametrize(
    ("why", "kills", "deaths", "ok"),
    [
        ("does not have it any more, and k3r1 has no retries left", 2, 1, True),
        ("does not have it any more, and k3r1 has no retries left", 1, 1, False),
        ("does not have it any more, and k3r1 has no retries left", 2, 0, False),
        ("does not have it any more, and k3r-1 has no retries left", 9, 9, False),
        ("died, and k3r-1 has not yielded it again", 9, 9, False),
        ("died, and k3r-1 has not yielded it again: OSError: no disk", 9, 9, False),
        (f"died, and k3r-1 has not yielded it again: {LOST_PUT}", 1, 1, True),
        (f"died, and k3r-1 needs an input that is lost: {LOST_PUT}", 1, 1, True),
        (f"died, and k3r-1 needs an input that is lost: {LOST_PUT}", 1, 0, False),
        (f"died, and k3r-1 needs an input that is lost: {LOST_ONCE}", 2, 1, True),
        (f"died, and k3r-1 needs an input that is lost: {LOST_ONCE}", 1, 1, False),
    ],
)
def test_which_lost_results_are_legitimate(why: str, kills: int, deaths: int, ok: bool) -> None:
    error = ObjectLostError(f"object 12 is lost: the only copy was on node 1, which {why}")
    assert (excuse(error, kills, deaths, puts={PUT}) == "") == ok


@pytest.mark.parametrize(
    ("teller", "ended", "ok"),
    [
        (Teller(1, -1, -1, interval=0), set(), False),
        (Teller(1, -1, -1, interval=2), set(), True),
        (Teller(1, -1, -1, interval=0), {"a1r-1"}, True),
        (Teller(1, 2, 2, interval=0), set(), False),
        (Teller(1, 0, 0, interval=0), {"a1r0"}, True),
        (None, {"a1r0"}, False),
    ],
)
def test_an_actor_that_is_replayed_loses_nothing(
    teller: Teller | None, ended: set[str], ok: bool
) -> None:
    lost = f"object {PUT} is lost: the only copy was on node 1, which died: gone"
    error = ObjectLostError(f"{lost}, and the actor that made it has gone on since")
    told = {PUT: teller} if teller is not None else {}
    assert (excuse(error, 9, 1, puts={PUT}, told=told, ended=ended) == "") == ok


@pytest.mark.parametrize(
    ("cause", "interval", "kills", "deaths", "ok"),
    [
        ("ActorUnavailableError: t7r0: the actor started anew", 0, 1, 1, True),
        ("ActorUnavailableError: t7r0: the actor started anew", 0, 0, 1, False),
        ("ActorUnavailableError: t7r0: the actor started anew", 0, 1, 0, False),
        ("ActorUnavailableError: t7r1: the actor started anew", 0, 1, 1, False),
        ("ActorUnavailableError: t7r-1: the actor started anew", 0, 9, 9, False),
        ("ActorUnavailableError: t7r-1: the actor started anew", 2, 9, 9, True),
        ("ActorUnavailableError: nobody knows", 0, 9, 9, False),
        ("ObjectLostError: an item is lost", 0, 9, 9, False),
        ("ObjectLostError: an item is lost", 2, 9, 9, True),
    ],
)
def test_an_item_is_lost_if_its_call_may_have_ended_without_effect(
    cause: str, interval: int, kills: int, deaths: int, ok: bool
) -> None:
    lost = f"object {PUT} is lost: the only copy was on node 1, which died: gone"
    error = ObjectLostError(f"{lost}, and the actor that made it has gone on since: {cause}")
    told = {PUT: Teller(1, 3, 0, interval=interval)}
    assert (excuse(error, kills, deaths, puts={PUT}, told=told) == "") == ok
    assert excuse(error, kills, deaths, puts={PUT})


@pytest.mark.parametrize(("restarts", "ok"), [(-1, False), (3, True)])
def test_of_an_actor_without_end_nothing_fails_that_its_calls_need(restarts: int, ok: bool) -> None:
    why = "t7r-1 raised when it was repeated, which it had not done before"
    error = ActorDiedError(f"it cannot be rebuilt: {why}")
    assert (excuse(error, 9, 1, told={"t7r-1": Teller(1, restarts, -1)}) == "") == ok


def test_actors_are_called_by_tasks_and_actors_and_one_at_a_time() -> None:
    cases = [draw_case(seed, kinds=()) for seed in range(40)]
    kinds = {(op.do, bool(op.hands)) for c in cases for op in c.program.ops if type(op) is Handing}
    assert kinds == {("hand", True), ("hand", False), ("tell", True)}
    assert {case.direct_after for case in cases} == {1, 8}


def test_calls_that_are_awaited_go_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[bytes] = []
    directly = DirectCalls.directly

    def watched(self: DirectCalls, call: bytes, free: bool) -> bool:
        ran.append(call)
        return directly(self, call, free)

    monkeypatch.setattr(DirectCalls, "directly", watched)
    case = next(case for case in map(draw_case, range(100)) if case.direct_after == 1)
    assert run_case(case).failures == []
    assert ran


@pytest.mark.parametrize(("name", "ok"), [("t7r-1", True), ("k8r3", False)])
def test_only_what_was_cancelled_may_say_so(name: str, ok: bool) -> None:
    error = TaskCancelledError(f"{name} was cancelled")
    assert (excuse(error, 9, 9, cancelled={"t7r-1"}) == "") == ok


def test_what_is_cancelled_is_told_from_what_took_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [case for case in map(draw_case, range(60)) if _cancels(case)]
    assert all(run_case(case).failures == [] for case in cases[:5])
    monkeypatch.setattr("chaos.programs.TaskCancelledError", WorkerCrashedError)
    wrong = [line for case in cases[:5] for line in run_case(case).failures]
    assert any(" and not 1" in line for line in wrong), "calls that never ran were counted"


def _cancels(case: Case) -> bool:
    return {"cancel", "tally"} <= {op.do for op in case.program.ops}


# -- what the program itself ends, groups, and calls beside one another --------------

GROUP = "ab" * 12
REMOVED = f"k9r0 was in placement group {GROUP}, which is gone"


def what_ended(**more: Any) -> Ended:
    ended = Ended()
    ended.actors["01"] = "a1r1"
    for actor, restart in more.get("kills", ()):
        ended.kill(actor, restart)
    for actor in more.get("left", ()):
        ended.leave(actor)
    for group in more.get("groups", ()):
        ended.remove(group)
    ended.within.update(more.get("within", ()))
    return ended


def killed() -> ActorDiedError:
    error = ActorDiedError("it was killed by kill()")
    error.actor_id = "01"
    return error


LEFT = "a1r1 has ended: exit_actor() was called"


@pytest.mark.parametrize(
    ("error", "more", "kills", "ok"),
    [
        (killed(), {}, 9, False),
        (killed(), {"kills": [("a1r1", False)]}, 0, True),
        (killed(), {"kills": [("a2r1", False)]}, 0, False),
        (killed(), {"kills": [("a1r1", True)]}, 0, False),
        (killed(), {"kills": [("a1r1", True)]}, 1, True),
        (killed(), {"kills": [("a1r1", True)] * 2}, 0, True),
        (ActorDiedError(LEFT), {"left": ["a1r1"]}, 0, False),
        (ActorDiedError(LEFT), {"left": ["a1r1"]}, 1, True),
        (ActorDiedError(LEFT), {}, 9, False),
        (TaskPlacementGroupRemoved(REMOVED), {"groups": [GROUP], "within": ["cd" * 12]}, 0, True),
        (TaskPlacementGroupRemoved(REMOVED), {"groups": [GROUP]}, 0, False),
        (TaskPlacementGroupRemoved(REMOVED), {"within": ["cd" * 12]}, 9, False),
    ],
)
def test_what_the_program_has_ended_explains_just_that(
    error: Exception, more: dict[str, Any], kills: int, ok: bool
) -> None:
    ended = what_ended(**more)
    ended.seen(error, "cd" * 18)
    assert (excuse(error, kills, 0) == "") == ok
    ended.kill("a1r1", False)
    ended.leave("a1r1")
    ended.remove(GROUP)
    assert (excuse(error, kills, 0) == "") == ok, "it was seen before that"


LOST = ObjectLostError("object x is lost")


@pytest.mark.parametrize(
    ("found", "ok"),
    [((1, 2, 3), True), ((1, 9, 3), False), ((1, 2), False), ((1, 2, 3, 3), False), ((), False),
     ((1, LOST, 3), True), ((1, 9, LOST), False), ((LOST, 3), False), ((1, LOST), True),
     ((1, 2, 3, LOST), True), ((1, 2, 3, LOST, LOST), False)],
)  # fmt: skip
def test_an_error_in_a_stream_excuses_no_other_item(found: tuple[Any, ...], ok: bool) -> None:
    items = Stream(iter(found)).rest(lambda item: item)[0]
    assert items.is_right(Stream(iter((1, 2, 3))).rest(lambda item: item)[0]) == ok
    assert items.strange == [part for part in found if part is LOST]


def test_all_three_are_drawn_and_leave_the_rest_of_a_program_as_it_was() -> None:
    drawn = [draw_case(seed) for seed in range(60)]
    does = {op.do for case in drawn for op in case.program.ops}
    assert {"kill", "gone", "group", "reserved", "remove"} <= does
    tellers = [op.teller for case in drawn for op in case.program.ops]
    assert {each.coroutines for each in tellers if isinstance(each, Beside)} == {True, False}
    for case in drawn:
        before = draw_case(case.seed, kinds=())
        kept = iter(case.program.ops)
        later = [op for op in before.program.ops if not isinstance(op, Handing)]
        assert all(op in kept for op in later), "its operations are there in their order"


# -- mutants: what is broken is seen -----------------------------------------------


def first_failures(seeds: range) -> list[str]:
    """Return what the first seed that fails violates."""
    for seed in seeds:
        failures = run_case(draw_case(seed)).failures
        if failures:
            return failures
    return []


def mutant_without(cls: type, method: str) -> Callable[[pytest.MonkeyPatch], None]:
    def break_it(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(cls, method, lambda *args, **kwargs: None)

    return break_it


def never_taken(patch: pytest.MonkeyPatch) -> None:
    """A pool that gives without taking: more runs than there is room for."""
    for method in ("take", "take_back", "give"):
        patch.setattr(ResourcePool, method, lambda self, demand: None)


def never_taken_back(patch: pytest.MonkeyPatch) -> None:
    """A pool in which the CPUs of tasks that go on stay free: others begin beside them."""

    def give(self: ResourcePool, demand: str) -> None:
        for name, units in parse_demand(demand):
            self.free[name] = min(self.free[name] + units, self.total[name])

    patch.setattr(ResourcePool, "give", give)
    patch.setattr(ResourcePool, "take_back", lambda self, demand: None)


def mixed_up(patch: pytest.MonkeyPatch) -> None:
    """A task gets its inputs in another order than it was given them."""
    inputs = TaskInputs.take

    def wrong(self: TaskInputs, spec: Any, worker: str) -> Any:
        found = inputs(self, spec, worker)
        return None if found is None else found[::-1]

    patch.setattr(TaskInputs, "take", wrong)


def seen_twice(patch: pytest.MonkeyPatch) -> None:
    """A result that is lost with its node is taken to be there for ever."""
    patch.setattr(ArrayTable, "on_node_died", lambda self, node, reason: None)


def retries_lost(patch: pytest.MonkeyPatch) -> None:
    """A worker's death fails its task, whatever retries it has left."""
    retry = Dispatcher._retry

    def wrong(self: Dispatcher, worker: Any, reason: str) -> None:
        for spec in worker.assigned:
            spec.retries = 0
        retry(self, worker, reason)

    patch.setattr(Dispatcher, "_retry", wrong)


def never_replayed(patch: pytest.MonkeyPatch) -> None:
    """An actor starts again as if it had never been called."""
    restore = ActorHost._restore

    def wrong(self: ActorHost, actor: Any) -> None:
        actor.lineage.clear()
        restore(self, actor)

    patch.setattr(ActorHost, "_restore", wrong)


def all_lost(
    self: Inheritance, worker: str, arrays: list[bytes], parent: Any, restarts: bool
) -> None:
    """What a dead worker owned, nobody owns."""
    for array in arrays:
        self.lose(array)


def placed_anywhere(patch: pytest.MonkeyPatch) -> None:
    """Bundles go where there is room, whatever the strategy says."""
    place = placement_groups.place

    def wrong(bundles: Any, free: Any, strategy: str, used: Any) -> Any:
        return place(bundles, free, "PACK" if "SPREAD" in strategy else "SPREAD", used)

    patch.setattr(placement_groups, "place", wrong)


def one_at_a_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ActorRunner, "has_room", lambda self: not self._running)


def all_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ActorRunner, "has_room", lambda self: True)


def killed_for_good(patch: pytest.MonkeyPatch) -> None:
    """An actor that is killed does not start again, whatever was said."""
    kill = Client.kill_actor

    def wrong(self: Client, actor: bytes, reason: str, restart: bool) -> None:
        kill(self, actor, reason, False)

    patch.setattr(Client, "kill_actor", wrong)


def exit_is_a_crash(patch: pytest.MonkeyPatch) -> None:
    """An actor that leaves comes back."""
    leave = Executor.exit_actor

    def wrong(self: Executor, reason: str, crashed: bool = False) -> None:
        leave(self, reason, True)

    patch.setattr(Executor, "exit_actor", wrong)


LATER_MUTANTS: dict[str, tuple[str, Callable[[pytest.MonkeyPatch], None], tuple[str, ...]]] = {
    "bundles are never returned": (
        "GROUPS", mutant_without(Bundles, "on_return"), ("bundles:", "has not ended"),
    ),
    "strategies are not kept": ("GROUPS", placed_anywhere, ("value ",)),
    "what is removed is not known at once": (
        "GROUPS", mutant_without(Bundles, "on_remove"), ("and not 1",),
    ),
    "what waits in a removed group is left there": (
        "GROUPS",
        mutant_without(Bundles, "_end_waiting"),
        ("bundles:", "resources:", "RaySystemError", "has not ended", "not there"),
    ),
    "calls run one at a time": (
        "BESIDE", one_at_a_time, ("RaySystemError", "has not ended", "value "),
    ),
    "more calls run than may": ("BESIDE", all_at_once, ("beside",)),
    "an actor is killed for good": ("ENDS", killed_for_good, ("it was killed by kill()",)),
    "an actor that leaves comes back": (
        "ENDS", exit_is_a_crash, ("value ", "RaySystemError", "has not ended"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LATER_MUTANTS)
def test_a_defect_of_what_is_drawn_later_is_caught(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    feature, break_it, signs = LATER_MUTANTS[name]
    for each in cases.KINDS:
        monkeypatch.setattr(cases, each.upper(), float(each.upper() == feature))
    monkeypatch.setattr(fuzz, "LIMIT_S", 20.0)
    break_it(monkeypatch)
    failures = first_failures(range(31_000, 31_060))
    assert failures, "no seed saw it"
    assert any(sign in line for line in failures for sign in signs), failures


MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], tuple[str, ...]]] = {
    "resources are never taken": (never_taken, ("oversubscription:",)),
    "CPUs are never taken back": (never_taken_back, ("oversubscription:",)),
    "resources are never given back": (
        mutant_without(ResourcePool, "give"),
        ("resources:", "RaySystemError", "has not ended"),
    ),
    "nothing is released": (mutant_without(LettingGo, "release_all"), ("stores:", "tables:")),
    "the GCS never releases": (mutant_without(ArrayTable, "_release"), ("tables:", "stores:")),
    "inputs are mixed up": (mixed_up, ("value ",)),
    "a dead node's work is forgotten": (
        seen_twice,
        ("value ", "Violation", "RaySystemError", "tables:"),
    ),
    "nodes are never declared dead": (
        mutant_without(Gcs, "_declare_dead"),
        ("value ", "Violation", "RaySystemError", "resources:"),
    ),
    "retries are forgotten": (retries_lost, ("value ",)),
    "items of streams have no task": (
        lambda patch: patch.setattr("runtime.control.tables.task_of", lambda index: index),
        ("value ",),
    ),
    "borrowers are not counted": (mutant_without(Borrowing, "_on_update"), ("value ",)),
    "what a dead worker owned is lost": (
        lambda patch: patch.setattr(Inheritance, "inherit", all_lost),
        ("value ",),
    ),
    "what is inside of values is never let go": (
        mutant_without(Custody, "release"),
        ("references:", "tables:", "stores:"),
    ),
    "actors are not rebuilt": (never_replayed, ("value ",)),
    "calls take effect twice": (
        lambda patch: patch.setattr(ActorHost, "_answer", lambda self, actor, spec: False),
        ("value ", "AssertionError"),
    ),
    "what calls have yielded is forgotten": (
        mutant_without(CallItems, "add"),
        ("value ", "RaySystemError", "has not ended"),
    ),
    "memory is never freed": (mutant_without(ObjectDirectory, "_free"), ("stores:", "value ")),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_defect_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    break_it, signs = MUTANTS[name]
    break_it(monkeypatch)
    failures = first_failures(range(30_000, 30_240))
    assert failures, "no seed saw it"
    assert any(sign in line for line in failures for sign in signs), failures


@pytest.mark.parametrize("start", range(30_000, 30_240, 60))
def test_without_a_defect_the_same_seeds_hold(start: int) -> None:
    assert run(range(start, start + 60), jobs=2) == []


def test_a_case_is_data() -> None:
    case = draw_case(5)
    assert isinstance(case, Case)
    assert draw_case(5) == case
