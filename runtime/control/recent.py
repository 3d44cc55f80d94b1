"""A mapping that remembers what was put last, and forgets the rest, at a constant cost.

Two dictionaries: what comes goes into the newer, and when that has half of the limit it
becomes the older, and the older is gone. So it has at least the last half, and at most all,
of the limit. One dictionary whose first entry is deleted for each that comes would be
simpler, but finding the first gets slower with every one deleted: Python leaves its place
empty until the dictionary grows. With 65,536 entries that was half of what the GCS did.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(MutableMapping[K, V]):
    """The last entries, by key; a key that is set again is as good as new."""

    def __init__(self, limit: int) -> None:
        assert limit >= 2
        self._half = limit // 2
        self._newer: dict[K, V] = {}
        self._older: dict[K, V] = {}

    def __setitem__(self, key: K, value: V) -> None:
        self._older.pop(key, None)
        self._newer[key] = value
        if len(self._newer) >= self._half:
            self._older, self._newer = self._newer, {}

    def __getitem__(self, key: K) -> V:
        newer = self._newer
        return newer[key] if key in newer else self._older[key]

    def __delitem__(self, key: K) -> None:
        if key in self._newer:
            del self._newer[key]
        else:
            del self._older[key]

    def __contains__(self, key: object) -> bool:
        return key in self._newer or key in self._older

    def __iter__(self) -> Iterator[K]:
        """From the oldest on."""
        yield from self._older
        yield from self._newer

    def __len__(self) -> int:
        return len(self._older) + len(self._newer)
