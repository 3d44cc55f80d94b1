"""A recording as a program: submits its tasks, calls and puts again, on any backend.

A recording (docs/recording.md) says which part of each body has submitted what, what it waited for
at its end, and what its own code took. So no script is needed to run it: `play` is the driver, and
every body does its parts in turn::

    own time ──> puts ──> submissions ──> wait ──> own time of the next part ...

What the recording has not is decided here: the own time of a part passes before its submissions,
calls of an actor run one after another, values have the recorded sizes and no contents, and an item
of a stream is there when its task has ended. A reference is dropped after its last use.

`work_of` translates the recording to the `Work` of the driver, in which that of every other body is
nested: a task's arguments have all that it does, so workers need no file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import msgspec
from msgspec import Struct

import raytwin as ray
from raytwin.runtime.session.recording import Body, Driver, Recording

TASK_DIGITS = 32
"""An object's ID begins with that of its task, in so many hexadecimal digits."""
ARRAY_DIGITS = 24
"""A task's ID begins with that of its array, an actor's ID is the array of its constructor."""
FIRST = "00000000"
"""Behind an array's ID: its only task, or its first one."""
DEPTH_MAX = 100
"""How deep tasks may be nested in tasks: what they do is nested as deep in their arguments."""
BLOB_MIN_BYTES = 1_000
"""A smaller value costs less as plain bytes."""
SYSTEM = ("memory", "object_store_memory")
"""The resources that every node has, whatever is asked for, beside its own ``node:<n>``."""


class Child(Struct, array_like=True):
    """A task, an actor's construction or a call, as its parent submits it."""

    id: str
    name: str
    kind: str
    actor: str
    """The ID of the actor that is made or called; of a task ""."""
    demand: dict[str, float]
    args_bytes: int
    inputs: list[str]
    """Keys of tasks and puts whose references are its arguments."""
    given: list[str]
    """Keys of tasks, puts and actors that it or its children use, and do not make."""
    work: Work

    def keys(self) -> list[str]:
        """Return the keys of its values, which are all that others may wait for or use."""
        several = len(self.work.values) > 1
        return keys_of(self.id, len(self.work.values)) if several else [self.id]


class Part(Struct, array_like=True):
    """The calls that a body makes after one stretch of its own time."""

    puts: list[tuple[str, int]] = []
    """(key, bytes)"""
    children: list[tuple[Child, list[str]]] = []
    """Each with the keys that nobody uses after its submission."""
    waits: list[str] = []
    dropped: list[str] = []
    """Keys that nobody uses after the wait."""


class Work(Struct, array_like=True):
    """What one body does."""

    own: list[tuple[float, float]]
    values: list[int] = []
    """The bytes of each."""
    parts: list[Part] = []
    """Empty: it is by itself."""


@dataclass(frozen=True)
class Played:
    """How a recording ran."""

    bodies: int
    makespan_s: float


def play(
    recording: Recording,
    time_scale: float = 1.0,
    cpu_scale: float = 1.0,
    size_scale: float = 1.0,
) -> Played:
    """Run a recording on the cluster that is connected.

    Times of bodies are multiplied by `time_scale`, and those on a CPU by `cpu_scale` too; the bytes
    of values, puts and arguments by `size_scale`. Raises ValueError as `work_of` does.
    """
    work = work_of(recording, time_scale, cpu_scale, size_scale)
    began_s = ray.now()
    _Scope({}).run(work)
    return Played(len(recording.bodies), ray.now() - began_s)


def cluster_of(
    recording: Recording, nodes: int | None, cpus_per_node: float | None
) -> list[dict[str, float]]:
    """Return the resources of each node: those of the recording, or of so many nodes like these.

    Raises ValueError if a body needs more than any of the nodes has.
    """
    recorded = [
        {
            name: amount
            for name, amount in node.items()
            if name not in SYSTEM and not name.startswith("node:")
        }
        for node in recording.nodes
    ] or [{"CPU": 1.0}]
    count = nodes or len(recorded)
    found = [dict(recorded[at % len(recorded)]) for at in range(count)]
    if cpus_per_node is not None:
        found = [{**node, "CPU": float(cpus_per_node)} for node in found]
    needy = {tuple(sorted(body.demand.items())): body for body in recording.bodies}
    for body in needy.values():
        if not any(_has(node, at, body.demand) for at, node in enumerate(found)):
            raise ValueError(
                f"{body.name} needs {_listed(body.demand)}, and no node has it: the nodes have"
                f" {_listed(max(found, key=lambda node: node.get('CPU', 0.0)))}"
            )
    return found


