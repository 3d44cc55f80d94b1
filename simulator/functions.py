"""What stands for functions in their IDs: the same in each run of a seed.

The serialized form of a class that travels by value has a random ID in it, by which its copies
are known for one class. In an ID of a function it would let each run be another execution: IDs
choose shards, and the IDs of children follow from them.
"""

from __future__ import annotations

import re

_CLASS_ID = re.compile(rb"[0-9a-f]{32}")


class Functions:
    """The functions of one simulated cluster."""

    def __init__(self) -> None:
        self._known: dict[bytes, list[bytes]] = {}
        """Serialized forms that differ in such IDs alone, in the order in which they came."""

    def identity(self, blob: bytes) -> bytes:
        """Return what tells a serialized function from all others, whatever was drawn for it."""
        plain = _CLASS_ID.sub(b"", blob)
        if plain == blob:
            return blob
        alike = self._known.setdefault(plain, [])
        if blob not in alike:
            alike.append(blob)
        return plain + alike.index(blob).to_bytes(4, "big")
