"""Numbers in place of serialized functions in function IDs: the same in each run of a seed.

The serialized form differs between runs: it contains a random ID for each class that travels by
value, and sets in the order of hashes. IDs choose shards, so a function ID that was computed from
it would change the execution. The order in which functions are first serialized is the same in
each run.
"""

from __future__ import annotations

from hashlib import blake2b

_DIGEST_BYTES = 16


class Functions:
    """The functions of one simulated cluster."""

    def __init__(self) -> None:
        self._known: dict[bytes, int] = {}
        """By digest of the serialized form: numbers in order of first occurrence."""

    def identity(self, blob: bytes) -> bytes:
        """Return the bytes that identify the function with this serialized form."""
        digest = blake2b(blob, digest_size=_DIGEST_BYTES).digest()
        return self._known.setdefault(digest, len(self._known)).to_bytes(4, "big")
