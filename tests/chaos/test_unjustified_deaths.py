"""A node that is declared dead is a finding, unless a step of the plan may have silenced it."""

from __future__ import annotations

from typing import Any

import pytest

from raytwin.chaos.faults.injector import Injection
from raytwin.chaos.faults.plan import Plan, Step
from raytwin.chaos.faults.targets import Link, Node, Replica, Target, Worker
from raytwin.chaos.fuzz.generate.cases import Case
from raytwin.chaos.fuzz.oracle.findings import Kind
from raytwin.chaos.fuzz.oracle.unjustified_deaths import unjustified_deaths
from raytwin.chaos.fuzz.programs.program import Body, Call, Op
from raytwin.chaos.fuzz.run.case_run import run_case

LIMIT_S = 0.5


def found(died_s: float, *steps: tuple[float, str, Target]) -> bool:
    """Whether the death of node 1 after steps, each of a time, an action and a target, is found."""
    injections = [
        Injection(at_s, at_s, Step(action, target, at_s)) for at_s, action, target in steps
    ]
    findings = unjustified_deaths({(1, 1): died_s}, injections, LIMIT_S)
    assert all(each.kind is Kind.DEATHS for each in findings)
    return bool(findings)


@pytest.mark.parametrize(
    ("action", "target"),
    [
        ("kill", Node(1)), ("pause", Node(1)), ("pause", Node(2)), ("disk_full", Node(0)),
        ("cut", Link("node:1", "head")), ("reset", Link("node:2", "node:1")),
        ("cut", Link("node:2", "replica:0.0")), ("kill", Replica(0, 0)),
    ],
)  # fmt: skip
def test_a_step_that_may_silence_a_node_explains_its_death(action: str, target: Target) -> None:
    assert not found(0.7, (0.1, action, target))
    assert found(0.7, (0.8, action, target)), "a later step does not"


@pytest.mark.parametrize(
    ("action", "target"),
    [
        ("kill", Worker(1, 0)), ("pause", Worker(1, 0)), ("kill", Node(2)), ("resume", Node(1)),
        ("cut", Link("node:2", "head")), ("reset", Link("node:2", "node:0")),
    ],
)  # fmt: skip
def test_a_step_that_cannot_silence_a_node_explains_nothing(action: str, target: Target) -> None:
    assert found(0.7, (0.1, action, target))


def test_a_step_that_failed_explains_nothing() -> None:
    failed = Injection(0.1, 0.1, Step("pause", Node(1), 0.1), "there is no node 1")
    assert unjustified_deaths({(1, 1): 0.7}, [failed], LIMIT_S)


def test_a_step_that_has_ended_explains_deaths_for_a_while() -> None:
    steps = ((0.1, "pause", Node(2)), (0.2, "resume", Node(2)))
    assert not found(0.2 + LIMIT_S, *steps)
    assert found(10.0, *steps)
    assert not found(10.0, *steps[:1]), "it goes on"
    assert not found(10.0, steps[0], (0.2, "heal", Node(2))), "nor does this end it"


@pytest.mark.parametrize(
    ("action", "target"),
    [("kill", Replica(0, 0)), ("kill", Node(1)), ("reset", Link("node:1", "head"))],
)
def test_a_step_that_takes_no_time_explains_deaths_for_a_while(action: str, target: Target) -> None:
    assert not found(0.1 + 2 * LIMIT_S, (0.1, action, target))
    assert found(10.0, (0.1, action, target))


def test_a_living_node_that_is_declared_dead_is_found() -> None:
    """The failure detector reports a living node as silent to the GCS."""

    def accuse(session: Any) -> None:
        cluster = session.cluster

        def later() -> Any:
            yield cluster.env.timeout(0.2)
            cluster.gcs.nodes.declare_dead(1, "an accusation")

        cluster.env.process(later())

    tasks = tuple(Op("call", (), out, Call(out, 0.1, retries=-1)) for out in range(8))
    gets = (Op("get", tuple(range(8))),)
    case = Case(7, 2, 1, Body((*tasks, *gets)), Plan([Step("kill", Worker(0, 0), 0.1)]), False)
    assert run_case(case).failures == []
    assert Kind.DEATHS in {each.kind for each in run_case(case, prepare=accuse).failures}
