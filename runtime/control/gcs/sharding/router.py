"""Shards of the GCS: which one has a key, and messages split by it.

With ``gcs_shards=n`` the tables whose rows have an ID of their own are spread
over n shards, ``gcs.1`` to ``gcs.n``, each a machine and a chain of its own:

============================ ===================================================
by array ID                  task and object table, lineage, history of tasks
by function ID               functions
by the key itself            users' key-value table
in ``gcs`` (chain 0)         nodes, actors and their names, event log, and, beside
                             it, the global scheduler ``global``
============================ ===================================================

What stays in ``gcs`` is what one decision needs all of: who is alive, where
there is room, which names are taken. An actor's row stays with it, because the
death of a node, a restart and a placement are one step there.

Nobody who speaks with the GCS knows of shards: a component sends to ``gcs`` as
ever, and a `Router` between it and the world finds out who is meant. Keys are
spread by their CRC-32, the same in every process.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any
from zlib import crc32

from raytwin.runtime.control.core.addresses import shard_address
from raytwin.runtime.control.core.context import Context, Timer
from raytwin.runtime.control.core.ids import ARRAY_BYTES
from raytwin.runtime.control.core.task_ranges import needs_of
from raytwin.runtime.control.messages import (
    CancelTask,
    ClaimTasks,
    ExportFunction,
    FetchFunction,
    FindTask,
    KvDelete,
    KvGet,
    KvPut,
    LineageChanges,
    LocateObjects,
    ObjectsMissing,
    OwnersFound,
    Registered,
    ResultsMissing,
    TaskSpec,
    TasksPlaced,
    TaskUpdates,
)

HINT, USED, UNUSED, UNNEEDED, NEEDED = range(5)
"""Of an entry of `LineageChanges`: what is said of an array and its inputs.

