"""What stands for a dependency's value among serialized arguments."""

from __future__ import annotations

from typing import Any


class Input:
    """Stands in serialized arguments for the value of a dependency."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    def __reduce__(self) -> Any:
        return Input, (self.index,)