def _has(node: dict[str, float], number: int, demand: dict[str, float]) -> bool:
    named = f"node:{number}"
    return all(
        name == named or name == "memory" or node.get(name, 0.0) >= amount
        for name, amount in demand.items()
    )


def _listed(resources: dict[str, float]) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in resources.items()) or "nothing"


# -- from a recording to the work of its driver -----------------------------------


def work_of(
    recording: Recording,
    time_scale: float = 1.0,
    cpu_scale: float = 1.0,
    size_scale: float = 1.0,
) -> Work:
    """Return what the driver of a recording does, with the work of all others nested in it.

    Raises ValueError, in one line, if the recording contradicts itself, or uses an object where
    nobody has given it a reference: one that came out of a task inside of its value.
    """
    return _Translation(recording, time_scale, cpu_scale, size_scale).driver()


class _Translation:
    """The tables from which the work of each body is made; bodies are called by their IDs."""

    def __init__(
        self, recording: Recording, time_scale: float, cpu_scale: float, size_scale: float
    ) -> None:
        self._scales = time_scale * cpu_scale, time_scale
        self._size_scale = size_scale
        root = recording.driver.id
        # One that has run again, after a fault, has one ID: what it did last counts.
        self._bodies = {body.id: body for body in recording.bodies}
        self._driver = recording.driver
        self._puts = {put.id: put for put in recording.puts}
        self._parts: dict[str, list[Part]] = {}
        makers: list[Driver | Body] = [recording.driver, *self._bodies.values()]
        for maker in makers:
            if len(maker.waits) != max(0, len(maker.own) - 1):
                raise ValueError(
                    f"{maker.id} has {len(maker.own)} parts and {len(maker.waits)} waits between"
                    " them: record the script again"
                )
            # One that was cancelled, or has died, has no body.
            self._parts[maker.id] = [
                Part(waits=[key for key in self._keys(ids) if self._recorded(key)])
                for ids in maker.waits
            ]
        for put in recording.puts:
            part = self._part(put.parent or root, put.part, put.id)
            part.puts.append((put.id, self._scaled(put.nbytes)))
        self._children: dict[str, list[str]] = {}
        for body in self._bodies.values():
            parent = body.parent or root
            if parent != root and parent not in self._bodies:
                raise ValueError(f"{body.name} {body.id} has a parent that is not recorded")
            self._children.setdefault(parent, []).append(body.id)
            for key in self._keys(body.inputs):
                if not self._recorded(key):
                    raise ValueError(f"{body.name} {body.id} has an input that nobody makes: {key}")
            if body.kind == "call" and f"{body.actor}{FIRST}" not in self._bodies:
                raise ValueError(f"{body.name} {body.id} is of an actor that nobody makes")
        self._order = list(self._from_the_driver(root))
        if len(self._order) <= len(self._bodies):
            raise ValueError("there are bodies that are their own ancestors")
        made: dict[str, set[str]] = {}
        """By actor: what its constructor and calls have made, and each may use."""
        for each in self._order:
            own = self._bodies.get(each)
            if own is not None and own.kind != "task":
                made.setdefault(_actor(own), set()).update(self._makes(each))
        self._needs: dict[str, set[str]] = {}
        for each in reversed(self._order):
            self._needs[each] = self._uses(each)
            own = self._bodies.get(each)
            if own is not None and own.kind != "task":
                self._needs[each] -= made[_actor(own)]
        missing = sorted(self._needs[root])
        if missing:
            raise ValueError(
                f"{len(missing)} objects or actors, {missing[0]} first, are used where nobody has"
                " given a reference to them: one that a task returns inside of its value cannot be"
                " followed"
            )

    def _from_the_driver(self, root: str) -> Iterator[str]:
        """Yield the driver and all bodies, parents first."""
        left = [(root, 0)]
        while left:
            each, depth = left.pop()
            if depth > DEPTH_MAX:
                raise ValueError(f"tasks are nested in tasks more than {DEPTH_MAX} deep")
            yield each
            left += [(child, depth + 1) for child in self._children.get(each, ())]

    def _keys(self, ids: Iterable[str]) -> list[str]:
        """Return the tasks and puts that objects are of, each once."""
        return list(dict.fromkeys(map(self._key, ids)))

    def _key(self, oid: str) -> str:
        if oid in self._puts:
            return oid
        task = oid[:TASK_DIGITS]
        if task not in self._bodies:
            # Items of a stream are further elements of their task's array.
            return f"{oid[:ARRAY_DIGITS]}{FIRST}"
        return oid if len(self._bodies[task].values) > 1 else task

    def _keys_of(self, body: Body) -> list[str]:
        """Return the keys by which others may use what a body makes."""
        if body.kind == "actor":
            return [_actor(body)]
        return keys_of(body.id, len(body.values)) if len(body.values) > 1 else [body.id]

    def _recorded(self, key: str) -> bool:
        body = self._bodies.get(key[:TASK_DIGITS])
        if body is None or key == body.id:
            return key in self._puts or body is not None
        last = f"{len(body.values) - 1:04x}"
        return len(key) == len(body.id) + len(last) and key[TASK_DIGITS:] <= last

    def _part(self, maker: str, number: int, what: str) -> Part:
        """Return a part of a body that has made something; a last one has no wait."""
        parts = self._parts.get(maker)
        if parts is None:
            raise ValueError(f"{what} has a parent that is not recorded")
        if number > len(parts):
            raise ValueError(f"{what} was made in part {number} of {maker}, which it has not")
        if number == len(parts):
            parts.append(Part())
        return parts[number]

    def _makes(self, maker: str) -> set[str]:
        """Return the keys of what a body makes."""
        found = {key for part in self._parts[maker] for key, _ in part.puts}
        for each in self._children.get(maker, ()):
            found.update(self._keys_of(self._bodies[each]))
        return found

    def _uses(self, maker: str) -> set[str]:
        """Return the keys of what a body and its children use and do not make."""
        found = {key for part in self._parts[maker] for key in part.waits}
        for each in self._children.get(maker, ()):
            body = self._bodies[each]
            found.update(self._keys(body.inputs))
            found |= self._needs[each]
            if body.kind == "call":
                found.add(_actor(body))
        return found - self._makes(maker)

    def driver(self) -> Work:
        """Return the work of the driver."""
        works: dict[str, Work] = {}
        for maker in reversed(self._order):
            body = self._bodies.get(maker)
            for each in self._children.get(maker, ()):
                child = self._bodies[each]
                part = self._part(maker, child.part, f"{child.name} {each}")
                part.children.append((self._child(child, works.pop(each)), []))
            if body is None or body.kind == "task":
                self._check_order(maker)
                _drop(self._parts[maker])  # an actor's next call may use it
            works[maker] = self._work(body or self._driver)
        return works[self._driver.id]

    def _check_order(self, maker: str) -> None:
        """Raise ValueError if a body uses something before it has made it."""
        later = self._makes(maker)
        for part in self._parts[maker]:
            later -= {key for key, _ in part.puts}
            for child, _ in part.children:
                used = {child.actor, *child.inputs, *child.given}
                made = {child.actor} if child.kind == "actor" else set(child.keys())
                if (used - made) & later or set(child.inputs) & made:
                    raise ValueError(f"{child.name} {child.id} stands before one of its inputs")
                later -= made
            if later & set(part.waits):
                raise ValueError(f"{maker} waits for what it has not submitted yet")

    def _work(self, maker: Body | Driver) -> Work:
        cpu, waited = self._scales
        own = [(cpu_s * cpu, waited_s * waited) for cpu_s, waited_s in maker.own]
        parts = self._parts[maker.id]
        if not any(part.puts or part.children or part.waits for part in parts):
            parts = []
        values = (maker.values or [maker.result_bytes]) if isinstance(maker, Body) else []
        return Work(own, [self._scaled(nbytes) for nbytes in values], parts)

    def _child(self, body: Body, work: Work) -> Child:
        actor = _actor(body) if body.kind != "task" else ""
        inputs, given = self._keys(body.inputs), sorted(self._needs[body.id])
        demand = {name: amount for name, amount in body.demand.items() if amount}
        args_bytes = self._scaled(body.args_bytes)
        return Child(body.id, body.name, body.kind, actor, demand, args_bytes, inputs, given, work)

    def _scaled(self, nbytes: int) -> int:
        return round(nbytes * self._size_scale)


