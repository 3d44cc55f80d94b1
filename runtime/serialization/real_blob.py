"""A value of a given size without contents, in real bytes.

Programs that study data movement (locality, striping, eviction) care about the size
of their objects and not about the contents. `Blob` gives them memory of that size
that was really written. The simulator has a virtual class of the same name, so
programs are the same on both.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, SupportsIndex

_FILL = 0xA5  # not zero: pages of zeros may be left out, merged or compressed away


class Blob:
    """`nbytes` bytes of memory, every page of them touched.

    Two blobs are equal if they have the same size. A blob is written to the object
    store once and read there without a copy. Raises ValueError if `nbytes` is
    negative.
    """

    __slots__ = ("_bytes",)

    def __init__(self, nbytes: int) -> None:
        if nbytes < 0:
            raise ValueError(f"nbytes must not be negative, got {nbytes}")
        import numpy as np  # imported late, as in `serialization`

        self._bytes = np.full(nbytes, _FILL, np.uint8)

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return self._bytes.nbytes

    def __eq__(self, other: object) -> bool:
        return self.nbytes == other.nbytes if isinstance(other, Blob) else NotImplemented

    def __hash__(self) -> int:
        return hash((Blob, self.nbytes))

    def __repr__(self) -> str:
        return f"Blob({self.nbytes})"

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Callable[..., Blob], tuple[Any, ...]]:
        if int(protocol) < 5:  # as in copy.copy, which has no out-of-band buffers
            return Blob, (self.nbytes,)
        return _over, (pickle.PickleBuffer(self._bytes.data),)


def _over(buffer: Any) -> Blob:
    """Return the blob whose bytes are `buffer`, without a copy."""
    import numpy as np

    blob = object.__new__(Blob)
    blob._bytes = np.frombuffer(buffer, np.uint8)
    return blob
