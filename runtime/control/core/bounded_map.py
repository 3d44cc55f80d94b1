"""A mapping of a bounded size, which forgets its oldest entries.

Components use it to remember finished tasks, calls and the like, in case a message about them
arrives late.

Cost: constant. Entries go into the newer of two dictionaries; when that has half of the limit,
it becomes the older one, and the older one is dropped. With a single dictionary each insertion
would delete the first entry, and Python walks over the slots of all deleted ones to find it.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any, TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class BoundedMap(MutableMapping[K, V]):
    """Has at least the last ``limit // 2`` entries that were put, and at most ``limit``.

    A key that is put again counts as put last; to look one up does not change its place.
    Iteration is from the oldest entry on. ``limit`` is 2 or more.
    """

    def __init__(self, limit: int) -> None:
        assert limit >= 2
        self._half = limit // 2
        self._newer: dict[K, V] = {}
        self._older: dict[K, V] = {}

    def __setitem__(self, key: K, value: V) -> None:
        newer = self._newer
        if key in newer:
            del newer[key]
        else:
            self._older.pop(key, None)
        newer[key] = value
        if len(newer) >= self._half:
            self._older, self._newer = newer, {}

    def __getitem__(self, key: K) -> V:
        newer = self._newer
        return newer[key] if key in newer else self._older[key]

    @overload
    def get(self, key: K, /) -> V | None: ...
    @overload
    def get(self, key: K, /, default: V | D) -> V | D: ...
    def get(self, key: K, /, default: Any = None) -> Any:
        """Return an entry, or `default`; the mixin's `get` raises and catches an error for it."""
        newer = self._newer
        return newer[key] if key in newer else self._older.get(key, default)

    def __delitem__(self, key: K) -> None:
        if key in self._newer:
            del self._newer[key]
        else:
            del self._older[key]

    def __contains__(self, key: object) -> bool:
        return key in self._newer or key in self._older

    def __iter__(self) -> Iterator[K]:
        yield from self._older
        yield from self._newer

    def __len__(self) -> int:
        return len(self._older) + len(self._newer)