``HINT``: it will be said to use them; ``USED``, ``UNUSED``: it has them as inputs,
or has not any more; ``UNNEEDED``: it is not being made again any more; ``NEEDED``: its
values are needed, and refer to these."""


def shard_of(key: bytes, shards: int) -> int:
    """Return the number, from 1, of the shard that has a key.

    >>> [shard_of(b"key%d" % n, 4) for n in range(6)]
    [2, 4, 4, 2, 1, 2]
    """
    # The lowest bits of a CRC say little: those of keys that count up go in step.
    return ((crc32(key) * 0x9E3779B1 & 0xFFFF_FFFF) >> 16) % shards + 1


def input_shards(spec: TaskSpec, shards: int) -> dict[int, tuple[bytes, ...]]:
    """Return {shard: arrays} of what a task needs that other shards have than its own."""
    own = shard_of(spec.array, shards)
    found: dict[int, dict[bytes, None]] = {}
    for oid in needs_of(spec):
        shard = shard_of(oid[:ARRAY_BYTES], shards)
        if shard != own:
            found.setdefault(shard, {})[oid[:ARRAY_BYTES]] = None
    return {shard: tuple(arrays) for shard, arrays in found.items()}


class Between:
    """What stands between a component and its world: a `Context`, once it says how to send."""

    rng: random.Random

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    def __getattr__(self, name: str) -> Any:
        # The world's, which may be seeded when it is first used.
        if name != "rng":
            raise AttributeError(name)
        return self._ctx.rng

    def now(self) -> float:
        """Return the world's time."""
        return self._ctx.now()

    def after(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Set a timer in the world."""
        return self._ctx.after(delay_s, callback)


class Router(Between):
    """A `Context` whose ``gcs`` is a set of shards.

    With `hold` it opens in two steps, see `RoutedNode`: until `open_gcs` is called
    nothing leaves for ``gcs`` and ``global``, and until `open_shards` nothing for shards.
    """

    def __init__(self, ctx: Context, shards: int, hold: bool = False) -> None:
        super().__init__(ctx)
        self._shards = shards
        self._early: list[tuple[str, Any]] | None = [] if hold else None
        self._held: list[tuple[str, Any]] | None = [] if hold else None

    def send(self, to: str, message: Any) -> None:
        """Send to who is meant: see the module's docstring."""
        split = _SPLITS.get(type(message)) if to == "gcs" else None
        if split is None:
            if self._early is not None and to in ("gcs", "global"):
                self._early.append((to, message))
            else:
                self._ctx.send(to, message)
            return
        for shard, part in split(message, self._shards):
            if self._held is None:
                self._ctx.send(shard_address(shard), part)
            else:
                self._held.append((shard_address(shard), part))

    def open_gcs(self) -> None:
        """Let out what was held for ``gcs`` and ``global``."""
        early, self._early = self._early, None
        for to, message in early or ():
            self._ctx.send(to, message)

    def open_shards(self) -> None:
        """Let out what was held for shards."""
        held, self._held = self._held, None
        for to, message in held or ():
            self._ctx.send(to, message)


class RoutedNode:
    """A local scheduler behind a `Router`.

    It registers when every shard knows it as a client: from then on they may have
    something to say to it. It speaks to shards when it is registered: then they have
    heard that it is alive.
    """

    def __init__(self, ctx: Context, shards: int, make: Callable[[Context], Any]) -> None:
        self._router = Router(ctx, shards, hold=True)
        self._is_known: Callable[[], bool] | None = lambda: False
        self.inner = make(self._router)

    def await_shards(self, known: Callable[[], bool]) -> None:
        """Register once this holds; looked at after each turn."""
        self._is_known = known

    def handle(self, source: str, message: Any) -> None:
        """Hand it on."""
        if type(message) is Registered:
            if message.incarnation != self.inner.incarnation:
                return  # it is for this node's former life, and was held back until now
            self._router.open_shards()
        self.inner.handle(source, message)

    def end_turn(self) -> None:
        """End the scheduler's turn."""
        self.inner.end_turn()
        if self._is_known is not None and self._is_known():
            self._is_known = None
            self._router.open_gcs()


# -- splitting -------------------------------------------------------------------

Parts = list[tuple[int, Any]]


def _by_array(items: Any, array_of: Callable[[Any], bytes], shards: int) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for item in items:
        found.setdefault(shard_of(array_of(item), shards), []).append(item)
    return found


def _array_of_object(oid: bytes) -> bytes:
    return oid[:ARRAY_BYTES]


def _first(row: Any) -> bytes:
    array: bytes = row[0]
    return array


def _array_of_spec(spec: TaskSpec) -> bytes:
    return spec.array


def _array_of_copy(row: tuple[bytes, int]) -> bytes:
    return row[0][:ARRAY_BYTES]


def _itself(array: bytes) -> bytes:
    return array


def _split_updates(message: TaskUpdates, shards: int) -> Parts:
    """Inputs are named to the shards that have them, ahead of their release."""
    hints: dict[int, list[tuple[int, bytes, tuple[bytes, ...]]]] = {}
    for spec in message.added:
        if spec.deps or spec.extra is not None:
            for shard, arrays in input_shards(spec, shards).items():
                hints.setdefault(shard, []).append((HINT, spec.array, arrays))
    parts: dict[int, TaskUpdates] = {}

    def part_of(shard: int) -> TaskUpdates:
        part = parts.get(shard)
        if part is None:
            part = parts[shard] = TaskUpdates(
                message.node, [], [], [], [], incarnation=message.incarnation, left=message.left
            )
        return part

    for name, array_of in _ROWS:
        for shard, rows in _by_array(getattr(message, name), array_of, shards).items():
            getattr(part_of(shard), name).extend(rows)
    named: Parts = [(shard, LineageChanges(changes)) for shard, changes in hints.items()]
    return named + list(parts.items())


_ROWS: tuple[tuple[str, Callable[[Any], bytes]], ...] = (
    ("added", _array_of_spec),
    ("done", _first),
    ("copies", _array_of_copy),
    ("released", _itself),
    ("owner_died", _itself),
    ("puts", _first),
    ("calls", _first),
    ("with_references", _itself),
    ("unreconstructable", _first),
)


def _split_placed(message: TasksPlaced, shards: int) -> Parts:
    """A placed range goes by way of the shards that have its inputs."""
    found: dict[tuple[int, ...], list[TaskSpec]] = {}
    for spec in message.tasks:
        way = (*input_shards(spec, shards), shard_of(spec.array, shards))
        found.setdefault(way, []).append(spec)
    return [
        (way[0], TasksPlaced(message.node, message.incarnation, specs, way[1:], message.left))
        for way, specs in found.items()
    ]


def _split_locate(message: LocateObjects, shards: int) -> Parts:
    found = _by_array(message.objects, _array_of_object, shards)
    return [(shard, LocateObjects(oids, message.subscribe)) for shard, oids in found.items()]


def _split_results_missing(message: ResultsMissing, shards: int) -> Parts:
    found = _by_array(message.ranges, _first, shards)
    return [(shard, ResultsMissing(message.node, ranges)) for shard, ranges in found.items()]


def _split_objects_missing(message: ObjectsMissing, shards: int) -> Parts:
    found = _by_array(message.objects, _array_of_object, shards)
    return [
        (shard, ObjectsMissing(message.node, oids, message.reason)) for shard, oids in found.items()
    ]


def _split_claim(message: ClaimTasks, shards: int) -> Parts:
    found = _by_array(message.tasks, _array_of_spec, shards)
    return [(shard, ClaimTasks(specs)) for shard, specs in found.items()]


def _split_owners(message: OwnersFound, shards: int) -> Parts:
    owned = _by_array(message.owned, _itself, shards)
    others = _by_array(message.others, _itself, shards)
    let_go = _by_array(message.let_go, _itself, shards)
    gone = _by_array(message.gone, _itself, shards)
    kept = _by_array(message.kept, _first, shards)
    parts = owned, others, let_go, gone, kept
    return [
        (shard, OwnersFound(message.node, *(part.get(shard, []) for part in parts)))
        for shard in dict.fromkeys((*owned, *others, *let_go))
    ]


def _whole(message: Any, key: bytes, shards: int) -> Parts:
    return [(shard_of(key, shards), message)]


_SPLITS: dict[type, Callable[[Any, int], Parts]] = {
    TaskUpdates: _split_updates,
    TasksPlaced: _split_placed,
    LocateObjects: _split_locate,
    ResultsMissing: _split_results_missing,
    ObjectsMissing: _split_objects_missing,
    ClaimTasks: _split_claim,
    OwnersFound: _split_owners,
    CancelTask: lambda m, n: _whole(m, m.array, n),
    FindTask: lambda m, n: _whole(m, m.array, n),
    ExportFunction: lambda m, n: _whole(m, m.function, n),
    FetchFunction: lambda m, n: _whole(m, m.function, n),
    KvPut: lambda m, n: _whole(m, m.key, n),
    KvGet: lambda m, n: _whole(m, m.key, n),
    KvDelete: lambda m, n: _whole(m, m.key, n),
}
