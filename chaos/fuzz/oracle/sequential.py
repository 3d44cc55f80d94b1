"""The sequential run of a random program: plain Python, one task after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from raytwin.chaos.fuzz.programs.interpreter import FoldActor, run_task
from raytwin.chaos.fuzz.programs.outcomes import CORRECT, Boom, Stream, digest, in_place
from raytwin.chaos.fuzz.programs.program import Call, Op, task_name


class Sequential:
    """An engine that runs every task in place, when it is called."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()
        """How often each task runs where nothing dies, by its name: flaky ones several times."""

    def sleep(self, seconds: float) -> None:
        """Do nothing: the sequential run has no time."""

    def call(self, op: Op, ins: list[Any], group: Any = None) -> Any:
        return _boom(ins) or self._run(op, ins[: op.handles], [], ins[op.handles :])

    def lend(self, op: Op, ins: list[Any]) -> Any:
        return self._run(op, [], list(ins), [])

    def map(self, op: Op, ins: list[Any], group: Any = None) -> tuple[Any, ...]:
        return tuple(self._run(op, [], [], [i]) for i in range(op.count))

    def returns(self, op: Op, ins: list[Any]) -> Sequence[Any]:
        assert op.call is not None
        parts = self.call(op, ins)
        return [parts] * op.call.parts if isinstance(parts, Boom) else parts

    def stream(self, op: Op, ins: list[Any]) -> Stream:
        assert op.call is not None
        parts = self.call(replace(op, call=replace(op.call, fails=False)), ins)
        return Stream(iter([parts]) if isinstance(parts, Boom) else in_place(op.call, parts))

    def _run(self, op: Op, actors: list[Any], lent: list[Any], inputs: list[Any]) -> Any:
        assert op.call is not None
        self.runs[task_name(op.call)] += 1
        try:
            return run_task(self, op.call, actors, lent, inputs)
        except Boom as boom:
            return boom

    def actor(self, op: Op, ins: list[Any], group: Any = None) -> FoldActor:
        assert op.spec is not None
        return FoldActor(op.spec)

    def tell(self, op: Op, ins: list[Any]) -> Any:
        assert op.call is not None
        actor, *others = ins
        try:
            return _boom(others) or actor.tell(
                self, op.call, others[: op.handles], others[op.handles :]
            )
        except Boom as boom:
            return boom

    def tells(self, op: Op, ins: list[Any]) -> tuple[Any, ...]:
        return tuple(self.tell(replace(op, call=call), ins) for call in op.calls)

    def yields(self, op: Op, ins: list[Any]) -> Stream:
        assert op.call is not None
        return Stream(in_place(op.call, ins[0].parts(self, op.call, [])))

    def group(self, op: Op, ins: list[Any]) -> tuple[()]:
        """A group has no values."""
        return ()

    def _right(self, op: Op, ins: list[Any]) -> list[Any]:
        """Return the outcome of a correct cluster."""
        return [CORRECT]

    gone = reserved = tally = _right

    def _nothing(self, op: Op, ins: list[Any]) -> None:
        """Do nothing: all tasks have ended, and only ``gone`` uses killed actors."""

    wait = waits = cancel = kill = ready = remove = set_key = read_key = query = _nothing
    look_up = _nothing

    def find(self, op: Op, ins: list[Any]) -> FoldActor:
        actor: FoldActor = ins[0]
        return actor

    def flake(self, call: Call) -> None:
        """A task that is retried has the value of its last run: only its tries count."""
        self.runs[task_name(call)] += call.flaky

    def leave(self) -> None:
        """Do nothing: only ``gone`` uses an actor that has ended."""

    def put(self, value: Any) -> Any:
        return list(value) if isinstance(value, list) else value

    def get(self, value: Any) -> Any:
        return value

    def follow(self, value: Any) -> Any:
        return value

    def outcomes(self, variable: Any) -> list[Any]:
        if isinstance(variable, Stream):
            return variable.rest(lambda value: self.outcomes(value)[0])
        if isinstance(variable, FoldActor):
            return []
        values = variable if isinstance(variable, tuple) else [variable]
        return [value if isinstance(value, Boom) else digest(value) for value in values]


def _boom(values: list[Any]) -> Boom | None:
    """Return the first error among a task's inputs, with which the task fails, or None."""
    return next((value for value in values if isinstance(value, Boom)), None)
