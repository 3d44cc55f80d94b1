"""``store:<n>`` and ``pool:<n>`` of the world of these tests: fakes that check what they are told.

Memory is freed once and only if it was allocated, and a value is read only where it lies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raytwin.runtime.control.messages import (
    IN_FILE,
    Allocate,
    Allocated,
    DropSpilled,
    Fetch,
    Fetched,
    Free,
    KillWorker,
    NoRoom,
    Spill,
    Spilled,
    StartWorker,
    StopWorker,
)
from tests.control.worker import Worker

if TYPE_CHECKING:
    from tests.control.world import World


class Store:
    """``store:<n>``: memory by the byte, and what lies where."""

    def __init__(self, world: World, node: int, capacity: int) -> None:
        self.world = world
        self.node = node
        self.capacity = capacity
        self.free_bytes = capacity
        self.disk: dict[int, tuple[bytes, int, Any]] = {}
        """Place -> (object, size, value)."""
        self.spills = 0
        self.in_file = 0
        """Objects that found no room in memory."""
        self.places: dict[int, tuple[bytes, int]] = {}
        """Offset -> (object, size)."""
        self.values: dict[int, Any] = {}
        self._next = 0

    def handle(self, source: str, message: Any) -> None:
        if isinstance(message, Allocate):
            offset = self.allocate(message.object, message.size, message.in_file)
            if offset >= 0:
                self._tell(Allocated(message.object, offset, message.client))
            else:
                self._tell(self._full(message.object, message.size, message.client))
        elif isinstance(message, Free):
            oid, size = self.places.pop(message.offset)
            assert oid == message.object, "another object's memory was freed"
            self.values.pop(message.offset, None)
            if message.offset < IN_FILE:
                self.free_bytes += size
        elif isinstance(message, Spill):
            value = self.read(message.object, message.offset, message.size)
            took_s = self.world.delay_s * (1 + 20 * self.world.rng.random())
            self.world.at(took_s, lambda: self._spilled(message, value))
        elif isinstance(message, DropSpilled):
            oid, _, _ = self.disk.pop(message.place)
            assert oid == message.object, "another object's disk space was freed"
        else:
            assert isinstance(message, Fetch)
            rng, delay_s = self.world.rng, self.world.delay_s
            took_s = delay_s * (1 + 20 * rng.random())
            self.world.at(took_s, lambda: self._fetched(message, took_s))

    def end_turn(self) -> None:
        pass

    def allocate(self, oid: bytes, size: int, in_file: bool) -> int:
        self._next += size
        offset = self._next
        if in_file:
            self.in_file += 1
            offset += IN_FILE
        elif size > self.free_bytes:
            return -1
        else:
            self.free_bytes -= size
        self.places[offset] = (oid, size)
        return offset

    def read(self, oid: bytes, offset: int, size: int) -> Any:
        assert self.places.get(offset) == (oid, size), "memory was read that is not the object's"
        return self.values[offset]

    def _tell(self, message: Any) -> None:
        ctx = self.world.contexts[f"store:{self.node}"]
        ctx.send(f"node:{self.node}", message)

    def _fetched(self, message: Fetch, took_s: float) -> None:
        if self.world.stores.get(self.node) is not self:
            return
        answer: Any
        if message.node in self.world.cut or self.node in self.world.cut:
            held = None
        else:
            held = self._held_by(message)
        if held is None:
            reason = "it is not there any more"
            answer = Fetched(message.object, -1, message.size, took_s, reason, message.node, True)
        else:
            offset = self.allocate(message.object, message.size, message.in_file)
            if offset < 0:
                answer = self._full(message.object, message.size, node=message.node)
            else:
                self.values[offset] = held[0]
                answer = Fetched(message.object, offset, message.size, took_s, "", message.node)
        self.world.turn(f"store:{self.node}", lambda: self._tell(answer))

    def _held_by(self, message: Fetch) -> tuple[Any] | None:
        """Return the value that the other store has, in memory or on disk."""
        source = self.world.stores.get(message.node)
        if source is None:
            return None
        if source is not self:
            for at, place in source.places.items():
                if place == (message.object, message.size) and at in source.values:
                    return (source.values[at],)
        for oid, size, value in source.disk.values():
            if (oid, size) == (message.object, message.size):
                return (value,)
        return None

    def _spilled(self, message: Spill, value: Any) -> None:
        if self.world.stores.get(self.node) is not self:
            return
        self._next += 1
        self.disk[self._next] = (message.object, message.size, value)
        self.spills += 1
        answer = Spilled(message.object, message.offset, message.size, self._next)
        self.world.turn(f"store:{self.node}", lambda: self._tell(answer))

    def _full(self, oid: bytes, size: int, client: str = "", node: int = -1) -> NoRoom:
        return NoRoom(oid, size, self.capacity, self.free_bytes, client, node)


class Pool:
    """``pool:<n>``: starts workers, after a while."""

    START_S = 0.002

    def __init__(self, world: World, node: int) -> None:
        self.world = world
        self.node = node

    def handle(self, source: str, message: Any) -> None:
        if isinstance(message, StartWorker):
            self.world.at(self.START_S, lambda: self._start(message.worker))
        else:
            assert isinstance(message, (KillWorker, StopWorker))
            self.world.kill_worker(message.worker, "not needed any more")

    def end_turn(self) -> None:
        pass

    def _start(self, address: str) -> None:
        if self.world.pools.get(self.node) is self:
            Worker(self.world, address, self.node)
