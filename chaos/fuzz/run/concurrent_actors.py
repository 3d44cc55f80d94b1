"""Actors whose calls run beside one another: what their threads and coroutines do.

What a call means is in `interpreter.Told`; a coroutine submits what its body says and awaits
all of it at once. Calls look after what holds for them beside that, and raise if it does not:

- no more of them are inside than ``max_concurrency`` says;
- the calls of the one caller of an actor that never starts again begin in their order;
- one that waits for another one's effect (`Meet`) sees it: that one runs meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from raytwin.chaos.fuzz.programs.interpreter import Told, run_body
from raytwin.chaos.fuzz.programs.outcomes import Boom, digest
from raytwin.chaos.fuzz.programs.program import HANDED, Beside, Body, Call, Meet
from raytwin.runtime.api.exceptions import RayTaskError

PAUSE_S = 0.002
"""After so long who waits for another call's effect looks again."""


class _Overlapping:
    engine: Any
    """What its calls submit with."""

    def __init__(self, teller: Beside) -> None:
        self.teller = teller
        self.told = Told(teller)
        self.inside = 0
        self.begun = 0

    @contextmanager
    def enter(self, call: Call) -> Iterator[None]:
        if self.inside >= self.teller.most:
            raise AssertionError(f"call {call.key} began beside {self.inside} others")
        if not self.teller.restarts and call.key <= self.begun:
            raise AssertionError(f"call {call.key} began after {self.begun}")
        self.inside, self.begun = self.inside + 1, call.key
        try:
            yield
        finally:
            self.inside -= 1

    def waits(self, call: Call) -> bool:
        return isinstance(call, Meet) and call.other not in self.told.ended


class Threads(_Overlapping):
    """One whose calls are threads."""

    def tell(self, call: Call, *inputs: Any) -> Any:
        return self.tell_with((), call, *inputs)

    def tell_with(self, actors: Sequence[Any], call: Call, *inputs: Any) -> Any:
        with self.enter(call):
            self.engine.sleep(call.seconds)
            while self.waits(call):
                self.engine.sleep(PAUSE_S)
            self.told.begin(self.engine, call)
            digests = [digest(value) for value in inputs]
            if call.body is not None:
                digests += [digest(each) for each in run_body(self.engine, call.body, actors)]
            return self.told.end(call, digests)


class Coroutines(_Overlapping):
    """One whose calls are coroutines."""

    async def tell(self, call: Call, *inputs: Any) -> Any:
        return await self.tell_with((), call, *inputs)

    async def tell_with(self, actors: Sequence[Any], call: Call, *inputs: Any) -> Any:
        with self.enter(call):
            await asyncio.sleep(call.seconds)
            while self.waits(call):
                await asyncio.sleep(PAUSE_S)
            self.told.begin(self.engine, call)
            digests = [digest(value) for value in inputs]
            if call.body is not None:
                digests += map(digest, await self.run_body(call.body, actors))
            return self.told.end(call, digests)

    async def run_body(self, body: Body, actors: Sequence[Any]) -> list[Any]:
        """Submit what the body says, and await all of it at once."""
        variables: dict[int, Any] = {}
        for op in body.ops:
            if op.do == "kill":
                self.engine.kill(actors[HANDED - op.ins[0]], restart=op.count == 1)
                continue
            assert op.call is not None
            if op.do == "tell":
                made = self.engine.tell(actors[HANDED - op.ins[0]], op.call, [], [])
            else:
                made = self.engine.call(op.call, [variables[i] for i in op.ins])
            variables[op.out] = made
        return await asyncio.gather(*(_outcome(variables[i]) for i in sorted(variables)))


async def _outcome(ref: Any) -> Any:
    try:
        return await ref
    except RayTaskError as error:
        if isinstance(error.cause, Boom):
            return error.cause
        raise
