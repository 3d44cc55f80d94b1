"""A set of integers kept as disjoint ranges: which elements of an array are done.

`Ranges.add` costs O(log n) to find and O(1) amortized to merge; elements that
finish roughly in order keep n near 1.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class Ranges:
    """Disjoint, non-adjacent half-open ranges in order."""

    __slots__ = ("_ends", "_starts", "size")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self.size = 0
        """How many integers are in the set."""

    def __contains__(self, index: int) -> bool:
        at = bisect_right(self._starts, index) - 1
        return at >= 0 and index < self._ends[at]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield (start, count) of each range in order."""
        return iter([(s, e - s) for s, e in zip(self._starts, self._ends, strict=True)])

    def add(self, start: int, count: int) -> int:
        """Add ``start .. start + count`` and return how many were new."""
        end = start + count
        # All ranges that touch or overlap [start, end] become one.
        low = bisect_left(self._ends, start)
        high = bisect_right(self._starts, end)
        if low == high:
            self._starts.insert(low, start)
            self._ends.insert(low, end)
            self.size += count
            return count
        old = 0
        for at in range(low, high):
            old += self._ends[at] - self._starts[at]
        start = min(start, self._starts[low])
        end = max(end, self._ends[high - 1])
        if high - low == 1:
            self._starts[low] = start
            self._ends[low] = end
        else:
            self._starts[low:high] = [start]
            self._ends[low:high] = [end]
        new = end - start - old
        self.size += new
        return new

    def remove(self, start: int, count: int) -> int:
        """Remove ``start .. start + count`` and return how many were in the set; O(n)."""
        end = start + count
        low = bisect_right(self._ends, start)
        high = bisect_left(self._starts, end)
        if low >= high:
            return 0
        old = sum(self._ends[at] - self._starts[at] for at in range(low, high))
        starts, ends = [], []
        if self._starts[low] < start:
            starts.append(self._starts[low])
            ends.append(start)
        if self._ends[high - 1] > end:
            starts.append(end)
            ends.append(self._ends[high - 1])
        self._starts[low:high] = starts
        self._ends[low:high] = ends
        gone = old - sum(e - s for s, e in zip(starts, ends, strict=True))
        self.size -= gone
        return gone

    def overlaps(self, start: int, count: int) -> bool:
        """Whether any of ``start .. start + count`` is in the set."""
        at = bisect_right(self._ends, start)
        return at < len(self._starts) and self._starts[at] < start + count

    def missing(self, start: int, count: int) -> list[tuple[int, int]]:
        """Return (start, count) of the gaps within ``start .. start + count``."""
        end = start + count
        gaps = []
        at = bisect_right(self._ends, start)
        while start < end:
            if at == len(self._starts) or self._starts[at] >= end:
                gaps.append((start, end - start))
                break
            if self._starts[at] > start:
                gaps.append((start, self._starts[at] - start))
            start = self._ends[at]
            at += 1
        return gaps
