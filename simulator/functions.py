"""What stands for functions in their IDs: the same in each run of a seed.

The serialized form of a class that travels by value has a random ID in it, by which its copies
are known for one class. In an ID of a function it would let each run be another execution: IDs
choose shards, and the IDs of children follow from them. Sets among a function's constants are
written in the order of hashes, each process's own, unless PYTHONHASHSEED is set: that stays.
"""

from __future__ import annotations

import re
from hashlib import blake2b

_CLASS_ID = re.compile(rb"[0-9a-f]{32}")


class Functions:
    """The functions of one simulated cluster."""

    def __init__(self) -> None:
        self._known: dict[bytes, list[bytes]] = {}
        """Of serialized forms that differ in such IDs alone digests, in the order in which they
        came; by the digest of what is alike."""

    def identity(self, blob: bytes) -> bytes:
        """Return what tells a serialized function from all others, whatever was drawn for it."""
        plain = _CLASS_ID.sub(b"", blob)
        if plain == blob:
            return blob
        alike = self._known.setdefault(_digest(plain), [])
        digest = _digest(blob)
        if digest not in alike:
            alike.append(digest)
        return plain + alike.index(digest).to_bytes(4, "big")


def _digest(blob: bytes) -> bytes:
    return blake2b(blob, digest_size=16).digest()
