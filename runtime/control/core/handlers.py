"""Who takes which message: each part of a component says it, and one table has it all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

Handler = Callable[[str, Any], None]
"""Takes the address of a message's sender, and the message."""
Handlers = dict[type, Handler]


class Part(Protocol):
    """A part of a component that takes messages."""

    def handlers(self) -> Handlers:
        """Return the part's methods, by the message type that each takes."""


def handlers_of(*parts: Part) -> Handlers:
    """Return one table for all parts; no message type has two handlers."""
    table: Handlers = {}
    for part in parts:
        for kind, handler in part.handlers().items():
            assert kind not in table, f"{kind.__name__} has two handlers"
            table[kind] = handler
    return table
