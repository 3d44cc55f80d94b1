"""A process that ends takes its event loops along: no ready callback runs any more."""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path
from typing import Any

import pytest

import raytwin as ray
from raytwin.runtime.api.exceptions import ActorDiedError, WorkerCrashedError


def _note(notes: Path, what: str) -> None:
    with notes.open("a") as file:
        file.write(f"{what} ")


@ray.remote(num_cpus=0)
class Looping:
    def __init__(self, notes: Path) -> None:
        self.notes = notes
        self.all_here = asyncio.Event()

    async def meet(self, number: int) -> None:
        """Wait for the last of four: the others are ready then."""
        if number == 3:
            self.all_here.set()
            await asyncio.sleep(10)
        await self.all_here.wait()
        _note(self.notes, "called")

    async def end(self, number: int) -> None:
        await self.meet(number)
        os._exit(3)

    async def nap(self, number: int) -> None:
        await self.meet(number)
        ray.sleep(10)

    async def call_back(self, number: int) -> None:
        def end() -> None:
            _note(self.notes, "called")
            os._exit(3)

        async def never() -> None:
            _note(self.notes, "a task that had not begun")

        if number == 0:
            loop = asyncio.get_running_loop()
            loop.call_soon(end)
            loop.call_soon(_note, self.notes, "a callback")
            self.kept = loop.create_task(never())
        await asyncio.sleep(10)


@pytest.mark.parametrize("how", ["end", "call_back", "nap"])
def test_nothing_of_an_actors_loop_goes_on(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    recwarn: pytest.WarningsRecorder,
    how: str,
) -> None:
    ray.init(backend="sim", num_cpus=1)
    actor = Looping.remote(tmp_path / "notes")
    refs: list[Any] = [getattr(actor, how).remote(number) for number in range(4)]
    if how == "nap":
        ray.sleep(1)
        ray.kill(actor)
    for ref in refs:
        with pytest.raises(ActorDiedError, match="killed" if how == "nap" else "exit code 3"):
            ray.get(ref)
    assert (tmp_path / "notes").read_text().split() == ["called"]
    ray.shutdown()
    gc.collect()
    assert not capfd.readouterr().err + caplog.text
    assert not [str(warning.message) for warning in recwarn if "await" in str(warning.message)]


def test_nothing_of_a_tasks_own_loop_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    @ray.remote(max_retries=0)
    def runs() -> None:
        async def end() -> None:
            _note(tmp_path / "notes", "begun")
            os._exit(3)

        async def other() -> None:
            _note(tmp_path / "notes", "another")

        async def main() -> None:
            tasks = [asyncio.create_task(end()), asyncio.create_task(other())]
            await tasks[1]
            _note(tmp_path / "notes", "the main one")

        asyncio.run(main())

    ray.init(backend="sim", num_cpus=1)
    with pytest.raises(WorkerCrashedError, match="exit code 3"):
        ray.get(runs.remote())
    assert (tmp_path / "notes").read_text().split() == ["begun"]
    gc.collect()
    assert not caplog.text
    assert not [str(warning.message) for warning in recwarn if "await" in str(warning.message)]
