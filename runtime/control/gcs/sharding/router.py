"""The shards of the GCS: which shard has a key, and how messages are split by key.

With ``gcs_shards=n`` some tables are spread over n shards, ``gcs.1`` to ``gcs.n``, each a
chain of its own:

============================ ===================================================
by array ID                  task and object table, lineage, history of tasks
by function ID               functions
by the key itself            users' key-value table
in ``gcs`` (chain 0)         nodes, actors and their names, event log; the same
                             chain has the global scheduler ``global``
============================ ===================================================

A table stays in ``gcs`` if a decision needs all of its rows: which nodes are alive, where there is
room, which names are taken. The actor table stays too, because it handles the death of a node, the
restart of an actor and its placement in one step.

The other components do not know of shards: they send to ``gcs``, and a `Router` between a component
and the world finds the shard. Keys are spread by their CRC-32, the same in every process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zlib import crc32

from msgspec.structs import replace

from raytwin.runtime.control.core.addresses import is_gcs, shard_address
from raytwin.runtime.control.core.context import Context, WrappedContext
from raytwin.runtime.control.core.ids import ARRAY_BYTES
from raytwin.runtime.control.core.task_ranges import array_of, needs_of
from raytwin.runtime.control.gcs.task_object_table import UPDATES
from raytwin.runtime.control.messages import (
    CancelTask,
    ClaimTasks,
    ExportFunction,
    FetchFunction,
    FindTask,
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
"""The changes of `LineageChanges`: how an array uses its inputs.

``HINT``: ``USED`` will follow; ``USED``: it has them as inputs; ``UNUSED``: it no longer has;
``UNNEEDED``: it is no longer being reconstructed; ``NEEDED``: its values are needed, and contain
references to these arrays."""


def shard_of(key: bytes, shards: int) -> int:
    """Return the number, from 1, of the shard that has a key.

    >>> [shard_of(b"key%d" % n, 4) for n in range(6)]
    [2, 4, 4, 2, 1, 2]
    """
    # The lowest bits of a CRC are no hash: for consecutive keys they change in step.
    return ((crc32(key) * 0x9E3779B1 & 0xFFFF_FFFF) >> 16) % shards + 1


def input_shards(spec: TaskSpec, shards: int) -> dict[int, tuple[bytes, ...]]:
    """Return {shard: arrays} of the task's inputs that are not in its own shard."""
    own = shard_of(spec.array, shards)
    found: dict[int, dict[bytes, None]] = {}
    for oid in needs_of(spec):
        shard = shard_of(oid[:ARRAY_BYTES], shards)
        if shard != own:
            found.setdefault(shard, {})[oid[:ARRAY_BYTES]] = None
    return {shard: tuple(arrays) for shard, arrays in found.items()}


class Router(WrappedContext):
    """A `Context` whose ``gcs`` is a set of shards.

    With `hold` it opens in two steps, see `RoutedNode`: it buffers messages to ``gcs`` and
    ``global`` until `open_gcs` is called, and messages to shards until `open_shards`.
    """

    def __init__(self, ctx: Context, shards: int, hold: bool = False) -> None:
        super().__init__(ctx)
        self._shards = shards
        self._early: list[tuple[str, Any]] | None = [] if hold else None
        self._held: list[tuple[str, Any]] | None = [] if hold else None

    def send(self, to: str, message: Any) -> None:
        """Send to the shards that have the keys: see the module's docstring."""
        parts = _split(message, self._shards) if to == "gcs" else None
        if parts is None:
            if self._early is not None and to in ("gcs", "global"):
                self._early.append((to, message))
            else:
                self._ctx.send(to, message)
            return
        for shard, part in parts:
            if self._held is None:
                self._ctx.send(shard_address(shard), part)
            else:
                self._held.append((shard_address(shard), part))

    def open_gcs(self) -> None:
        """Send the held messages to ``gcs`` and ``global``."""
        early, self._early = self._early, None
        for to, message in early or ():
            self._ctx.send(to, message)

    def open_shards(self) -> None:
        """Send the held messages to shards."""
        held, self._held = self._held, None
        for to, message in held or ():
            self._ctx.send(to, message)


