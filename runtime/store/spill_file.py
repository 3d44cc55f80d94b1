"""Where a node's evicted objects are on disk: one file without a name.

The file is made with O_TMPFILE, so no directory ever lists it and the kernel
gives its space back when the last process that has it open is gone, however
that ended. Where a file system cannot do that, the file is made in a directory
of its own (mode 0700) and both names are removed before anything is written.

Objects lie at multiples of a block, and the space of one that is freed is given
back at once by punching a hole. A file system without holes keeps the space for
the next object instead.

Nothing is synced: what is on disk is of no use to anyone once the node is gone.
Not safe for use by several threads at a time, except `fd`.
"""

from __future__ import annotations

import ctypes
import errno
import os

from raytwin.runtime.store.allocator import Allocator

BLOCK_BYTES = 4096
PIECE_BYTES = 8 << 20
"""Written or read by one system call, so that a stop is not held up for long."""
_SPAN_BYTES = 1 << 50
"""Offsets there are: the file is sparse, and the disk is full long before."""
_FALLOC_FL_KEEP_SIZE = 1
_FALLOC_FL_PUNCH_HOLE = 2
_WITHOUT_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class SpillFile:
    """Objects by place (an offset in the file).

    Raises OSError if no file can be made in `directory`.
    """

    def __init__(self, directory: str) -> None:
        self.fd = _open_nameless(directory)
        self._allocator = Allocator(_SPAN_BYTES)
        self._holes = True

    def write(self, data: memoryview) -> int:
        """Write an object and return its place.

        Raises OSError (disk full, above all); nothing is kept then.
        """
        place = self._allocator.allocate(_blocks(data.nbytes))
        assert place >= 0, "more was written than any disk holds"
        at = 0
        try:
            while at < data.nbytes:
                at += os.pwrite(self.fd, data[at : at + PIECE_BYTES], place + at)
        except OSError:
            self.free(place, data.nbytes)
            raise
        return place

    def read(self, place: int, into: memoryview) -> None:
        """Fill `into` with the object at `place`. Raises OSError."""
        at = 0
        while at < into.nbytes:
            count = os.preadv(self.fd, [into[at : at + PIECE_BYTES]], place + at)
            if not count:
                raise OSError(errno.EIO, "the spill file is shorter than it was")
            at += count

    def free(self, place: int, nbytes: int) -> None:
        """Give an object's space back."""
        if self._holes:
            mode = _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE
            # Before others may have the place.
            failed = _libc.fallocate(self.fd, mode, place, _blocks(nbytes))
            if failed and ctypes.get_errno() == errno.EOPNOTSUPP:
                # Not here: its space is for the next object, or for the end.
                self._holes = False
        self._allocator.free(place)

    @property
    def used(self) -> int:
        """Bytes that objects take, in whole blocks."""
        return self._allocator.used

    def close(self) -> None:
        """Give everything back; closing twice is fine."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def _blocks(nbytes: int) -> int:
    """Return `nbytes` rounded up to whole blocks."""
    return -(-nbytes // BLOCK_BYTES) * BLOCK_BYTES


def _open_nameless(directory: str) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        return os.open(directory, flags | os.O_TMPFILE | os.O_EXCL, 0o600)
    except OSError as error:
        if error.errno not in _WITHOUT_TMPFILE or not os.path.isdir(directory):
            raise
    return _open_and_unlink(directory)


def _open_and_unlink(directory: str) -> int:
    # Loaded by the first node that needs its disk.
    import shutil
    import tempfile

    own = tempfile.mkdtemp(prefix="raytwin-", dir=directory)  # mode 0700
    try:
        path = os.path.join(own, "spilled")
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL, 0o600)
    finally:
        shutil.rmtree(own)
