"""What stands for functions in their IDs: the same in each run of a seed, in any process.

The serialized form has more in it than that: a random ID of each class that travels by value, by
which its copies are known for one class, and sets in the order of hashes, which are each process's
own. In an ID of a function it would let each run be another execution: IDs choose shards, and the
IDs of children follow from them.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from runtime.backend.session.recipes import of_value

_DIGEST_BYTES = 16


class Functions:
    """The functions of one simulated cluster."""

    def __init__(self) -> None:
        self._known: dict[bytes, list[bytes]] = {}
        """Digests of serialized forms that look alike, in the order in which they came."""

    def identity(self, function: Callable[..., Any], blob: bytes) -> bytes:
        """Return what tells a function, whose serialized form is given, from all others."""
        told = of_value(function, len(blob))
        alike = self._known.setdefault(told, [])
        digest = blake2b(blob, digest_size=_DIGEST_BYTES).digest()
        if digest not in alike:
            alike.append(digest)
        return told + alike.index(digest).to_bytes(4, "big")
