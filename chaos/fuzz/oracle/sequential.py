"""The oracle of random programs: plain Python, one task after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from raytwin.chaos.fuzz.programs.interpreter import Told, run_task
from raytwin.chaos.fuzz.programs.outcomes import TALLIED, Boom, Stream, digest, in_place
from raytwin.chaos.fuzz.programs.program import Call, Group, Placed, Teller


class Sequential:
    """Runs every task where it is called: the oracle."""

    def sleep(self, seconds: float) -> None:
        """Time means nothing here."""

    def call(self, call: Call, inputs: list[Any]) -> Any:
        for value in inputs:
            if isinstance(value, Boom):
                return value
        return self._run(call, inputs, [])

    def lend(self, call: Call, inputs: list[Any]) -> Any:
        return self._run(call, [], inputs)

    def hand(self, call: Call, inputs: list[Any], actors: list[Any]) -> Any:
        boom = next((value for value in inputs if isinstance(value, Boom)), None)
        return boom or self._run(call, inputs, [], actors)

    def map(self, call: Call, count: int) -> tuple[Any, ...]:
        return tuple(self._run(call, [i], []) for i in range(count))

    def stream(self, call: Call, inputs: list[Any]) -> Stream:
        parts = self.call(replace(call, fails=False), inputs)
        if isinstance(parts, Boom):
            return Stream(iter([parts]))
        return Stream(in_place(call, parts))

    def returns(self, call: Call, inputs: list[Any]) -> Sequence[Any]:
        parts = self.call(call, inputs)
        return [parts] * call.parts if isinstance(parts, Boom) else parts

    def _run(
        self, call: Call, inputs: list[Any], lent: list[Any], actors: Sequence[Any] = ()
    ) -> Any:
        try:
            return run_task(self, call, inputs, lent, actors)
        except Boom as boom:
            return boom

    def actor(self, teller: Teller) -> Any:
        return Told(teller)

    def tell(self, actor: Any, call: Call, inputs: list[Any], actors: list[Any]) -> Any:
        for value in inputs:
            if isinstance(value, Boom):
                return value
        try:
            return actor.tell(self, call, inputs, actors)
        except Boom as boom:
            return boom

    def yields(self, actor: Any, call: Call, inputs: list[Any]) -> Stream:
        boom = next((value for value in inputs if isinstance(value, Boom)), None)
        if boom is not None:
            return Stream(iter([boom]))
        return Stream(in_place(call, actor.parts(self, call, inputs)))

    def cancel(self, value: Any, call: Call, force: bool) -> None:
        """It has ended."""

    def group(self, op: Group) -> tuple[()]:
        """It has no values."""
        return ()

    def placed(self, op: Placed, group: Any, inputs: list[Any]) -> Any:
        if op.teller is not None:
            return self.actor(op.teller)
        assert op.call is not None
        return self.map(op.call, op.count) if op.do == "map" else self.call(op.call, inputs)

    def reserved(self, group: Any) -> list[Any]:
        """It is where it should be."""
        return [TALLIED]

    def remove(self, group: Any) -> None:
        """What comes after it is ``gone``."""

    def kill(self, actor: Any, restart: bool) -> None:
        """Of what is killed for good, only what is ``gone`` comes after it."""

    def leave(self) -> None:
        """Likewise."""

    def gone(self, values: list[Any]) -> list[Any]:
        """None of them is anything else."""
        return [TALLIED]

    def tally(self, actor: Any, call: Call, told: Mapping[int, Any]) -> list[Any]:
        """Nothing was cancelled."""
        return [TALLIED]

    def put(self, value: Any) -> Any:
        return value

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

    def wait(self, variables: list[Any], count: int) -> None:
        """All is there."""
