"""IDs as programs see them: of jobs, nodes, actors and tasks."""

from __future__ import annotations

from typing import Any, Self

from raytwin.runtime.api.modules import says_what_is_missing


@says_what_is_missing("ID")
class BaseID:
    """Bytes of a fixed length; two of one class are equal if their bytes are."""

    __slots__ = ("_id",)
    SIZE = 16

    def __init__(self, id: bytes) -> None:
        self._id = id

    @classmethod
    def from_hex(cls, digits: str) -> Self:
        """Return the ID that is written so."""
        return cls(bytes.fromhex(digits))

    @classmethod
    def nil(cls) -> Self:
        """Return the ID of nothing."""
        return cls(b"\xff" * cls.SIZE)

    def is_nil(self) -> bool:
        """Whether it is the ID of nothing."""
        return self._id == b"\xff" * len(self._id)

    def binary(self) -> bytes:
        """Return the bytes."""
        return self._id

    def hex(self) -> str:
        """Return them in hexadecimal."""
        return self._id.hex()

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, BaseID) and other._id == self._id

    def __hash__(self) -> int:
        return hash(self._id)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._id.hex()})"

    def __reduce__(self) -> Any:
        return type(self), (self._id,)


class JobID(BaseID):
    """The ID of a job, 4 bytes."""

    __slots__ = ()
    SIZE = 4


class ActorID(BaseID):
    """The ID of an actor, 12 bytes."""

    __slots__ = ()
    SIZE = 12


class NodeID(BaseID):
    """The ID of a node: its number in decimal, as in `nodes()`."""

    __slots__ = ()

    def hex(self) -> str:
        """Return what `nodes()` and strategies call the node."""
        return self._id.decode()

    @classmethod
    def from_hex(cls, digits: str) -> NodeID:
        """Return the ID of the node that is called so."""
        return cls(digits.encode())

    def __repr__(self) -> str:
        return f"NodeID({'nil' if self.is_nil() else self.hex()})"


class TaskID(BaseID):
    """The ID of a task, 16 bytes."""

    __slots__ = ()
