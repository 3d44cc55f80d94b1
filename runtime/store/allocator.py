"""Assigns parts of the arena to objects: arithmetic on offsets, which touches no memory.

Theory of operation
-------------------
The first touch of a page of shared memory makes the kernel find, zero and map
it, and costs tens of times what a copy into a touched ("warm") page costs. So
the allocator keeps a *high-water mark*: every byte below it was allocated
before and is warm, no byte above it was. The allocator serves a request from

1. the smallest free region below the mark that fits (best fit, lowest offset);
2. else from the mark upwards, starting in the free region that ends at the mark
   if there is one, so that as few pages as possible are touched anew.

The allocator merges free neighbours at once, so two free regions never touch, and when
all is free again there is one region of `Allocator.capacity` bytes.

Allocations are aligned to 64 bytes, a cache line and the widest vector register.
Large objects are *not* aligned to pages: an object's header comes before its
arrays, so an aligned start would not align the data; copies of 1 MB and more
ran equally fast at page offsets 0, 64 and 192; and page alignment would leave
slivers of up to a page between objects.

A lookup is a bisection or a dictionary access: O(log n) in the number of free
regions, plus the shift of a list of that length when one comes or goes.
"""

from __future__ import annotations

from bisect import bisect_left, insort

ALIGNMENT = 64
"""Offsets and sizes of allocations are multiples of this, bytes."""


def aligned(nbytes: int) -> int:
    """Return `nbytes` rounded up to a multiple of `ALIGNMENT`."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Allocator:
    """Allocates offsets 0 to `capacity` (bytes, rounded down to `ALIGNMENT`).

    Raises ValueError if there is not room for one aligned allocation.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < ALIGNMENT:
            raise ValueError(f"capacity must be at least {ALIGNMENT} bytes, got {capacity}")
        self.capacity = capacity // ALIGNMENT * ALIGNMENT
        """The size of the arena, bytes."""
        self.used = 0
        """Bytes allocated now, each allocation rounded up to `ALIGNMENT`."""
        self.high_water = 0
        """Bytes at the front of the arena that were allocated at least once."""
        self._taken: dict[int, int] = {}  # offset -> size of an allocation
        # The free regions below the mark, in three indexes that change together.
        self._free: dict[int, int] = {}  # offset -> size
        self._free_by_end: dict[int, int] = {}  # end -> offset
        self._free_by_size: list[tuple[int, int]] = []  # sorted (size, offset)

    def allocate(self, size: int) -> int:
        """Allocate `size` bytes; return their offset, or -1 if there is no room.

        Raises ValueError unless `size` is positive.
        """
        if size <= 0:
            raise ValueError(f"size must be positive, got {size}")
        need = aligned(size)
        index = bisect_left(self._free_by_size, (need, 0))
        if index < len(self._free_by_size):
            room, offset = self._free_by_size[index]
            self._remove_free(offset, room)
            if room > need:
                self._add_free(offset + need, room - need)
        else:
            offset = self._tail_start()
            if offset + need > self.capacity:
                return -1
            if offset < self.high_water:
                self._remove_free(offset, self.high_water - offset)
            assert offset + need > self.high_water, "a warm region fitted and was not taken"
            self.high_water = offset + need
        self._taken[offset] = need
        self.used += need
        return offset

    def free(self, offset: int) -> None:
        """Free the allocation at `offset`.

        Raises ValueError, and changes nothing, if no allocation begins at `offset`
        (freed twice, or inside of an allocation).
        """
        size = self._taken.pop(offset, None)
        if size is None:
            raise ValueError(f"nothing is allocated at offset {offset}")
        self.used -= size
        start, end = offset, offset + size
        before = self._free_by_end.get(start)
        if before is not None:
            self._remove_free(before, start - before)
            start = before
        after = self._free.get(end)
        if after is not None:
            self._remove_free(end, after)
            end += after
        self._add_free(start, end - start)
        assert end <= self.high_water, "freed what was never allocated"

    def _tail_start(self) -> int:
        """Return the start of the free region that reaches up to the capacity."""
        return self._free_by_end.get(self.high_water, self.high_water)

    def _add_free(self, offset: int, size: int) -> None:
        self._free[offset] = size
        self._free_by_end[offset + size] = offset
        insort(self._free_by_size, (size, offset))

    def _remove_free(self, offset: int, size: int) -> None:
        del self._free[offset]
        del self._free_by_end[offset + size]
        del self._free_by_size[bisect_left(self._free_by_size, (size, offset))]
