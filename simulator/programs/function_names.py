"""What stands for functions in their IDs: the same in each run of a seed, in any process.

The serialized form has more in it than that: a random ID of each class that travels by value, by
which its copies are known for one class, and sets in the order of hashes, which are each process's
own. In an ID of a function it would let each run be another execution: IDs choose shards. The
order in which functions are first serialized is the same in each run.
"""

from __future__ import annotations

from hashlib import blake2b

_DIGEST_BYTES = 16


class Functions:
    """The functions of one simulated cluster."""

    def __init__(self) -> None:
        self._known: dict[bytes, int] = {}
        """Numbers by digests of serialized forms, in the order in which those came."""

    def identity(self, blob: bytes) -> bytes:
        """Return what tells a function, whose serialized form is given, from all others."""
        digest = blake2b(blob, digest_size=_DIGEST_BYTES).digest()
        return self._known.setdefault(digest, len(self._known)).to_bytes(4, "big")
