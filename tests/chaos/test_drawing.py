"""Programs are drawn so that no fault may lose the inputs of an exact actor's call.

A large value that is made from a put can be reconstructed only while the put exists. Once the
program has dropped the put, the value may rightly be lost; then the call raises, and all later
values of its actor differ from the oracle's.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from raytwin.chaos.faults.plan import Plan, Step
from raytwin.chaos.faults.targets import Node, Target
from raytwin.chaos.fuzz.generate import plans as plans_module
from raytwin.chaos.fuzz.generate.cases import Case, draw_case
from raytwin.chaos.fuzz.generate.drawing import Draw, Scope
from raytwin.chaos.fuzz.generate.plans import HEARTBEAT_TIMEOUTS_S, PASSES, cut_for_good
from raytwin.chaos.fuzz.oracle.legitimate_errors import Oracle
from raytwin.chaos.fuzz.programs.program import LARGE_BYTES, ActorSpec, Body, Call, Op
from raytwin.chaos.fuzz.run import case_run
from raytwin.runtime.control.core.config import Config
from raytwin.runtime.session.cluster_config import cluster_config

MADE_OF_A_PUT = (
    Op("call", (), 0, Call(1, 0.1, retries=-1)),
    Op("put", (), 1, nbytes=8),
    Op("call", (1,), 2, Call(2, 0.0, LARGE_BYTES, retries=-1)),
)
"""Beside the first, the last one runs on another node; the put is let go of before it is asked
for."""


def drawn(seed: int) -> Body:
    draw, scope = Draw(random.Random(seed), ("actors", "streams"), large_stores=True), Scope()
    for _ in range(20):
        draw.step(scope)
        draw.actors(scope)
    return Body(tuple(scope.ops))


def calls_of_exact_actors(program: Body) -> Iterator[Op]:
    """Yield them, and nothing else."""
    exact = {op.out for op in program.ops if op.spec is not None and op.spec.exact}
    yield from (op for op in program.ops if op.do == "tell" and op.ins[0] in exact)


def case_of(body: tuple[Op, ...], kill_s: float) -> Case:
    """Return a case in which an actor on node 0 is called, and node 1 dies at that moment."""
    program = Body(
        (
            Op("actor", (), 10, spec=ActorSpec(10)),
            *(Op("call", (), out, Call(out, 0.05, retries=-1)) for out in range(100, 104)),
            Op("tell", (10,), 20, Call(20, retries=-1, body=Body(body))),
            Op("tell", (10,), 21, Call(21, retries=-1)),
        )
    )
    return Case(1, 2, 1, program, Plan([Step("kill", Node(1), kill_s)]), lossless=False)


@pytest.mark.parametrize("kill_s", [0.123, 0.163, 0.203])
def test_a_result_of_a_put_is_reconstructed_while_the_put_exists(
    kill_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_again: list[str] = []
    make_oracle = case_run._oracle

    def watched(*given: Any) -> Oracle:
        session = given[2]
        rows = case_run._events(session)
        made_again.extend(row[2] for row in rows if row[1] == "task_reconstructed")
        return make_oracle(*given)

    monkeypatch.setattr(case_run, "_oracle", watched)
    let_go = case_run.run_case(case_of(MADE_OF_A_PUT, kill_s))
    assert let_go.verdicts.total() == 1, "the call has raised that it is lost"
    assert len(let_go.failures) == 1, "and the next one does not know of it"
    held = case_run.run_case(case_of((*MADE_OF_A_PUT, Op("get", (0, 2))), kill_s))
    assert (held.failures, held.verdicts.total()) == ([], 0)
    assert made_again == ["k2r-1", "k2r-1"], "both times the only copy was lost"


def test_no_large_value_in_an_exact_actor_s_call_is_made_of_another() -> None:
    large = 0
    for call in (op.call for seed in range(200) for op in calls_of_exact_actors(drawn(seed))):
        assert call is not None
        puts: set[int] = set()
        for op in call.body.ops if call.body is not None else ():
            assert op.do not in ("lend", "pack")
            if op.do == "drop":
                assert puts.isdisjoint(op.ins)
            elif op.do == "put":
                puts.add(op.out)
            elif op.do == "call":
                assert op.call is not None and op.call.retries < 0 and puts.isdisjoint(op.ins)
                if op.call.nbytes >= LARGE_BYTES:
                    large += 1
                    assert not op.ins
    assert large > 50


def test_no_input_of_an_exact_actor_can_be_lost() -> None:
    inputs = 0
    for program in map(drawn, range(500, 800)):
        made = {op.out: op for op in program.ops}
        for call in calls_of_exact_actors(program):
            for op in (made[i] for i in call.ins[1:]):
                inputs += 1
                if op.call is None:
                    assert op.do == "put"
                else:
                    assert op.call.retries < 0
                    assert op.call.nbytes < LARGE_BYTES or not op.ins
    assert inputs > 50, "others are drawn"


def test_no_large_value_is_made_of_a_call_that_is_not_replayed() -> None:
    """The program may drop the call's value before the large one is lost with its node."""
    needed = 0
    for seed in range(200):
        scope = Scope()
        Draw(random.Random(seed), (), large_stores=True).singly(scope)
        made = {op.out for op in scope.ops if op.do == "tell"}
        for op in scope.ops:
            if op.do == "call" and not made.isdisjoint(op.ins):
                needed += 1
                assert op.call is not None and op.call.nbytes < LARGE_BYTES
    assert needed > 50


