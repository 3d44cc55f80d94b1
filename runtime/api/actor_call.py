"""A call of an actor's method, apart from its arguments: what a handle knows of it."""

from __future__ import annotations

from typing import Any

from raytwin.runtime.api.options.method_options import STREAMING
from raytwin.runtime.control.messages import STREAM, TaskExtra


class ActorCall:
    """What a call is, apart from its arguments."""

    __slots__ = (
        "actor", "extra", "hold", "limited", "method", "name", "num_returns", "pending_max",
        "rebuilt", "retries", "retry_exceptions", "returns",
    )  # fmt: skip

    def __init__(
        self,
        actor: bytes,
        hold: bytes,
        method: str,
        name: str,
        num_returns: int | str,
        retries: int,
        rebuilt: bool,
        retry_exceptions: Any = False,
        pending_max: int = 0,
    ) -> None:
        self.actor = actor
        stream = STREAM if num_returns == STREAMING else 0
        self.extra = TaskExtra(call=actor, method=method, stream=stream)
        """The same for every call."""
        self.hold = hold
        """The object that stands for the actor being alive."""
        self.method = method
        self.name = name
        self.num_returns = num_returns
        self.returns = num_returns if isinstance(num_returns, int) else 1
        """How many values the call itself has, besides the items of a stream."""
        self.retries = retries
        self.rebuilt = rebuilt
        """The actor may restart, and then takes the call's inputs once more."""
        self.retry_exceptions = retry_exceptions
        self.pending_max = pending_max
        """How many calls of one caller may be pending; 0: any number."""
        self.limited = bool(pending_max or retry_exceptions)
        """There is something to look after at each call: see `pending_calls`."""
