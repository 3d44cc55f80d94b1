"""The classes of IDs that programs see: of jobs, nodes, actors and tasks."""

from __future__ import annotations

from typing import Any, Self

from raytwin.runtime.api.modules import explains_missing_attributes


@explains_missing_attributes("ID")
class BaseID:
    """An ID of a fixed length; two IDs of one class are equal if their bytes are."""

    __slots__ = ("_id",)
    SIZE = 16

    def __init__(self, id: bytes) -> None:
        self._id = id

    @classmethod
    def from_hex(cls, digits: str) -> Self:
        """Return the ID of these hexadecimal digits."""
        return cls(bytes.fromhex(digits))

    @classmethod
    def nil(cls) -> Self:
        """Return the nil ID, which names nothing."""
        return cls(b"\xff" * cls.SIZE)

    def is_nil(self) -> bool:
        """Whether this is the nil ID."""
        return self._id == b"\xff" * len(self._id)

    def binary(self) -> bytes:
        """Return the bytes."""
        return self._id

    def hex(self) -> str:
        """Return the bytes in hexadecimal."""
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
        """Return the node's ID as `nodes()` and scheduling strategies write it."""
        return self._id.decode()

    @classmethod
    def from_hex(cls, digits: str) -> NodeID:
        """Return the ID of the node with this number."""
        return cls(digits.encode())

    def __repr__(self) -> str:
        return f"NodeID({'nil' if self.is_nil() else self.hex()})"


class TaskID(BaseID):
    """The ID of a task, 16 bytes."""

    __slots__ = ()
