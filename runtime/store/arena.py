"""The shared memory of one node.

An arena is an anonymous file in memory (``memfd_create``). It has **no name in
any filesystem**: it exists as long as a process has its descriptor or a mapping
of it, and the kernel frees it when the last of these is gone, however those
processes ended. So there is nothing to clean up, and nothing that a SIGKILL
could leave behind. It also means that only a process that was handed the
descriptor can reach it: no other user, no other job.

The file is sparse: capacity is address space, and only touched pages take
memory. Where memory runs out, it is at the touch of a page, and the kernel
decides who dies; choose the capacity accordingly. The file is sealed against
shrinking and growing, so no holder of the descriptor can pull pages from under
another one (which would be a SIGBUS there).

A process maps the arena twice: once to write, once with PROT_READ alone. What
readers get comes from the second: a write through it, even from C code that
ignores Python's read-only flag, hits the memory protection and not the object.
"""

from __future__ import annotations

import fcntl
import mmap
import os

_SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE


class Arena:
    """One process's access to a node's shared memory; see `create` and `attach`."""

    def __init__(self, fd: int, capacity: int) -> None:
        """Map `capacity` bytes of `fd`, which this object owns from here on."""
        # Bound before `_fd`, so that nothing is owned if the second one fails.
        writable = mmap.mmap(fd, capacity, mmap.MAP_SHARED, _READ_WRITE)
        readonly = mmap.mmap(fd, capacity, mmap.MAP_SHARED, mmap.PROT_READ)
        self._writable: memoryview | None = memoryview(writable)
        self._readonly: memoryview | None = memoryview(readonly)
        self._capacity = capacity
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
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SIZE_SEALS | fcntl.F_SEAL_SEAL)
            return cls(fd, capacity_bytes)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def attach(cls, fd: int) -> Arena:
        """Return the arena behind `fd`, a descriptor of another process's `fd`.

        The new object owns `fd` and closes it in `close`; pass ``os.dup(fd)`` to
        keep yours. Raises ValueError, and does not take `fd`, if it is not a
        file in memory of fixed size; OSError if it is not open.
        """
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        except OSError as error:
            os.fstat(fd)  # not open at all: that is an OSError of its own
            raise ValueError(f"descriptor {fd} is not a file in memory") from error
        if seals & _SIZE_SEALS != _SIZE_SEALS:
            raise ValueError(f"descriptor {fd} is not sealed against resizing")
        return cls(fd, os.fstat(fd).st_size)

    @property
    def fd(self) -> int:
        """The descriptor to hand to another process. Raises ValueError when closed."""
        if self._fd < 0:
            raise ValueError("the arena is closed")
        return self._fd

    @property
    def capacity(self) -> int:
        """Size in bytes; known after `close` too."""
        return self._capacity

    def writable(self, offset: int, size: int) -> memoryview:
        """Return `size` bytes at `offset` to write to (format ``B``).

        Raises ValueError if they are not all inside the arena, or it is closed.
        """
        return self._slice(self._writable, offset, size)

    def readonly(self, offset: int, size: int) -> memoryview:
        """Return `size` bytes at `offset` that nothing in this process can write through.

        What other processes, or `writable` here, write does show in it. Raises
        ValueError as `writable` does.
        """
        return self._slice(self._readonly, offset, size)

    def close(self) -> None:
        """Let go of the descriptor and the mappings; closing twice is fine.

        Views that are still alive, and arrays made of them, stay valid: a
        mapping is undone when its last view is gone, which is at once if there
        is none. New views are refused from here on.
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
        if offset < 0 or size < 0 or offset + size > self._capacity:
            raise ValueError(f"{size} bytes at {offset} are outside of {self._capacity}")
        return whole[offset : offset + size]

    def __repr__(self) -> str:
        state = f"fd={self._fd}" if self._fd >= 0 else "closed"
        return f"<Arena {self._capacity} bytes, {state}>"
