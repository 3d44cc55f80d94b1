"""Shrinking: delta debugging, parts of programs, files of cases, and their replay."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import raytwin as api
from raytwin.chaos.faults.plan import Plan, Step
from raytwin.chaos.faults.targets import Node
from raytwin.chaos.fuzz.generate import case_file
from raytwin.chaos.fuzz.generate.case_file import CaseError
from raytwin.chaos.fuzz.generate.cases import Case, draw_case
from raytwin.chaos.fuzz.oracle.findings import Finding, Kind
from raytwin.chaos.fuzz.oracle.sequential import Sequential
from raytwin.chaos.fuzz.programs.interpreter import run_body
from raytwin.chaos.fuzz.programs.parts import part, size
from raytwin.chaos.fuzz.programs.program import MORE_THAN_A_NODE, ActorSpec, Body, Call, Op
from raytwin.chaos.fuzz.run import replay
from raytwin.chaos.fuzz.run.campaign import write_failure
from raytwin.chaos.fuzz.run.case_run import Report, run_case
from raytwin.chaos.fuzz.run.shrink import Shrinker, minimal, weight, with_repairs
from raytwin.runtime.api.backend import present
from tests.chaos.test_mutants import mixed_up


@given(st.sets(st.integers(0, 60)), st.integers(1, 60))
def test_what_is_left_is_what_matters(matters: set[int], count: int) -> None:
    matters = {item for item in matters if item < count}
    runs: list[int] = []

    def fails(items: list[int]) -> bool:
        runs.append(len(items))
        return matters.issubset(items)

    assert minimal(range(count), fails) == sorted(matters)
    assert len(runs) <= count * count + count


@given(st.integers(0, 10_000), st.data())
def test_any_part_of_a_program_is_a_program(seed: int, data: st.DataObject) -> None:
    body = draw_case(seed).program
    share = data.draw(st.floats(0, 1))
    rng = random.Random(data.draw(st.integers()))
    kept = [index for index in range(len(body.ops)) if rng.random() < share]
    smaller = part(body, kept)
    run_body(Sequential(), smaller)
    assert size(smaller) <= size(body)
    whole = part(body, range(len(body.ops)))
    assert run_body(Sequential(), whole) == run_body(Sequential(), body)


def ops(*made: Op) -> tuple[Op, ...]:
    return made


@pytest.mark.parametrize(
    ("program", "kept", "left"),
    [
        (ops(Op("actor", (), 9, spec=ActorSpec(9)), Op("tell", (9,), 1, Call(1))), [1], []),
        (
            ops(Op("actor", (), 9, spec=ActorSpec(9, cpus=1.0)), Op("drop", (9,))),
            [0],
            ["actor", "drop"],
        ),
        (ops(Op("group", (), 5), Op("remove", (5,))), [0], ["group", "remove"]),
        (
            ops(
                Op("call", (), 1, Call(1, cpus=MORE_THAN_A_NODE)),
                Op("cancel", (1,), call=Call(1)),
            ),
            [0],
            ["call", "cancel"],
        ),
        (
            ops(Op("actor", (), 9, spec=ActorSpec(9, detached=True)), Op("kill", (9,))),
            [0],
            ["actor", "kill"],
        ),
        (
            ops(
                Op("actor", (), 9, spec=ActorSpec(9)),
                Op("kill", (9,)),
                Op("tell", (9,), 2, Call(2)),
                Op("gone", (2,)),
            ),
            [0, 2, 3],
            ["actor", "tell"],
        ),
    ],
)
def test_a_part_keeps_what_the_rest_needs(
    program: tuple[Op, ...], kept: Collection[int], left: list[str]
) -> None:
    assert [op.do for op in part(Body(program), kept).ops] == left


def test_a_call_does_not_wait_for_one_that_is_left_out() -> None:
    body = Body(
        (
            Op("actor", (), 9, spec=ActorSpec(9, most=2)),
            Op("tell", (9,), 1, Call(1, awaits=2)),
            Op("tell", (9,), 2, Call(2)),
        )
    )
    kept = part(body, [0, 1]).ops[1].call
    assert kept is not None and not kept.awaits


def test_what_is_paused_is_resumed_in_a_smaller_plan() -> None:
    pause, resume = Step("pause", Node(1), 0.1), Step("resume", Node(1), 0.2)
    kill = Step("kill", Node(2), 0.1)
    assert with_repairs([kill], [resume]) == [kill]
    assert with_repairs([pause], [resume]) == [pause, resume]


def test_a_case_is_shrunk_in_the_same_way_of_failing() -> None:
    case = draw_case(42)
    culprit = next(op for op in case.program.ops if op.do == "call")
    fault = next(step for step in case.plan.steps if step.action == "kill")

    def run(candidate: Case) -> Report:
        there = fault in candidate.plan.steps and any(
            op.out == culprit.out for op in candidate.program.ops
        )
        kind = Kind.VALUE if there else Kind.HANG
        return Report(candidate, [Finding(kind, f"{len(candidate.program.ops)}")])

    seen: list[tuple[int, int]] = []
    shrinker = Shrinker(run(case), lambda report: seen.append(weight(report.case)), run=run)
    smallest = shrinker.shrink().case
    assert weight(smallest) == (1, 1)
    assert smallest.plan == Plan([fault])
    assert [op.out for op in smallest.program.ops] == [culprit.out]
    assert seen[-1] == (1, 1)


@pytest.mark.parametrize("seed", range(20))
def test_a_file_has_the_whole_case(seed: int, tmp_path: Path) -> None:
    case = replace(draw_case(seed), timers={"linger_s": 0.002, "timeline_ranges_max": 50})
    case_file.write(tmp_path / "case.json", case, ["value: 1 is 2"])
    loaded = case_file.load(tmp_path / "case.json")
    assert loaded == case
    # The runtime refuses 50.0.
    assert [type(each) for each in loaded.timers.values()] == [float, int]


@pytest.mark.real
def test_real_processes_have_a_cases_timers() -> None:
    case = replace(draw_case(3), timers={"linger_s": 0.002}, drivers=())
    assert not [what for what in replay.not_on_local(case) if "timers" in what]
    options = replay._options(case, Path("nowhere"))
    api.init(backend="local", nodes=1, cpus_per_node=1, timers=options["timers"])
    try:
        session: Any = present()
        assert session.cluster.config.linger_s == 0.002
    finally:
        api.shutdown()


@given(st.binary() | st.text().map(str.encode))
def test_junk_is_no_case(junk: bytes) -> None:
    with pytest.raises(CaseError):
        case_file.parse(junk)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"nodes"', '"nods"', "no key 'nods'"),
        ('"seed": 3', '"seed": "three"', "Expected `int`"),
        ('"do": ', '"doing": ', "missing required field `do`"),
        ('"action": ', '"act": ', "no key 'act'"),
    ],
)
def test_a_bad_case_is_refused_in_one_line(old: str, new: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    case_file.write(path, draw_case(3))
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(CaseError, match=says) as raised:
        case_file.load(path)
    assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_a_defect_is_shrunk_and_its_file_fails_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        mixed_up(patch)
        failing = (run_case(draw_case(seed)) for seed in range(30_000, 30_010))
        report = next(each for each in failing if each.failures)
        smallest = Shrinker(report).shrink()
        faults, operations = weight(smallest.case)
        assert faults <= 3 and operations <= 5, smallest.case
        path = write_failure(smallest, tmp_path)
        again, lines = replay.on_sim(case_file.load(path), trace=True)
        assert again == smallest
        assert any(" task " in line for line in lines)
    whole, _ = replay.on_sim(case_file.load(path), trace=False)
    assert whole.failures == [], "without the defect it holds"


CASES = sorted((Path(__file__).parent / "cases").glob("*.json"))
"""Cases of defects that the fuzz has found, shrunk: a seed means another case once the generator
changes."""


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_saved_case_holds(path: Path) -> None:
    assert run_case(case_file.load(path)).failures == []
