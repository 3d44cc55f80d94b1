"""The shared memory of one node, and the file for what finds no room in it.

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

Beside it there is a file on disk, which has no name either (`create_file`). The node writes evicted
objects to it, and allocates those objects in it that find no room in memory: their offsets begin at
`IN_FILE`. A process maps the file when it first reads or writes such an object. It is sparse, too;
the node reserves the blocks of an object beforehand, as a write through a mapping cannot
fail when the disk is full: it would be a SIGBUS.

A process maps the arena twice: once to write, once with PROT_READ alone. Readers
get views of the second mapping: a write through it, even from C code that
ignores Python's read-only flag, hits the memory protection and not the object.
"""

from __future__ import annotations

import fcntl
import mmap
import os

from raytwin.runtime.control.messages import IN_FILE

_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
FILE_BYTES = 1 << 42
"""The size of the file: address space, as the arena's capacity; file systems allow 16 TiB."""


def create_file(directory: str) -> int:
    """Return the descriptor of a new, sparse file without a name.

    Raises OSError if it cannot be made in `directory`.
    """
    import tempfile  # not loaded by workers

    with tempfile.TemporaryFile(prefix="raytwin-", dir=directory, buffering=0) as file:
        os.ftruncate(file.fileno(), FILE_BYTES)
        return os.dup(file.fileno())


class Arena:
    """One process's access to a node's shared memory and file; see `create` and `attach`."""

    def __init__(self, fd: int, capacity: int, file: int = -1) -> None:
        """Map `capacity` bytes of `fd`; the arena owns both descriptors from here on."""
        writable = mmap.mmap(fd, capacity, mmap.MAP_SHARED, _READ_WRITE)
        readonly = mmap.mmap(fd, capacity, mmap.MAP_SHARED, mmap.PROT_READ)
        self._writable: memoryview | None = memoryview(writable)
        self._readonly: memoryview | None = memoryview(readonly)
        self.capacity = capacity
        """Size in bytes, also after `close`."""
        self._fd = fd
        self._file = file
        self._file_maps: dict[int, memoryview] = {}
        """Mappings of the file, by protection."""

    @classmethod
    def create(cls, capacity_bytes: int, directory: str = "") -> Arena:
        """Return a new arena, all zeros and sparse, with a file in `directory` if there is one.

        Its descriptors are not inherited across exec. Raises ValueError if
        `capacity_bytes` is not positive, OSError if the kernel or the disk has no room.
        """
        if capacity_bytes <= 0:
            raise ValueError(f"capacity must be positive, got {capacity_bytes}")
        fd = os.memfd_create("raytwin-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, capacity_bytes)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
            return cls(fd, capacity_bytes, create_file(directory) if directory else -1)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def attach(cls, fd: int, file: int = -1) -> Arena:
        """Return the arena behind `fd` and `file`, descriptors of another process's `fds`.

        The new arena owns them and closes them in `close`; pass ``os.dup(fd)`` to
        keep yours. Raises OSError if `fd` is not open.
        """
        return cls(fd, os.fstat(fd).st_size, file)

    @property
    def fd(self) -> int:
        """The descriptor, for another process. Raises ValueError when closed."""
        if self._fd < 0:
            raise ValueError("the arena is closed")
        return self._fd

    @property
    def file(self) -> int:
        """The descriptor of the file. Raises ValueError if there is none, or it is closed."""
        if self._file < 0:
            raise ValueError("the arena has no file, or is closed")
        return self._file

    @property
    def fds(self) -> tuple[int, ...]:
        """The descriptors for another process's `attach`."""
        return (self.fd,) if self._file < 0 else (self.fd, self._file)

    def locate(self, offset: int) -> tuple[int, int]:
        """Return the descriptor behind an offset, and the position there."""
        return (self.fd, offset) if offset < IN_FILE else (self.file, offset - IN_FILE)

    def writable(self, offset: int, size: int) -> memoryview:
        """Return `size` bytes at `offset` to write to (format ``B``).

        Raises ValueError if they are not all inside the arena, or the arena is closed.
        """
        return self._slice(self._writable, offset, size, _READ_WRITE)

    def readonly(self, offset: int, size: int) -> memoryview:
        """Return `size` bytes at `offset` that nothing in this process can write through.

        Writes of other processes, and through `writable` here, show in it. Raises
        ValueError as `writable` does.
        """
        return self._slice(self._readonly, offset, size, mmap.PROT_READ)

    def close(self) -> None:
        """Close the descriptors and the mappings; closing twice is fine.

        Views that are still alive, and arrays made of them, stay valid: a
        mapping ends with its last view, or at once if there is none. The arena
        gives no new views.
        """
        self._writable = self._readonly = None
        self._file_maps = {}
        fds, self._fd, self._file = (self._fd, self._file), -1, -1
        for fd in fds:
            if fd >= 0:
                os.close(fd)

    def __del__(self) -> None:
        if hasattr(self, "_file_maps"):  # else `__init__` failed, and owns nothing
            self.close()

    def _slice(
        self, whole: memoryview | None, offset: int, size: int, protection: int
    ) -> memoryview:
        if whole is None:
            raise ValueError("the arena is closed")
        if offset >= IN_FILE:
            start = offset - IN_FILE
            return self._mapped_file(protection)[start : start + size]
        # Slicing would clip silently and count negative offsets from the end.
        if offset < 0 or size < 0 or offset + size > self.capacity:
            raise ValueError(f"{size} bytes at {offset} are outside of {self.capacity}")
        return whole[offset : offset + size]

    def _mapped_file(self, protection: int) -> memoryview:
        mapped = self._file_maps.get(protection)
        if mapped is None:
            area = mmap.mmap(self.file, FILE_BYTES, mmap.MAP_SHARED, protection)
            mapped = self._file_maps[protection] = memoryview(area)
        return mapped
