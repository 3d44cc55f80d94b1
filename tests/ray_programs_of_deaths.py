"""Programs that do the same on Ray and on raytwin: what becomes of the others when a process dies.

Each is a function of the module that stands for `ray`; `test_behaves_like_ray` runs them.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.further_nodes import FurtherNode

POLLS = 600


def outcome(ray: Any, ref: Any) -> str:
    """Return a value, or the class of what `get` raises."""
    try:
        return repr(ray.get(ref, timeout=60))
    except ray.exceptions.RayError as error:
        return type(error).__name__


def restarting(ray: Any) -> Any:
    """While an actor restarts, calls with retries wait, and the others fail at once."""
    sleep = getattr(ray, "sleep", time.sleep)
    folder = Path(tempfile.mkdtemp())

    @ray.remote(max_restarts=1, num_cpus=0)
    class Slow:
        def __init__(self, name: str) -> None:
            self.name = name
            (folder / name).touch()
            while (folder / f"{name} waits").exists():
                sleep(0.05)

        def begin_to_wait(self) -> None:
            (folder / f"{self.name} waits").touch()

        def die(self) -> None:
            os._exit(1)

        def one(self) -> int:
            return 1

    found: list[Any] = []
    actors = [
        Slow.options(max_task_retries=retries).remote(f"actor {retries}") for retries in (0, 2)
    ]
    for retries, actor in zip((0, 2), actors, strict=True):
        ray.get(actor.begin_to_wait.remote())
        dies = actor.die.options(max_task_retries=0).remote()
        behind = actor.one.remote()
        found.append(outcome(ray, dies))
        new = actor.one.remote()
        ready, _ = ray.wait([behind, new], num_returns=2, timeout=2 if retries else 20)
        found.append(len(ready))
        (folder / f"actor {retries} waits").unlink()
        found += [outcome(ray, behind), outcome(ray, new)]

    def until(expected: str, actor: Any) -> str:
        last = ""
        for _ in range(POLLS):
            last = outcome(ray, actor.one.remote())
            if last == expected:
                break
            sleep(0.05)
        return last

    found.append(until("1", actors[0]))
    killed = Slow.remote("killed")
    ray.get(killed.begin_to_wait.remote())
    ray.kill(killed, no_restart=False)
    found.append(until("ActorUnavailableError", killed))
    (folder / "killed waits").unlink()
    found.append(until("1", killed))
    return found


def constructors(ray: Any) -> Any:
    """An actor without a handle ends, and its name is free, whatever its constructor does."""
    sleep = getattr(ray, "sleep", time.sleep)
    folder = Path(tempfile.mkdtemp())

    @ray.remote(max_restarts=-1, num_cpus=0)
    class Named:
        def __init__(self, crashes: bool) -> None:
            (folder / f"{crashes} began").touch()
            if crashes:
                os._exit(0)
            sleep(2)
            (folder / f"{crashes} ended").touch()

        def one(self) -> int:
            return 1

    def is_free(name: str) -> bool:
        try:
            ray.get_actor(name)
        except ValueError:
            return True
        return False

    found: list[Any] = []
    for crashes in (True, False):
        actor = Named.options(name="named").remote(crashes)
        for _ in range(POLLS):
            if (folder / f"{crashes} began").exists():
                break
            sleep(0.05)
        del actor
        for _ in range(20):
            if is_free("named"):
                break
            sleep(0.05)
        found.append([is_free("named"), (folder / f"{crashes} ended").exists()])
    for _ in range(POLLS):
        if (folder / "False ended").exists():
            break
        sleep(0.05)
    called = Named.remote(False).one.remote()  # the call keeps its actor
    return [*found, (folder / "False ended").exists(), ray.get(called)]


def inputs_of_constructors(ray: Any) -> Any:
    """An actor that restarts gets the small results that it was given first, released or not.

    Ray loses other inputs once they are released: what was put, and references inside of values.
    """
    sleep = getattr(ray, "sleep", time.sleep)

    @ray.remote(num_cpus=0)
    def make(name: str) -> list[str]:
        return ["made", name]

    @ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
    class Reader:
        def __init__(self, *inputs: Any) -> None:
            self.inputs = inputs

        def values(self) -> Any:
            return self.inputs

        def die(self) -> None:
            os._exit(1)

    @ray.remote(num_cpus=0)
    class Caller:
        def __init__(self, readers: list[Any]) -> None:
            self.reader = readers[0]

        def values(self) -> Any:
            return ray.get(self.reader.values.remote())

    def crash(reader: Any, values: Any) -> list[str]:
        """Let an actor die; return what it has read before and after that."""
        before = outcome(ray, values.remote())
        sleep(0.5)  # the owner releases the inputs that the driver has dropped
        died = outcome(ray, reader.die.options(max_task_retries=0).remote())
        return [before, died, outcome(ray, values.remote())]

    def detached(name: str) -> Any:
        return Reader.options(name=name, lifetime="detached").remote(make.remote(name))

    readers = [Reader.remote(make.remote("one"), make.remote("two")), detached("held")]
    found: list[Any] = [crash(reader, reader.values) for reader in readers]
    ray.kill(readers[-1])
    detached("found")
    reader = ray.get_actor("found")
    found.append(crash(reader, reader.values))
    ray.kill(reader)
    lent = Reader.remote(make.remote("lent"))
    caller = Caller.remote([lent])
    found.append(crash(lent, caller.values))
    del lent
    return [*found, outcome(ray, caller.values.remote())]


class Children:
    """Tasks that note in files that they run, and whether they have come to their end."""

    def __init__(self, ray: Any) -> None:
        self.ray = ray
        self.sleep = sleep = getattr(ray, "sleep", time.sleep)
        self.folder = folder = Path(tempfile.mkdtemp())

        @ray.remote(num_cpus=1, max_retries=0)
        def child(name: str, seconds: float = 60.0) -> None:
            for number in range(int(seconds / 0.05)):
                (folder / name).write_text(str(number))
                sleep(0.05)
            (folder / f"{name} ended").touch()

        self.child = child

    def comes(self, is_there: Callable[[], bool]) -> bool:
        """Wait for something; return whether it has come."""
        for _ in range(POLLS):
            if is_there():
                return True
            self.sleep(0.05)
        return False

    def runs(self, name: str) -> bool:
        """Wait until a child runs."""
        return self.comes((self.folder / name).exists)

    def fate(self, name: str) -> str:
        """Wait until a child does nothing any more; return what became of it."""
        assert self.runs(name)
        for _ in range(30):
            before = (self.folder / name).read_text()
            self.sleep(1.0)
            if (self.folder / f"{name} ended").exists():
                return "came to its end"
            if (self.folder / name).read_text() == before:
                return "was ended"
        return "runs on"

    def are_free(self, name: str, amount: float) -> bool:
        """Wait until so much of a resource is free."""
        return self.comes(lambda: bool(self.ray.available_resources().get(name) == amount))

    def after(self, name: str, parent: Any) -> list[Any]:
        """Return what became of a parent, of its child, and of the CPUs."""
        assert self.runs(name)
        return [name, outcome(self.ray, parent), self.fate(name), self.are_free("CPU", 2)]


def children_of_tasks(ray: Any) -> Any:
    """The tasks of a task whose process has died for good end at once, and theirs too."""
    made = Children(ray)
    child, runs, after = made.child, made.runs, made.after

    @ray.remote(num_cpus=0, max_retries=0)
    def parent(name: str, is_held: bool) -> None:
        ref = child.remote(name)
        if not is_held:
            del ref
        assert runs(name)
        os._exit(1)

    @ray.remote(num_cpus=0, max_retries=0)
    def middle(name: str) -> None:
        ray.get(child.remote(name))

    @ray.remote(num_cpus=0, max_retries=0)
    def grandparent(name: str) -> None:
        _held = middle.remote(name)
        assert runs(name)
        os._exit(1)

    @ray.remote(num_cpus=0, max_retries=0)
    def ends_well(name: str) -> None:
        child.remote(name, 3.0)

    found = [
        after("held", parent.remote("held", True)),
        after("forgotten", parent.remote("forgotten", False)),
        after("grandchild", grandparent.remote("grandchild")),
    ]
    cancelled = middle.remote("cancelled")
    assert runs("cancelled")
    ray.cancel(cancelled, force=True, recursive=False)
    return [*found, after("cancelled", cancelled), after("alive", ends_well.remote("alive"))]


def children_of_actors(ray: Any) -> Any:
    """The tasks of an actor that has died for good end in the same way."""
    made = Children(ray)
    found: list[Any] = []

    @ray.remote(num_cpus=0)
    class Parent:
        def start(self, name: str) -> None:
            made.child.remote(name)
            assert made.runs(name)

        def wait(self, name: str) -> None:
            ray.get(made.child.remote(name))

        def die(self) -> None:
            os._exit(1)

    dies = Parent.remote()
    ray.get(dies.start.remote("died"))
    found.append(made.after("died", dies.die.remote()))
    killed = Parent.remote()
    waiting = killed.wait.remote("killed")
    assert made.runs("killed")
    ray.kill(killed)
    return [*found, made.after("killed", waiting)]


def children_in_queues(ray: Any) -> Any:
    """Tasks of a parent that has died for good never begin."""
    made = Children(ray)
    sleep, folder = made.sleep, made.folder

    @ray.remote(num_cpus=1)
    def hold() -> None:
        (folder / "held").touch()
        while not (folder / "let go").exists():
            sleep(0.05)

    @ray.remote(num_cpus=2)
    def note(name: str, value: Any = None) -> None:
        (folder / name).touch()

    @ray.remote(num_cpus=0, max_retries=0)
    def parent(name: str) -> None:
        first = made.child.remote(name)
        _held = [note.remote("queued"), note.options(num_cpus=0).remote("depends", first)]
        assert made.runs(name)
        os._exit(1)

    holder = hold.remote()
    assert made.runs("held")
    found = [outcome(ray, parent.remote("child")), made.fate("child")]
    sleep(1.0)
    (folder / "let go").touch()
    ray.get(holder)
    found.append(made.are_free("CPU", 2))
    sleep(1.0)
    return [*found, *((folder / name).exists() for name in ("queued", "depends"))]


def children_of_a_lost_node(ray: Any) -> Any:
    """They end at once as well, on the nodes that live."""
    made = Children(ray)
    node = FurtherNode(ray, there=2)

    @ray.remote(num_cpus=0, max_retries=0, resources={"there": 1})
    def parent(name: str) -> None:
        ray.get(made.child.options(resources={"here": 1}).remote(name))

    waiting = parent.remote("child")
    assert made.runs("child")
    node.kill()
    return [outcome(ray, waiting) != "None", made.fate("child"), made.are_free("here", 1)]
