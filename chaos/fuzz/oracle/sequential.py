"""The oracle of random programs: plain Python, one task after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from raytwin.chaos.fuzz.programs.interpreter import Told, run_task
from raytwin.chaos.fuzz.programs.outcomes import TALLIED, Boom, Stream, digest, in_place
from raytwin.chaos.fuzz.programs.program import Op


class Sequential:
    """Runs every task where it is called."""

    def sleep(self, seconds: float) -> None:
        """Do nothing: the sequential run has no time."""

    def call(self, op: Op, ins: list[Any], group: Any = None) -> Any:
        return _boom(ins) or self._run(op, ins[: op.hands], [], ins[op.hands :])

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
        try:
            return run_task(self, op.call, actors, lent, inputs)
        except Boom as boom:
            return boom

    def actor(self, op: Op, ins: list[Any], group: Any = None) -> Told:
        assert op.teller is not None
        return Told(op.teller)

    def tell(self, op: Op, ins: list[Any]) -> Any:
        assert op.call is not None
        actor, *others = ins
        try:
            return _boom(others) or actor.tell(
                self, op.call, others[: op.hands], others[op.hands :]
            )
        except Boom as boom:
            return boom

    def yields(self, op: Op, ins: list[Any]) -> Stream:
        assert op.call is not None
        return Stream(in_place(op.call, ins[0].parts(self, op.call, [])))

    def group(self, op: Op, ins: list[Any]) -> tuple[()]:
        """A group has no values."""
        return ()

    def _right(self, op: Op, ins: list[Any]) -> list[Any]:
        """All is as it should be."""
        return [TALLIED]

    gone = reserved = tally = _right

    def _nothing(self, op: Op, ins: list[Any]) -> None:
        """All has ended, nothing was cancelled, and what was killed is used only by ``gone``."""

    wait = cancel = kill = remove = _nothing

    def leave(self) -> None:
        """End an actor or group: later uses of it are ``gone``."""

    def put(self, value: Any) -> Any:
        return list(value) if isinstance(value, list) else value

    def get(self, value: Any) -> Any:
        return value

    def follow(self, value: Any) -> Any:
        return value

    def outcomes(self, variable: Any) -> list[Any]:
        if isinstance(variable, Stream):
            return variable.rest(lambda value: self.outcomes(value)[0])
        if isinstance(variable, Told):
            return []
        values = variable if isinstance(variable, tuple) else [variable]
        return [value if isinstance(value, Boom) else digest(value) for value in values]


def _boom(values: list[Any]) -> Boom | None:
    """Return the error that a task ends with because of its inputs, if one of them is an error."""
    return next((value for value in values if isinstance(value, Boom)), None)