class RoutedNode:
    """A local scheduler behind a `Router`.

    It registers when every shard knows it as a client, since from then on shards send it
    messages. It sends messages to shards when it is registered, since by then the shards know
    that it is alive. It handles their messages from then on, too: before, it knows no other node
    to which it could send results.
    """

    def __init__(self, ctx: Context, shards: int, make: Callable[[Context], Any]) -> None:
        self._router = Router(ctx, shards, hold=True)
        self._is_known: Callable[[], bool] | None = lambda: False
        self._early: list[tuple[str, Any]] | None = []
        """Messages of shards that arrived before the node was registered."""
        self.inner = make(self._router)

    def await_shards(self, known: Callable[[], bool]) -> None:
        """Register once `known` returns True; it is called after each turn."""
        self._is_known = known

    def handle(self, source: str, message: Any) -> None:
        """Pass a message on; the first `Registered` opens the way to the shards."""
        if type(message) is Registered:
            if message.incarnation != self.inner.incarnation:
                return  # a delayed message for the node's former incarnation
            self._router.open_shards()
            self.inner.handle(source, message)
            early, self._early = self._early, None
            for shard, each in early or ():
                self.inner.handle(shard, each)
        elif self._early is not None and is_gcs(source) and source != "gcs":
            self._early.append((source, message))
        else:
            self.inner.handle(source, message)

    def end_turn(self) -> None:
        """End the scheduler's turn."""
        self.inner.end_turn()
        if self._is_known is not None and self._is_known():
            self._is_known = None
            self._router.open_gcs()


# -- splitting -------------------------------------------------------------------

Parts = list[tuple[int, Any]]

_ROWS: dict[type, tuple[str, ...]] = {
    TaskUpdates: UPDATES,
    LocateObjects: ("objects",),
    ObjectsMissing: ("objects",),
    ResultsMissing: ("ranges",),
    ClaimTasks: ("tasks",),
    OwnersFound: ("owned", "others", "unowned", "gone", "kept"),
}
"""For messages that are split: the fields whose rows go to their arrays' shards."""
_KEYS: dict[type, str] = {
    CancelTask: "array",
    FindTask: "array",
    ExportFunction: "function",
    FetchFunction: "function",
    KvPut: "key",
    KvGet: "key",
}
"""For messages that go to one shard: the field whose key names the shard."""


def _split(message: Any, shards: int) -> Parts | None:
    """Return the parts of a message for the shards; None: it is for ``gcs``."""
    kind = type(message)
    if kind in _KEYS:
        return [(shard_of(getattr(message, _KEYS[kind]), shards), message)]
    if kind is TasksPlaced:
        return _split_placed(message, shards)
    if kind not in _ROWS:
        return None
    rows: dict[int, dict[str, list[Any]]] = {}
    for name in _ROWS[kind]:
        for row in getattr(message, name):
            rows.setdefault(shard_of(array_of(row), shards), {}).setdefault(name, []).append(row)
    parts: Parts = _hints(message, shards) if kind is TaskUpdates else []
    for shard, lists in rows.items():
        parts.append((shard, replace(message, **{n: lists.get(n, []) for n in _ROWS[kind]})))
    return parts


def _hints(message: TaskUpdates, shards: int) -> Parts:
    """Return hints about inputs for the shards that have them, before their release."""
    hints: dict[int, list[tuple[int, bytes, tuple[bytes, ...]]]] = {}
    for spec in message.added:
        if spec.deps or spec.extra is not None:
            for shard, arrays in input_shards(spec, shards).items():
                hints.setdefault(shard, []).append((HINT, spec.array, arrays))
    return [(shard, LineageChanges(changes)) for shard, changes in hints.items()]


def _split_placed(message: TasksPlaced, shards: int) -> Parts:
    """Return a placed range's message, which visits the shards of its inputs first."""
    found: dict[tuple[int, ...], list[TaskSpec]] = {}
    for spec in message.tasks:
        way = (*input_shards(spec, shards), shard_of(spec.array, shards))
        found.setdefault(way, []).append(spec)
    return [(way[0], replace(message, tasks=specs, way=way[1:])) for way, specs in found.items()]
