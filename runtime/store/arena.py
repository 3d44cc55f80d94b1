"""The shared memory of one node.

An arena is an anonymous file in memory (``memfd_create``). It has **no name in
any filesystem**: it exists as long as a process has its descriptor or a mapping
of it, and the kernel frees it when the last of these is gone, however those
processes ended. So there is nothing to clean up, and a SIGKILL leaves nothing
behind. Only a process that has the descriptor can reach the arena: no other
user, no other job.

The file is sparse: capacity is address space, and only touched pages take
memory. Memory can run out when a page is touched, and then the kernel
decides which process dies; choose the capacity accordingly. The file is sealed against
shrinking and growing, so no process can pull pages from under another one (which would
be a SIGBUS there).

A process maps the arena twice: once to write, once with PROT_READ alone. Readers
get views of the second mapping: a write through it, even from C code that
ignores Python's read-only flag, hits the memory protection and not the object.
"""

from __future__ import annotations

import fcntl
import mmap
import os

_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE


class Arena:
    """One process's access to a node's shared memory; see `create` and `attach`."""

    def __init__(self, fd: int, capacity: int) -> None:
        """Map `capacity` bytes of `fd`, which the arena owns from here on."""
        writable = mmap.mmap(fd, capacity, mmap.MAP_SHARED, _READ_WRITE)
        readonly = mmap.mmap(fd, capacity, mmap.MAP_SHARED, mmap.PROT_READ)
        self._writable: memoryview | None = memoryview(writable)
        self._readonly: memoryview | None = memoryview(readonly)
        self.capacity = capacity
        """Size in bytes, also after `close`."""
        self._fd = fd

    @classmethod
    def create(cls, capacity_bytes: int) -> Arena:
        """Return a new arena, all zeros and sparse.

        Its descriptor is not inherited across exec. Raises ValueError if
        `capacity_bytes` is not positive, OSError if the kernel has no room.
        """
        if capacity_bytes <= 0:
            raise ValueError(f"capacity must be positive, got {capacity_bytes}")
        fd = os.memfd_create("raytwin-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, capacity_bytes)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
            return cls(fd, capacity_bytes)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def attach(cls, fd: int) -> Arena:
        """Return the arena behind `fd`, a descriptor of another process's `fd`.

        The new arena owns `fd` and closes it in `close`; pass ``os.dup(fd)`` to
        keep yours. Raises OSError if `fd` is not open.
        """
        return cls(fd, os.fstat(fd).st_size)

    @property
    def fd(self) -> int:
        """The descriptor, for another process. Raises ValueError when closed."""
        if self._fd < 0:
            raise ValueError("the arena is closed")
        return self._fd

    def writable(self, offset: int, size: int) -> memoryview:
        """Return `size` bytes at `offset` to write to (format ``B``).

        Raises ValueError if they are not all inside the arena, or the arena is closed.
        """
        return self._slice(self._writable, offset, size)

    def readonly(self, offset: int, size: int) -> memoryview:
        """Return `size` bytes at `offset` that nothing in this process can write through.

        Writes of other processes, and through `writable` here, show in it. Raises
        ValueError as `writable` does.
        """
        return self._slice(self._readonly, offset, size)

    def close(self) -> None:
        """Close the descriptor and the mappings; closing twice is fine.

        Views that are still alive, and arrays made of them, stay valid: a
        mapping ends with its last view, or at once if there is none. The arena
        gives no new views.
        """
        self._writable = self._readonly = None
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        if hasattr(self, "_fd"):  # else `__init__` failed, and owns nothing
            self.close()

    def _slice(self, whole: memoryview | None, offset: int, size: int) -> memoryview:
        if whole is None:
            raise ValueError("the arena is closed")
        # Slicing would clip silently and count negative offsets from the end.
        if offset < 0 or size < 0 or offset + size > self.capacity:
            raise ValueError(f"{size} bytes at {offset} are outside of {self.capacity}")
        return whole[offset : offset + size]