def keys_of(task: str, count: int) -> list[str]:
    """Return the object IDs of a task's values."""
    return [f"{task}{number:04x}" for number in range(count)]


def _actor(body: Body) -> str:
    """Return the ID of the actor that a constructor makes, or a call is for."""
    return body.id[:ARRAY_DIGITS] if body.kind == "actor" else str(body.actor)


def _drop(parts: Sequence[Part]) -> None:
    """Note where each key of a body is used for the last time; actors stay until its end."""
    seen: set[str] = set()

    def last(keys: Iterable[str]) -> list[str]:
        found = [key for key in dict.fromkeys(keys) if key not in seen and len(key) != ARRAY_DIGITS]
        seen.update(found)
        return found

    for part in reversed(parts):
        part.dropped = last(part.waits)
        for child, dropped in reversed(part.children):
            made = () if child.kind == "actor" else child.keys()
            dropped.extend(last((*made, *child.inputs, *child.given)))
        # Those that nobody uses.
        part.dropped += last(key for key, _ in part.puts)


# -- what runs ---------------------------------------------------------------------


def _run(work: bytes, given: dict[str, Any], filler: Any, *inputs: Any) -> Any:
    """Run the body of a task."""
    return _Scope(given).run(msgspec.msgpack.decode(work, type=Work))


