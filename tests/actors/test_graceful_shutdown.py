"""An actor's end: its last calls, its hook, its exit handlers, its `__del__`."""

from __future__ import annotations

import asyncio
import atexit
import gc
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

import raytwin as ray
from raytwin.runtime.api.exceptions import ActorDiedError, RayActorError
from raytwin.runtime.control.core.config import Config
from tests.actors.conftest import Start
from tests.processes.helpers import eventually


class Noting:
    """Writes down what happens to it, where others can read it when it is gone."""

    def __init__(self, notes: Path, hangs: str = "") -> None:
        self.notes = notes
        self.hangs = hangs
        self.directory = tempfile.TemporaryDirectory(dir=notes.parent)
        atexit.register(self.note, "handler 1")
        atexit.register(_note, notes, "handler 2")
        atexit.register(_note, notes, "never")
        atexit.unregister(_note)
        atexit.register(_note, notes, "handler 3")

    def note(self, what: str) -> None:
        _note(self.notes, what)

    def leave(self) -> None:
        ray.exit_actor()

    def swallow(self) -> str:
        try:
            ray.exit_actor()
        except BaseException:
            return "went on"
        return "not reached"

    def tie(self) -> None:
        self.itself = self

    def __ray_shutdown__(self) -> None:
        self.note("shutdown")
        if self.hangs:
            ray.sleep(10_000)

    def __del__(self) -> None:
        self.note("deleted")


def _note(notes: Path, what: str) -> None:
    with notes.open("a") as file:
        file.write(f"{what}\n")


Plain = ray.remote(num_cpus=1)(Noting)
ALL = ["shutdown", "handler 3", "handler 1", "deleted"]


@ray.remote(num_cpus=1)
class Beside:
    """Its calls run beside one another, as coroutines."""

    def __init__(self, notes: Path) -> None:
        self.notes = notes

    async def nap(self, what: str = "napped", seconds: float = 0.2) -> str:
        await asyncio.sleep(seconds)
        _note(self.notes, what)
        return what

    async def leave(self) -> None:
        ray.exit_actor()

    async def leave_later(self) -> None:
        async def bye() -> None:
            await asyncio.sleep(0.01)
            ray.exit_actor()

        self.task = asyncio.create_task(bye())

    async def in_a_thread(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, ray.exit_actor)

    def __ray_shutdown__(self) -> None:
        _note(self.notes, "shutdown")


@ray.remote(num_cpus=1, max_concurrency=3)
class Threads:
    def __init__(self, notes: Path) -> None:
        self.notes = notes

    def nap(self, what: str = "napped", seconds: float = 0.2) -> str:
        ray.sleep(seconds)
        _note(self.notes, what)
        return what

    def leave(self) -> None:
        ray.exit_actor()

    def leave_later(self) -> None:
        threading.Thread(target=ray.exit_actor).start()

    def __ray_shutdown__(self) -> None:
        _note(self.notes, "shutdown")


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes"


def until(notes: Path, expected: list[str]) -> None:
    """Wait until these are the notes, and the actor's CPU is free."""

    def over() -> bool:
        ray.sleep(0.05)
        gc.collect()
        written = notes.read_text().splitlines() if notes.exists() else []
        return written == expected and ray.available_resources() == ray.cluster_resources()

    eventually(over)


@pytest.mark.parametrize("how", ["scope", "terminate", "exit", "swallow"])
def test_an_actor_ends_as_a_program_does(start: Start, notes: Path, how: str) -> None:
    """None of it happened: its process was killed, or left without a word."""
    start()
    actor = Plain.remote(notes)
    ray.get(actor.note.remote("called"))
    if how == "terminate":
        actor.__ray_terminate__.remote()
    elif how == "swallow":
        assert ray.get(actor.swallow.remote()) == "went on"
    elif how == "exit":
        leaving, late = actor.leave.remote(), actor.note.remote("late")
        for ref in (leaving, late):
            with pytest.raises(ActorDiedError):
                ray.get(ref)
        assert notes.read_text().splitlines() == ["called", *ALL], "it is gone by then"
    del actor
    until(notes, ["called", *ALL])
    assert list(notes.parent.iterdir()) == [notes], "its directory is gone"


def test_an_actor_that_is_killed_does_nothing_more(start: Start, notes: Path) -> None:
    session = start()
    actor = Plain.remote(notes)
    ray.get(actor.note.remote("called"))
    ray.kill(actor)
    if session.name == "sim":
        # The process that all simulated ones share lives, and deletes what is left.
        until(notes, ["called", "deleted"])
    else:
        until(notes, ["called"])


def test_objects_in_a_reference_cycle_are_deleted(local: Start, notes: Path) -> None:
    local()
    actor = Plain.remote(notes)
    ray.get(actor.tie.remote())
    del actor
    until(notes, ALL)


def test_calls_without_a_waiter_run_before_the_end(start: Start, notes: Path) -> None:
    start()
    actor = Plain.remote(notes)
    for n in range(3):
        actor.note.remote(str(n))
    del actor
    until(notes, ["0", "1", "2", *ALL])


def test_an_error_of_its_hook_is_logged(
    start: Start, notes: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Noting):
        def __ray_shutdown__(self) -> None:
            self.note("shutdown")
            raise KeyError("its hook")

    start()
    actor = ray.remote(num_cpus=1)(Failing).remote(notes)
    ray.get(actor.note.remote("called"))
    del actor

    def over() -> bool:
        ray.sleep(0.05)
        return notes.read_text().startswith("called\nshutdown\nhandler 3\nhandler 1\n")

    eventually(over)
    assert "KeyError: 'its hook'" in capfd.readouterr().err + caplog.text


