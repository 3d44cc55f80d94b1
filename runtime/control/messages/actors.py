"""Actors: where they are, calls of them, and what they are rebuilt from."""

from __future__ import annotations

from typing import Union

from msgspec import Struct

from raytwin.runtime.control.messages.common import ObjectValue, RangeResult, TaskSpec
from raytwin.runtime.control.messages.errors import ActorDeath, Failure


class CreateActors(Struct, array_like=True, tag=70):
    """Put these into the actor table and have them started somewhere."""

    tasks: list[TaskSpec]


class ActorPlaced(Struct, array_like=True, tag=71):
    """The global scheduler has chosen a node; said before the node hears of it."""

    actor: bytes
    incarnation: int
    node: int


class ActorStarted(Struct, array_like=True, tag=72):
    """An actor has run its constructor and replayed its calls: it takes new ones."""

    actor: bytes
    incarnation: int
    node: int
    replayed: int = 0


class ActorFailed(Struct, array_like=True, tag=73):
    """An actor is gone. ``final``: it may not start again, whatever its restarts."""

    actor: bytes
    incarnation: int
    reason: Failure
    final: bool = False


class WatchActors(Struct, array_like=True, tag=74):
    """Tell me where these are, now and whenever that changes."""

    actors: list[bytes]


class ActorChanged(Struct, array_like=True, tag=75):
    """``state``: see `actor_table`. ``reason``: why it is dead or restarts."""

    actor: bytes
    state: int
    node: int
    incarnation: int
    reason: Union[Failure, None] = None
    logged: bool = False
    """Its calls are logged."""


class ActorCalls(Struct, array_like=True, tag=76):
    """Calls from the clients of one node, in order.

    ``early``: calls that wait for the actor to be reconstructed, without arguments: the actor's
    node replies to one that took effect before.
    """

    actor: bytes
    incarnation: int
    tasks: list[TaskSpec]
    early: list[TaskSpec] = []


class CancelCall(Struct, array_like=True, tag=169):
    """A call of an actor is not wanted any more; see `cancellation`."""

    actor: bytes
    call: bytes


class DrainCalls(Struct, array_like=True, tag=150):
    """To the node of an actor that is dead: send what is left to send of its calls."""

    actor: bytes
    incarnation: int


class CallsDrained(Struct, array_like=True, tag=151):
    """Every result of the actor's calls that will ever come has come."""

    actor: bytes


class KillActor(Struct, array_like=True, tag=78):
    actor: bytes
    reason: Failure
    restart: bool = False
    """Start again if it has restarts left."""
    owner: str = ""
    """Not empty: only if this is still the actor's owner, and it is not detached."""
    graceful: bool = False
    """Nobody can call it any more: it may leave in good order."""


class StopActor(Struct, array_like=True, tag=79):
    """End this incarnation, or forget that it was to start. ``again``: another one follows.

    ``graceful``: what it has begun it ends, and its process leaves in good order.
    """

    actor: bytes
    incarnation: int
    again: bool = False
    graceful: bool = False


class CallRecord(Struct, array_like=True, gc=False):
    """An edge of an actor's lineage: a call that took effect, and its result."""

    task: TaskSpec
    result: RangeResult
    values: tuple[ObjectValue, ...] = ()
    """Its inputs in order; small ones with their value."""


class LogCalls(Struct, array_like=True, tag=80):
    """Calls ``first``, ``first + 1`` ... that took effect, in this order."""

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
    """A piece of what an actor is rebuilt from: a checkpoint, then calls.

    ``kept``: calls before the checkpoint whose results may still be asked for.
    """

    actor: bytes
    incarnation: int
    upto: int
    """Calls that the checkpoint contains."""
    checkpoint: bytes
    """Empty: none, or it came with an earlier piece."""
    calls: list[CallRecord]
    kept: list[CallRecord]
    more: bool = False


class RestoreActor(Struct, array_like=True, tag=85):
    """To a worker, after the creation: take this state instead."""

    state: bytes
    calls: int
    """How many calls it contains."""


class ExitActor(Struct, array_like=True, tag=86):
    """The actor on this worker ends itself: no call begins any more, those that run go on."""

    reason: ActorDeath
    crashed: bool = False
    """Its process has crashed: it starts again if it has restarts left."""


class FindActor(Struct, array_like=True, tag=87):
    """Look an actor up by name; with ``create``, make it if there is none."""

    key: int
    client: str
    namespace: str
    name: str
    create: Union[TaskSpec, None] = None
    job: bytes = b""
    """The client's, as its node knows; its namespace is meant by an empty one."""


class ActorFound(Struct, array_like=True, tag=88):
    """``actor`` is empty: there is none. ``created``: it was made just now."""

    key: int
    client: str
    actor: bytes
    handle: bytes
    created: bool = False


ActorMessage = Union[
    CreateActors, ActorPlaced, ActorStarted, ActorFailed, WatchActors, ActorChanged, ActorCalls,
    CancelCall, DrainCalls, CallsDrained, KillActor, StopActor, LogCalls,
    CallsLogged, SaveActor, FetchLineage, ActorLineage, RestoreActor, ExitActor, FindActor,
    ActorFound,
]  # fmt: skip