class _Actor:
    """An actor of a recording: it keeps what its bodies have been given and have made."""

    def __init__(self, work: bytes, given: dict[str, Any], filler: Any, *inputs: Any) -> None:
        self._scope = _Scope(given)
        self._scope.run(msgspec.msgpack.decode(work, type=Work))

    def run(self, work: bytes, given: dict[str, Any], filler: Any, *inputs: Any) -> Any:
        """Run the body of a call."""
        self._scope.known.update(given)
        return self._scope.run(msgspec.msgpack.decode(work, type=Work))


_actor_class = ray.remote(_Actor)
_functions: dict[str, Any] = {}
"""By the name of a recorded function: one of that name, since schedulers know tasks by it."""


def _function(name: str) -> Any:
    if name not in _functions:
        made = FunctionType(_run.__code__, globals(), name)
        made.__qualname__ = name
        _functions[name] = ray.remote(made)
    return _functions[name]


def _value(nbytes: int) -> Any:
    return ray.Blob(nbytes) if nbytes >= BLOB_MIN_BYTES else bytes(nbytes)


class _Scope:
    """What one program, or one actor, has references to."""

    def __init__(self, known: dict[str, Any]) -> None:
        self.known = known
        """By the key of a task, put or actor."""

    def run(self, work: Work) -> Any:
        """Do the parts of a body in turn; return its value."""
        for index in range(max(len(work.own), len(work.parts))):
            if index < len(work.own):
                self._pass(*work.own[index])
            if index < len(work.parts):
                self._do(work.parts[index])
        values = [_value(nbytes) for nbytes in work.values]
        return values if len(values) != 1 else values[0]

    def _pass(self, cpu_s: float, waited_s: float) -> None:
        if cpu_s:
            ray.compute(cpu_s)
        if waited_s:
            ray.sleep(waited_s)

    def _do(self, part: Part) -> None:
        for key, nbytes in part.puts:
            self.known[key] = ray.put(_value(nbytes))
        for child, dropped in part.children:
            self._submit(child)
            self._forget(dropped)
        if part.waits:
            ray.get([self.known[key] for key in part.waits])
        self._forget(part.dropped)

    def _forget(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.known.pop(key, None)

    def _submit(self, child: Child) -> None:
        work = msgspec.msgpack.encode(child.work)
        given = {key: self.known[key] for key in child.given}
        filler = _value(max(0, child.args_bytes - len(work)))
        arguments = (work, given, filler, *(self.known[key] for key in child.inputs))
        keys = child.keys()
        if child.kind == "call":
            method = self.known[child.actor].run.options(num_returns=len(keys))
            self._know(keys, method.remote(*arguments))
            return
        demand = dict(child.demand)
        options: dict[str, Any] = {"num_cpus": demand.pop("CPU", 0.0)}
        for resource, option in ("GPU", "num_gpus"), ("memory", "memory"):
            if resource in demand:
                options[option] = demand.pop(resource)
        if demand:
            options["resources"] = demand
        if child.kind == "actor":
            self.known[child.actor] = _actor_class.options(**options).remote(*arguments)
        else:
            function = _function(child.name).options(**options, num_returns=len(keys))
            self._know(keys, function.remote(*arguments))

    def _know(self, keys: Sequence[str], refs: Any) -> None:
        self.known.update(zip(keys, [refs] if len(keys) == 1 else refs, strict=True))
