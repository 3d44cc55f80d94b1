"""Values in virtual time: serialized as elsewhere, except blobs, which only claim their size.

A blob takes its bytes in a message, whose size is a cost, and none in a simulated store.
"""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from hashlib import blake2b
from typing import Any

from raytwin.runtime.serialization import serialization
from raytwin.runtime.serialization.serialization import Serialized

_DIGEST_BYTES = 16

_claimed_bytes = 0
"""Total size of the blobs that `_claiming` has pickled; only one thread uses it."""

_blobs: ContextVar[list[Blob] | None] = ContextVar("blobs", default=None)
"""Blobs of the value that `read` is loading."""


class Blob:
    """A value of ``nbytes`` bytes that takes memory in messages alone."""

    __slots__ = ("__weakref__", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Blob) and other.nbytes == self.nbytes

    def __hash__(self) -> int:
        return hash((Blob, self.nbytes))

    def __repr__(self) -> str:
        return f"Blob({self.nbytes})"

    def __reduce__(self) -> Any:
        global _claimed_bytes
        _claimed_bytes += self.nbytes
        return _blob, (self.nbytes,)


def _blob(nbytes: int) -> Blob:
    blob = Blob(nbytes)
    loading = _blobs.get()
    if loading is not None:
        loading.append(blob)
    return blob


def serialize(value: Any) -> Serialized:
    """As in `serialization`; blobs count with the bytes that they claim."""
    if type(value) is bytes:
        # Bytes of any size stay in the pickle: reading copies them on every backend.
        return Serialized(pickle.dumps(value, 5))
    if type(value) is list and value and not [each for each in value if each is not None]:
        # Long ranges of tasks that return None are common, and cloudpickle is slower.
        return Serialized(pickle.dumps(value, 5))
    return _claiming(serialization.serialize, value)


def serialize_values(values: list[Any]) -> Serialized:
    """As in `serialization`; blobs count with the bytes that they claim."""
    return _claiming(serialization.serialize_values, values)


class _Claiming(Serialized):
    """A value with blobs: as long as they claim in a message, but not in a simulated store."""

    __slots__ = ("_claimed_bytes", "_written")

    def __init__(self, written: Serialized, claimed_bytes: int) -> None:
        self.cloudpickled = written.cloudpickled
        self.contained = written.contained
        self.nbytes = written.nbytes + claimed_bytes
        self._written = written
        self._claimed_bytes = claimed_bytes

    def to_bytes(self) -> bytes:
        # Whoever reads it ignores what follows the pickle.
        return self.stored() + bytes(self._claimed_bytes)

    def stored(self) -> bytes:
        return self._written.to_bytes()


def stored(value: Serialized) -> bytes:
    """Return the form in which a simulated store keeps a value, which `read` reads."""
    return value.stored() if isinstance(value, _Claiming) else value.to_bytes()


def _claiming(write: Callable[[Any], Serialized], value: Any) -> Serialized:
    global _claimed_bytes
    _claimed_bytes = 0
    serialized = write(value)
    return _Claiming(serialized, _claimed_bytes) if _claimed_bytes else serialized


def read(payload: bytes, on_release: Callable[[], None]) -> Any:
    """Return the value of a payload in the store.

    `on_release` is called exactly once: when the last array or blob of the value has been
    collected (on a real backend these are views of the store's memory); or before `read`
    returns or raises, if the value has none.
    """
    blobs: list[Blob] = []
    left = 2  # the arrays count as one, and the loading as another

    def released() -> None:
        nonlocal left
        left -= 1
        if not left:
            on_release()

    outer = _blobs.set(blobs)
    try:
        value = serialization.deserialize(payload, released)
        left += len(blobs)
        for blob in blobs:
            weakref.finalize(blob, released).atexit = False
        return value
    finally:
        _blobs.reset(outer)
        blobs.clear()
        released()


class Functions:
    """Numbers the functions of a cluster, so that function IDs are the same in each run.

    The serialized form of a function differs between runs: it contains a random ID for each
    class that travels by value, and sets in the order of hashes. Function IDs choose shards,
    so IDs computed from it would change the execution. The order in which functions are
    first serialized is the same in each run.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, int] = {}
        """By digest of the serialized form: the function's number."""

    def identity(self, blob: bytes) -> bytes:
        """Return the bytes that identify the function with this serialized form."""
        digest = blake2b(blob, digest_size=_DIGEST_BYTES).digest()
        return self._known.setdefault(digest, len(self._known)).to_bytes(4, "big")
