"""Actors: their creation and location, calls of them, and their lineage."""

from __future__ import annotations

from typing import Union

from msgspec import Struct

from raytwin.runtime.control.messages.common import ObjectValue, RangeResult, TaskSpec, Timing
from raytwin.runtime.control.messages.errors import ActorDeath, Failure


class CreateActors(Struct, array_like=True, tag=70):
    """Put these actors into the actor table and have the global scheduler place them."""

    tasks: list[TaskSpec]


class ActorPlaced(Struct, array_like=True, tag=71):
    """The global scheduler has chosen a node; it notifies the GCS before the node."""

    actor: bytes
    incarnation: int
    node: int


class ActorStarted(Struct, array_like=True, tag=72):
    """An actor has run its constructor and replayed its calls: it accepts new ones."""

    actor: bytes
    incarnation: int
    node: int
    replayed: int = 0


class ActorFailed(Struct, array_like=True, tag=73):
    """An actor has ended. ``final``: it may not restart, even if it has restarts left."""

    actor: bytes
    incarnation: int
    reason: Failure
    final: bool = False


class WatchActors(Struct, array_like=True, tag=74):
    """A node subscribes to these actors; answered at once and at every change."""

    actors: list[bytes]


class ActorChanged(Struct, array_like=True, tag=75):
    """``state``: see `actor_table`. ``reason``: why it is dead or restarts."""

    actor: bytes
    state: int
    node: int
    incarnation: int
    reason: Union[Failure, None] = None
    logged: bool = False
    """Whether its calls are logged."""


class ActorEnded(Struct, array_like=True, tag=204):
    """To an actor's owner: the actor is dead for good, and needs no inputs any more."""

    actor: bytes


class ActorCalls(Struct, array_like=True, tag=76):
    """Calls from the clients of one node, in order.

    ``early``: calls, without arguments, that wait for the reconstruction of the actor: the actor's
    node replies early to each that took effect before.
    """

    actor: bytes
    incarnation: int
    tasks: list[TaskSpec]
    early: list[TaskSpec] = []


class DirectOpen(Struct, array_like=True, tag=186):
    """From a worker to a driver: it takes direct calls of its actor; see `client.direct_calls`."""

    actor: bytes


class DirectCall(Struct, array_like=True, tag=187):
    """A call that the driver sends to the actor's worker itself."""

    task: TaskSpec


class DirectClosed(Struct, array_like=True, tag=188):
    """From a worker, or from the world if it has died: it answers no direct call any more."""


class CallsRan(Struct, array_like=True, tag=189):
    """Direct calls that a worker has answered, for its node's timeline; ``calls``: their arrays."""

    calls: list[bytes]
    timings: list[Timing]


class CancelCall(Struct, array_like=True, tag=169):
    """Cancel a call of an actor; see `cancellation`."""

    actor: bytes
    call: bytes


class DrainCalls(Struct, array_like=True, tag=150):
    """To the node of a dead actor: send the results of its calls that are not sent yet."""

    actor: bytes
    incarnation: int


class CallsDrained(Struct, array_like=True, tag=151):
    """The answer to `DrainCalls`: no further result of the actor's calls follows."""

    actor: bytes


class KillActor(Struct, array_like=True, tag=78):
    actor: bytes
    reason: Failure
    restart: bool = False
    """Whether the actor restarts if it has restarts left."""
    owner: str = ""
    """If not empty: only if this is still the actor's owner, and the actor is not detached."""
    graceful: bool = False
    """Whether the actor may finish its calls first: no handle to it is left."""


class StopActor(Struct, array_like=True, tag=79):
    """End this incarnation, or do not start it. ``restarts``: another incarnation follows.

    ``graceful``: the actor finishes the calls that it has begun, and its process exits by itself.
    """

    actor: bytes
    incarnation: int
    restarts: bool = False
    graceful: bool = False


class CallRecord(Struct, array_like=True, gc=False):
    """An edge of an actor's lineage: a call that took effect, and its result."""

    task: TaskSpec
    result: RangeResult
    values: tuple[ObjectValue, ...] = ()
    """Its inputs in order; small ones with their values."""


class LogCalls(Struct, array_like=True, tag=80):
    """Calls ``first``, ``first + 1`` ..., which took effect in this order."""

    actor: bytes
    incarnation: int
    first: int
    calls: list[CallRecord]


class CallsLogged(Struct, array_like=True, tag=81):
    """All calls below ``upto`` are in the actor's lineage."""

    actor: bytes
    incarnation: int
    upto: int


class SaveActor(Struct, array_like=True, tag=82):
    """The actor's state after its first ``upto`` calls."""

    actor: bytes
    incarnation: int
    upto: int
    state: bytes


class FetchLineage(Struct, array_like=True, tag=83):
    actor: bytes
    incarnation: int


class ActorLineage(Struct, array_like=True, tag=84):
    """A piece of an actor's lineage: a checkpoint, then the calls since.

    ``kept``: calls before the checkpoint whose results a client may still ask for.
    """

    actor: bytes
    incarnation: int
    upto: int
    """Calls that the checkpoint contains."""
    checkpoint: bytes
    """Empty: there is none, or an earlier piece contained it."""
    calls: list[CallRecord]
    kept: list[CallRecord]
    more: bool = False


class RestoreActor(Struct, array_like=True, tag=85):
    """To a worker, after the actor's constructor: restore the actor from this checkpoint."""

    state: bytes
    calls: int
    """The number of calls that the checkpoint contains."""


class ExitActor(Struct, array_like=True, tag=86):
    """The actor on this worker ends itself: running calls continue, and no further call begins."""

    reason: ActorDeath
    crashed: bool = False
    """Whether its process has crashed: then it restarts if it has restarts left."""


class FindActor(Struct, array_like=True, tag=87):
    """Look an actor up by name; with ``create``, create it if there is none."""

    key: int
    client: str
    namespace: str
    name: str
    create: Union[TaskSpec, None] = None
    job: bytes = b""
    """The client's job, which its node fills in. An empty ``namespace`` means the job's."""


class ActorFound(Struct, array_like=True, tag=88):
    """``actor`` is empty if there is none. ``created``: it was created for this request."""

    key: int
    client: str
    actor: bytes
    handle: bytes
    created: bool = False


ActorMessage = Union[
    CreateActors, ActorPlaced, ActorStarted, ActorFailed, WatchActors, ActorChanged, ActorEnded,
    ActorCalls, CancelCall, DrainCalls, CallsDrained, KillActor, StopActor, LogCalls,
    CallsLogged, SaveActor, FetchLineage, ActorLineage, RestoreActor, ExitActor, FindActor,
    ActorFound, DirectOpen, DirectCall, DirectClosed, CallsRan,
]  # fmt: skip
