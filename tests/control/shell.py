"""A driver of the world of these tests: `Client` and user code.

It offers what `runtime.backend` offers to real user code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from raytwin.runtime.api.failures import error_text
from raytwin.runtime.control.client.client import Client
from raytwin.runtime.control.core.call_batches import split
from raytwin.runtime.control.core.ids import object_id
from raytwin.runtime.control.messages import (
    OK,
    USER_ERROR,
    ActorInfo,
    ObjectValue,
    RangeResult,
    TaskExtra,
    TaskResults,
    TaskSpec,
)
from raytwin.runtime.control.messages.errors import unpack
from tests.control.values import FUNCTION, INLINE_BYTES_MAX, Code, TaskFailed

if TYPE_CHECKING:
    from tests.control.world import World


class Ref:
    """One reference; `drop` stands in for the garbage collector."""

    def __init__(self, shell: Shell, oid: bytes) -> None:
        self.oid = oid
        self.shell = shell
        self.alive = True
        shell.client.references.add_ref(oid)

    def drop(self) -> None:
        assert self.alive
        self.alive = False
        self.shell.client.references.drop_ref(self.oid)


class Shell:
    """One `Client` and the user code that it serves."""

    def __init__(self, world: World, address: str, node: int) -> None:
        self.world = world
        self.address = address
        self.node = node
        ctx = self.ctx = world.context(address)
        self.client = Client(ctx, address, node, world.config)
        self.results: Counter[tuple[bytes, int]] = Counter()
        """How often the result of each element came."""
        self.demand: str | None = None
        """Of the running task."""
        self.waits = False
        """It is in `get` and has given up its CPU."""
        self.went_on = False
        """It has its CPU back, maybe while others have it."""
        self.history: list[int] | None = None
        """The state of an actor."""
        self._extras: dict[tuple[bytes, int], TaskExtra] = {}
        """Of calls without inputs, by actor and retries."""
        self._code: Code | None = None
        self._done: Callable[[Any], None] | None = None
        self._until: Callable[[], bool] | None = None
        self._busy = False
        world.add(address, self)
        world.shells[address] = self
        self.node_store = world.stores[node]

    # -- as a component --------------------------------------------------------

    def handle(self, source: str, message: Any) -> None:
        if isinstance(message, TaskResults):
            for result in message.results:
                for array in split(result.calls):
                    self.results[array, 0] += 1
                    self.world.answered_together += 1
                if result.calls:
                    continue
                for index in range(result.start, result.start + result.count):
                    self.results[result.array, index] += 1
        self.client.handle(source, message)

    def end_turn(self) -> None:
        self.client.end_turn()
        if self._until is not None and not self._busy and self._until():
            self._until = None
            self._advance()

    # -- coroutines ------------------------------------------------------------

    def start(self, code: Code, done: Callable[[Any], None] | None = None) -> None:
        """Run user code; it has this shell for itself."""
        assert self._code is None
        self._code = code
        self._done = done
        self.world.at(0.0, lambda: self._resume(self))

    def call(self, code: Code) -> Any:
        """Run a driver's code to its end; return what it returns, raise `TaskFailed`."""
        box: list[Any] = []

        def guarded() -> Code:
            # The turn in which it fails is a turn like any other.
            try:
                return (yield from code)
            except TaskFailed as error:
                return error

        self.start(guarded(), box.append)
        self.world.run(until=lambda: bool(box))
        if isinstance(box[0], TaskFailed):
            raise box[0]
        return box[0]

    def _resume(self, me: Shell) -> None:
        if self.world.components.get(self.address) is me:
            self.world.turn(self.address, self._advance)

    def _advance(self) -> None:
        self._busy = True
        try:
            assert self._code is not None
            while True:
                try:
                    wait = next(self._code)
                except StopIteration as stop:
                    self._code = None
                    if self._done is not None:
                        self._done(stop.value)
                    return
                if callable(wait):
                    if wait():
                        continue
                    self._until = wait
                    return
                self.world.at(wait, lambda: self._resume(self))
                return
        finally:
            self._busy = False

    # -- what user code can do -------------------------------------------------

    def submit(
        self,
        body: Any,
        *,
        deps: Iterable[bytes] = (),
        returns: int = 1,
        demand: str = "CPU:1",
        retries: int = 3,
    ) -> list[Ref]:
        """Submit one task; `body` is what `run_body` will run."""
        self._export()
        array = self._next_array()
        spec = TaskSpec(
            array, 0, 1, FUNCTION, msgspec.msgpack.encode([body]), self.address, demand,
            tuple(deps), returns, retries, -1, "task", None, self._depth(),
        )  # fmt: skip
        self.client.submitter.submit(array, [spec], 1, returns)
        return [Ref(self, object_id(array, 0, ret)) for ret in range(returns)]

    def _depth(self) -> int:
        """How deep what it submits is nested."""
        return 0

    def create_actor(
        self,
        *,
        restarts: int = 0,
        interval: int = 0,
        demand: str = "",
        deps: Iterable[bytes] = (),
        fail: str = "",
    ) -> Ref:
        """Start an actor whose state is the list of what `tell` told it."""
        self._export()
        array = self._next_array()
        body = msgspec.msgpack.encode([{"fail": fail} if fail else {}])
        spec = TaskSpec(
            array, 0, 1, FUNCTION, body, self.address, demand, tuple(deps), 1, 0, -1, "Actor",
            TaskExtra(actor=ActorInfo(restarts, 1, interval)),
        )  # fmt: skip
        self.client.submitter.create(spec, (), array if restarts else b"")
        return Ref(self, object_id(array, 0, 0))

    def tell(
        self,
        actor: bytes,
        body: Any,
        *,
        deps: Collection[bytes] = (),
        retries: int = 0,
        restarts: int = 0,
    ) -> Ref:
        """Call the actor of this object; `body` as for a task, and a ``tag`` to remember."""
        array = self._next_array()
        to = actor[: len(array)]
        args = msgspec.msgpack.encode([body])
        keeper = to if restarts else b""
        if not deps:
            # The same object for all such calls, as an actor's handle has it.
            extra = self._extras.setdefault((to, retries), TaskExtra(call=to, method="tell"))
            self.client.submitter.call(array, extra, "Actor.tell", retries, args, actor, keeper)
            return Ref(self, object_id(array, 0, 0))
        spec = TaskSpec(
            array, 0, 1, b"", args, self.address, "", tuple(deps), 1,
            retries, -1, "Actor.tell", TaskExtra(call=to, method="tell"),
        )  # fmt: skip
        self.client.submitter.submit(array, [spec], 1, 1, (actor,), keeper)
        return Ref(self, object_id(array, 0, 0))

    def map(
        self, bodies: list[Any], *, demand: str = "CPU:1", retries: int = 3, chunk: int = 1 << 30
    ) -> list[bytes]:
        """Submit an array and return its objects; the first one is referenced."""
        self._export()
        array = self._next_array()
        specs = [
            TaskSpec(
                array, at, len(bodies[at : at + chunk]), FUNCTION,
                msgspec.msgpack.encode(bodies[at : at + chunk]), self.address, demand, (), 1,
                retries, at, "task", None, self._depth(),
            )
            for at in range(0, len(bodies), chunk)
        ]  # fmt: skip
        self.client.submitter.submit(array, specs, len(bodies), 1)
        return [object_id(array, index, 0) for index in range(len(bodies))]

    def put(self, value: Any, size: int = 0) -> Code:
        """Generator: put a value of so many bytes and return a `Ref`."""
        array = self._next_put()
        oid = object_id(array, 0, 0)
        if size <= INLINE_BYTES_MAX:
            result = RangeResult(array, 0, 1, OK, msgspec.msgpack.encode([value]), self.node)
        else:
            offset = yield from self._allocate(oid, value, size)
            result = RangeResult(array, 0, 1, OK, b"", self.node, 1, (size,), (offset,))
        self.client.submitter.put(result)
        return Ref(self, oid)

    def get(self, oids: list[bytes]) -> Code:
        """Generator: wait for objects, return their values, raise `TaskFailed`."""
        self.client.buffer.flush()
        waiter = self.client.waits.watch(oids)
        for oid in oids:
            self.client.pins.add_view(oid)
        yield from self._wait(lambda: not waiter.missing)
        try:
            return [self.value(oid) for oid in oids]
        finally:
            for oid in oids:
                self.client.pins.drop_view(oid)

    def value(self, oid: bytes) -> Any:
        value = self.client.waits.value(oid)
        assert value is not None, "a value vanished while it was awaited"
        return self.decode(value)

    def decode(self, value: ObjectValue) -> Any:
        if value.status != OK:
            text = (
                value.payload.decode()
                if value.status == USER_ERROR
                else error_text(unpack(value.payload))
            )
            raise TaskFailed(value.status, text)
        if not value.size:
            return msgspec.msgpack.decode(value.payload)[value.position]
        return self.node_store.read(value.object, value.offset, value.size)

    def _allocate(self, oid: bytes, value: Any, size: int) -> Code:
        waiter = self.client.requests.allocate(oid, size)
        yield lambda: not waiter.missing
        offset = self.client.requests.allocations.pop(oid)
        if offset < 0:
            raise TaskFailed(USER_ERROR, error_text(self.client.requests.full.pop(oid)))
        self.node_store.values[offset] = value
        return offset

    def _wait(self, ready: Callable[[], bool]) -> Code:
        if not ready():
            yield ready

    def _export(self) -> None:
        self.client.submitter.export(FUNCTION, b"blob")

    def _next_array(self) -> bytes:
        return self.client.submitter.next_array()

    def _next_put(self) -> bytes:
        return self.client.submitter.next_put()
