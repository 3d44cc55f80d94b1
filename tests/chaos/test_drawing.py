"""Programs are drawn so that no fault may lose the inputs of an exact actor's call.

A large value that is made from a put can be reconstructed only while the put exists. Once the
program has dropped the put, the value may rightly be lost; then the call raises, and all later
values of its actor differ from the oracle's.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from raytwin.chaos.faults.plan import Plan, Step
from raytwin.chaos.faults.targets import Node
from raytwin.chaos.fuzz.generate.cases import Case
from raytwin.chaos.fuzz.generate.drawing import Draw, Scope
from raytwin.chaos.fuzz.oracle.legitimate_errors import Oracle
from raytwin.chaos.fuzz.programs.program import LARGE_BYTES, ActorSpec, Body, Call, Op
from raytwin.chaos.fuzz.run import case_run

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