def test_every_timer_of_the_control_plane_is_drawn_but_the_scheduling_delay() -> None:
    of_config = {field.name for field in msgspec.structs.fields(Config) if field.name[-2:] == "_s"}
    drawn = {name for case in map(draw_case, range(300)) for name in case.timers}
    limits_s = {case.heartbeat_timeout_s for case in map(draw_case, range(300))}
    assert of_config - drawn == {"heartbeat_timeout_s", "scheduling_delay_s"}
    assert limits_s == {*HEARTBEAT_TIMEOUTS_S}, "it has a field of its own"


def test_a_drawn_setting_counts_where_an_option_has_another_default() -> None:
    config = cluster_config(timers={"actor_end_s": 0.5, "scheduling_delay_s": 0.25})
    assert (config.actor_end_s, config.scheduling_delay_s) == (0.5, 0.25)


def test_faults_that_pass_do_so_within_the_limit_that_is_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a node of the core would rightly be declared dead."""
    monkeypatch.setattr(plans_module, "HEALED", 0.0)
    longest_s: dict[float, float] = {}
    for case in map(draw_case, range(400)):
        steps = sorted(case.plan.steps, key=lambda step: step.at_s or 0.0)
        begun_s: dict[Target, float] = {}
        for step in steps:
            if step.action == "cut":
                begun_s.setdefault(step.target, step.at_s or 0.0)
            elif step.action == "heal" and step.target in begun_s:
                lasted_s = (step.at_s or 0.0) - begun_s.pop(step.target)
                limit_s = case.heartbeat_timeout_s
                longest_s[limit_s] = max(longest_s.get(limit_s, 0.0), lasted_s)
    assert {*longest_s} == {*HEARTBEAT_TIMEOUTS_S}
    assert longest_s[2.0] > PASSES * 0.5, "the faults of a longer limit are longer"
    assert all(lasted_s < limit_s / 2 for limit_s, lasted_s in longest_s.items())


def test_nodes_that_are_cut_off_may_come_back_after_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cases = [draw_case(seed) for seed in range(500)]
    monkeypatch.setattr(plans_module, "HEALED", 0.0)
    lasted: list[float] = []
    for case in cases:
        cut = cut_for_good(draw_case(case.seed).plan)
        healed = cut.keys() - cut_for_good(case.plan).keys()
        ends = {step.target: step.at_s for step in case.plan.steps if step.action == "heal"}
        lasted += [(ends[link] - cut[link]) / case.heartbeat_timeout_s for link in healed]
    assert min(lasted) < 1, "some end before the limit"
    assert statistics.fmean(each > 1 for each in lasted) > 0.3, "and some after it"


def test_several_nodes_may_stay_broken_and_the_others_are_a_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seeds, fatal = range(500), ("kill", "restart", "remove_node")
    plans = [draw_case(seed).plan for seed in seeds]
    monkeypatch.setattr(plans_module, "BROKEN", 0.0)
    most = 0
    for seed, plan in zip(seeds, plans, strict=True):
        paused: set[int] = set()
        for step in sorted(plan.steps, key=lambda step: step.at_s or 0.0):
            if step.action in ("pause", "resume") and isinstance(step.target, Node):
                (paused.add if step.action == "pause" else paused.discard)(step.target.number)
        whole = [step.target for step in draw_case(seed).plan.steps if step.action in fatal]
        dying = {target.number for target in whole if isinstance(target, Node)}
        assert paused <= dying - {0}, f"seed {seed}: a node of the core hangs for good"
        most = max(most, len(paused))
    assert most > 1
