"""Shrinks a case that fails to the few faults and operations that matter.

Delta debugging (Zeller and Hildebrandt, 2002): `minimal` leaves out half of the items, then
quarters and so on, and keeps what still fails. A case fails in the same way if a finding has the
kind and the type of error of one before; its text does not count. First the steps of the plan are
tried, then the operations of the program and those of its nested bodies, then the options of the
cluster; in rounds, because with fewer operations fewer faults may do. If leaving out does not help
further, it may after a change (`changed`). Each candidate is a run of the case runner, so
what is left is a case like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import TypeVar

from raytwin.chaos.faults.plan import Plan, Step
from raytwin.chaos.fuzz.generate.cases import STORE_BYTES, Case
from raytwin.chaos.fuzz.oracle.findings import Finding, Kind
from raytwin.chaos.fuzz.programs.parts import part, size
from raytwin.chaos.fuzz.programs.program import FIRST_HANDLE, Body, Op
from raytwin.chaos.fuzz.run.case_run import Report, run_case

ROUNDS_MAX = 8
PAIRS_OF = 8
"""The most operations among which all pairs are tried, too: of two that only end each other, or
that take turns, neither can go alone."""
Item = TypeVar("Item")
Way = tuple[Kind, str]
"""How a case fails: the kind, and the type of the error."""


def way_of(finding: Finding) -> Way:
    """Return in which way a finding is a failure; a task passes the error of its input on."""
    return finding.kind, finding.error.removeprefix("RayTaskError(").removesuffix(")")


def minimal(items: Sequence[Item], fails: Callable[[list[Item]], bool]) -> list[Item]:
    """Return items that fail, and no longer do if one of them is left out.

    `fails` has to hold for all items together; it is not asked for these.
    """
    left = list(items)
    parts = 2
    while left:
        length = -(-len(left) // parts)
        for at in range(0, len(left), length):
            fewer = left[:at] + left[at + length :]
            if fails(fewer):
                left, parts = fewer, max(2, parts - 1)
                break
        else:
            if length == 1:
                return left
            parts = min(len(left), 2 * parts)
    return left


class Shrinker:
    """Shrinks one case; `smallest` is the smallest that has failed so far."""

    def __init__(
        self,
        report: Report,
        on_smaller: Callable[[Report], object] = lambda report: None,
        on_run: Callable[[], None] = lambda: None,
        run: Callable[[Case], Report] = run_case,
    ) -> None:
        """`on_run` is called after each run, `on_smaller` after one that leaves a smaller case."""
        self.smallest = report
        self.ways = set(map(way_of, report.failures))
        self.runs = 0
        self._on_smaller = on_smaller
        self._on_run = on_run
        self._run = run

    def shrink(self) -> Report:
        """Return the report of the smallest case."""
        for _ in range(ROUNDS_MAX):
            before = self.smallest.case
            self._fewer_steps()
            self._fewer_drivers()
            self._fewer_operations()
            self._plainer_cluster()
            self._change()
            if self.smallest.case == before:
                break
        return self.smallest

    def fails(self, case: Case) -> bool:
        """Run a candidate; keep it and return True if it fails in the same way."""
        if case == self.smallest.case:
            return False
        self.runs += 1
        report = self._run(case)
        self._on_run()
        same = any(way_of(each) in self.ways for each in report.failures)
        if same:
            report.failures.sort(key=lambda each: way_of(each) not in self.ways)
            self.smallest = report
            self._on_smaller(report)
        return same

    def _fewer_steps(self) -> None:
        case = self.smallest.case
        steps = [step for step in case.plan.steps if not is_repair(step)]
        repairs = [step for step in case.plan.steps if is_repair(step)]
        minimal(
            steps, lambda fewer: self.fails(replace(case, plan=Plan(with_repairs(fewer, repairs))))
        )

    def _fewer_drivers(self) -> None:
        case = self.smallest.case
        minimal(case.drivers, lambda fewer: self.fails(replace(case, drivers=tuple(fewer))))

    def _fewer_operations(self) -> None:
        case = self.smallest.case
        self._shrink_body(case.program, lambda body: self.fails(replace(case, program=body)))
        for number in range(len(self.smallest.case.drivers)):
            now = self.smallest.case

            def fails(body: Body, now: Case = now, number: int = number) -> bool:
                drivers = (*now.drivers[:number], body, *now.drivers[number + 1 :])
                return self.fails(replace(now, drivers=drivers))

            self._shrink_body(now.drivers[number], fails)

    def _shrink_body(self, body: Body, fails: Callable[[Body], bool]) -> Body:
        """Return the smallest part of a body with which the case fails."""
        smallest = body

        def fewer(indices: list[int]) -> bool:
            nonlocal smallest
            candidate = part(body, indices)
            if size(candidate) < size(smallest) and fails(candidate):
                smallest = candidate
                return True
            return False

        left = minimal(range(len(body.ops)), fewer)
        if len(left) <= PAIRS_OF:
            without_pairs(left, fewer)
        for at in range(len(smallest.ops) - 1, -1, -1):
            call = smallest.ops[at].call
            if call is not None and call.body is not None:
                smallest = self._shrink_nested(smallest, at, call.body, fails)
        return smallest

    def _shrink_nested(
        self, body: Body, at: int, nested: Body, fails: Callable[[Body], bool]
    ) -> Body:
        """Shrink the body of the task or call that an operation submits."""
        outside = Body((*body.ops[:at], *hoisted(body.ops[at]), *body.ops[at + 1 :]))
        for candidate in (_with_nested(body, at, None), part(outside, range(len(outside.ops)))):
            if size(candidate) < size(body) and fails(candidate):
                return candidate
        smaller = self._shrink_body(nested, lambda fewer: fails(_with_nested(body, at, fewer)))
        return _with_nested(body, at, smaller)

    def _plainer_cluster(self) -> None:
        for plainer in (
            lambda case: replace(case, gcs={}),
            lambda case: replace(case, timers={}),
            lambda case: replace(case, policy=Case.policy),
            lambda case: replace(case, store_bytes=STORE_BYTES),
            lambda case: replace(case, cpus=1),
        ):
            self.fails(plainer(self.smallest.case))
        for calls in range(1, self.smallest.case.direct_after):
            if self.fails(replace(self.smallest.case, direct_after=calls)):
                break

    def _change(self) -> None:
        """Change the case such that fewer faults and operations do, if a change is found."""
        before = self.smallest
        for candidate in changed(before.case):
            if self.fails(candidate):
                self._fewer_operations()
                self._fewer_steps()
                if weight(self.smallest.case) < weight(before.case):
                    return
                self.smallest = before
                self._on_smaller(before)


def without_pairs(items: Sequence[Item], fails: Callable[[list[Item]], bool]) -> list[Item]:
    """Return items that fail, and no longer do if any two of them are left out."""
    left = list(items)
    for first, second in combinations(items, 2):
        if first in left and second in left:
            fewer = [item for item in left if item not in (first, second)]
            if fails(fewer):
                left = fewer
    return left


SECONDS_TRIED = (0.5, 0.1, 0.0, None)
AT_S_TRIED = (0.3, 0.05)
FAULTS_MOVED = 4
"""The most faults that are tried alone at another time."""
MANY = 5


def changed(case: Case) -> Iterator[Case]:
    """Yield variants of a case that may fail with fewer faults and operations.

    Many operations often matter only since a task runs just where and when a fault comes: so all
    tasks last, prefer a node that faults concern, and one fault comes at another time.
    """
    victims = sorted({node for step in case.plan.steps for node in step.target.nodes})
    plans = [*_moved(case.plan.steps), case.plan]
    for node, seconds, plan in product((*victims, None), SECONDS_TRIED, plans):
        program = _each_call(case.program, seconds, None if node is None else str(node))
        yield replace(case, program=program, plan=plan)
    yield _many(case)
    yield from (replace(case, nodes=nodes) for nodes in (2, 1) if nodes < case.nodes)


def _moved(steps: Sequence[Step]) -> Iterator[Plan]:
    """Yield plans of one fault each, at another time, and of its repairs after it."""
    faults = [step for step in steps if not is_repair(step)]
    for fault, at_s in product(faults[:FAULTS_MOVED], AT_S_TRIED):
        repairs = [replace(step, at_s=2 * at_s) for step in steps if is_repair(step)]
        yield Plan(with_repairs([replace(fault, at_s=at_s)], repairs))


def _each_call(body: Body, seconds: float | None, strategy: str | None) -> Body:
    """Return a body whose tasks and calls, nested ones included, last so long and have this
    strategy."""
    ops = []
    for op in body.ops:
        call = op.call
        if call is not None:
            nested = call.body and _each_call(call.body, seconds, strategy)
            call = replace(
                call,
                seconds=call.seconds if seconds is None else seconds,
                strategy=call.strategy if strategy is None else strategy,
                body=nested,
            )
        ops.append(replace(op, call=call))
    return Body(tuple(ops))


def _many(case: Case) -> Case:
    """Return a case with an array in place of each task that can be one: several run at a time."""
    inputs = {i for op in case.program.ops if op.do not in ("get", "drop") for i in op.ins}

    def change(op: Op) -> Op:
        plain = op.do == "call" and not op.ins and op.call is not None and op.call.body is None
        return replace(op, do="map", count=MANY) if plain and op.out not in inputs else op

    return replace(case, program=Body(tuple(map(change, case.program.ops))))


def _with_nested(body: Body, at: int, nested: Body | None) -> Body:
    """Return a body in which the task or call of one operation has another body."""
    call = body.ops[at].call
    assert call is not None
    op = replace(body.ops[at], call=replace(call, body=nested))
    return Body((*body.ops[:at], op, *body.ops[at + 1 :]))


def hoisted(op: Op) -> list[Op]:
    """Return the operations of a task's or call's body, as its caller would do them."""
    assert op.call is not None and op.call.body is not None
    first = 1 if op.do == "tell" else 0
    handles = op.ins[first : first + op.handles]
    given = {FIRST_HANDLE - number: variable for number, variable in enumerate(handles)}
    return [
        replace(each, ins=tuple(given.get(i, i) for i in each.ins)) for each in op.call.body.ops
    ]


def weight(case: Case) -> tuple[int, int]:
    """Return the numbers of faults and of operations in a case."""
    faults = sum(not is_repair(step) for step in case.plan.steps)
    return faults, sum(map(size, (case.program, *case.drivers)))


def described(case: Case) -> str:
    """Return what a case has, in a few words."""
    faults, operations = weight(case)
    return f"{faults} faults and {operations} operations"


def is_repair(step: Step) -> bool:
    """Whether a step only ends an earlier one: a cluster that stays paused may rightly hang."""
    ended = step.parameters.get("latency_ms") == 0 or step.parameters.get("probability") == 0
    return ended or step.action in ("resume", "heal")


def with_repairs(faults: Sequence[Step], repairs: Sequence[Step]) -> list[Step]:
    """Return faults with those of the repairs that some of them needs."""
    needed = [step for step in repairs if any(_repairs(step, fault) for fault in faults)]
    return [*faults, *needed]


def _repairs(repair: Step, fault: Step) -> bool:
    if repair.action == "resume":
        return fault.action == "pause" and fault.target.nodes == repair.target.nodes
    if repair.action == "heal":
        parts = fault.target.expand(fault.action, fault.parameters, ())
        return any(target == repair.target for _, _, target, _ in parts)
    same = fault.action == repair.action and fault.target == repair.target
    return same and fault.parameters.get("kind") == repair.parameters.get("kind")
