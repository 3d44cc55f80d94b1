"""The sequential run of a random program."""

from __future__ import annotations

from raytwin.chaos.fuzz.oracle.sequential import Sequential
from raytwin.chaos.fuzz.programs.interpreter import FoldActor, run_body
from raytwin.chaos.fuzz.programs.outcomes import Boom, digest, mix
from raytwin.chaos.fuzz.programs.program import ActorSpec, Body, Call, Op


def test_the_sequential_run_passes_errors_on() -> None:
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


def test_the_sequential_run_calls_at_the_call_and_not_when_items_are_taken() -> None:
    call = Call(2, fails=True, parts=4)
    program = Body(
        (
            Op("actor", (), 0, spec=ActorSpec(1)),
            Op("yields", (0,), 1, call),
            Op("tell", (0,), 2, Call(3)),
            Op("take", (1,), 3),
        )
    )
    *_, stream, after, first = run_body(Sequential(), program)
    actor = FoldActor(ActorSpec(1))
    parts = actor.parts(Sequential(), call, [])
    assert after == actor.tell(Sequential(), Call(3), [], [])
    assert first == parts[0]
    # The first was taken, and is among those that are asked for; half-way it raises.
    assert digest(stream) == mix(9, *map(digest, (*parts[:2], Boom(mix(2, 2)))))