@pytest.mark.parametrize("kind", [Beside, Threads])
@pytest.mark.parametrize("how", ["scope", "terminate", "exit"])
def test_calls_that_run_come_to_their_end(start: Start, notes: Path, kind: Any, how: str) -> None:
    """They were thrown away, and whoever waited for them got an ActorDiedError."""
    start()
    actor = kind.remote(notes)
    ray.get(actor.nap.remote("first", 0.0))
    running = [actor.nap.remote(), actor.nap.remote()]
    late = None
    if how != "scope":
        ray.sleep(0.05)
        leaving = actor.leave.remote() if how == "exit" else actor.__ray_terminate__.remote()
        if kind is Threads:
            ray.sleep(0.05)  # else both may have begun by then
        late = actor.nap.remote("late", 0.0)
        assert ray.get(running) == ["napped", "napped"]
        for ref in (leaving, late):
            with pytest.raises(RayActorError):
                ray.get(ref)
    del actor, running, late
    until(notes, ["first", "napped", "napped", "shutdown"])


@pytest.mark.parametrize("how", ["leave_later", "in_a_thread"])
def test_exit_actor_works_from_threads_and_coroutines(
    start: Start, notes: Path, capfd: pytest.CaptureFixture[str], how: str
) -> None:
    """A task of asyncio's own, or a thread, did not, and left a traceback."""
    if start().name == "sim" and how == "in_a_thread":
        pytest.skip("simulated programs have one thread")
    actor = Beside.remote(notes)
    running = actor.nap.remote()
    getattr(actor, how).remote()
    assert ray.get(running) == "napped"
    until(notes, ["napped", "shutdown"])
    with pytest.raises(ActorDiedError, match="exit_actor"):
        ray.get(actor.nap.remote())
    ray.shutdown()
    assert "ActorExit" not in capfd.readouterr().err


def test_a_thread_of_an_actors_own_ends_it(
    local: Start, notes: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    local()
    actor = Threads.remote(notes)
    running = actor.nap.remote()
    actor.leave_later.remote()
    assert ray.get(running) == "napped"
    until(notes, ["napped", "shutdown"])
    ray.shutdown()
    assert "Traceback" not in capfd.readouterr().err


def test_an_actor_that_hangs_at_its_end_is_killed(start: Start, notes: Path) -> None:
    session = start(actor_end_s=0.5)
    assert session.client.config.actor_end_s == 0.5
    assert Config().actor_end_s == 30.0
    actor = Plain.remote(notes, "hangs")
    other = Threads.remote(notes)
    ray.get([actor.note.remote("called"), other.nap.remote("beside", 0.0)])
    del actor
    assert ray.get(other.nap.remote("meanwhile", 0.0)) == "meanwhile", "nobody waits for it"
    del other

    def over() -> bool:
        ray.sleep(0.05)
        return bool(ray.available_resources() == ray.cluster_resources())

    eventually(over)
    assert sorted(notes.read_text().splitlines()) == [
        "beside", "called", "meanwhile", "shutdown", "shutdown",
    ]  # fmt: skip


@ray.remote(num_cpus=1, max_restarts=-1, max_concurrency=3)
class Dying:
    """Dies in one call while another ends it."""

    def value(self) -> int:
        return 1

    def die(self) -> None:
        ray.sleep(0.5)
        os._exit(1)

    def leave(self) -> None:
        ray.exit_actor()


def test_an_exiting_actor_that_dies_does_not_restart(cluster: Any) -> None:
    actor = Dying.remote()
    dies = actor.die.remote()
    ray.sleep(0.2)
    leaves = actor.leave.remote()
    for ref in (dies, leaves, actor.value.remote()):
        with pytest.raises(ActorDiedError, match="exit_actor"):
            ray.get(ref, timeout=20)


class Leaving:
    def __reduce__(self) -> Any:
        ray.exit_actor()


@ray.remote(num_cpus=1, max_restarts=1, checkpoint_interval=1, max_concurrency=1)
class LeavingAnywhere:
    """Leaves from its own code outside of its calls."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.leave_in("constructor")

    def leave_in(self, where: str) -> None:
        if self.where == where:
            ray.exit_actor()

    def call(self) -> Any:
        return Leaving() if self.where == "value" else 1

    def __ray_save__(self) -> None:
        self.leave_in("save")

    def __ray_restore__(self, state: None) -> None:
        """Nothing was saved."""


@ray.remote(num_cpus=1, max_restarts=1, checkpoint_interval=1, max_concurrency=1)
class LeavingTheLoop(LeavingAnywhere.cls):  # type: ignore[name-defined,misc]
    async def call(self) -> Any:
        return Leaving() if self.where == "value" else 1


@pytest.mark.parametrize("where", ["constructor", "save", "value"])
@pytest.mark.parametrize("kind", [LeavingAnywhere, LeavingTheLoop])
def test_exit_actor_works_wherever_it_is_called(cluster: Any, kind: Any, where: str) -> None:
    actor = kind.remote(where)
    with pytest.raises(ActorDiedError, match="exit_actor"):
        for _ in range(2):
            ray.get(actor.call.remote(), timeout=20)
