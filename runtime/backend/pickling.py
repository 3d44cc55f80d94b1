"""What both worlds' pickles have in common: which arrays are shared, and how deep values go.

pickle recurses into a value, two levels of the interpreter's for each of a list or dict and
three for each of an object: with the limit of 1,000 that a program is given, lists go 490
deep. Loading does not recurse. So what is too deep is written once more with a higher limit,
as far as the stack of a thread carries it.
"""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

SHARED_BYTES_MIN = 2048
"""Arrays of so many bytes are read in the object store, where they are; smaller ones are copied
out of it, since a buffer of its own takes longer than the copies."""
MORE_LEVELS = 2_000
"""Of recursion, beyond the program's own limit. A level of the pickler's in C takes less than
1 KB of a stack, of which a thread has 8 MB."""

_lock = threading.Lock()
_inside = 0
"""Threads that pickle with the higher limit. It is one for all threads of a process."""
_own = 0
_raised = 0
"""The program's limit, and what it was raised to."""


def dig(write: Callable[[], T]) -> T:
    """Return `write()`, which pickles; call it again with a higher limit if it was too deep.

    Raises what `write` raises, a RecursionError or PicklingError if it is still too deep.
    """
    try:
        return write()
    except (RecursionError, pickle.PicklingError) as error:
        # cloudpickle makes one of the other.
        if not (isinstance(error, RecursionError) or isinstance(error.__cause__, RecursionError)):
            raise
    with _deeper():
        return write()


@contextmanager
def _deeper() -> Iterator[None]:
    """Have a higher limit of recursion: as long as any thread is in here."""
    global _inside, _own, _raised
    with _lock:
        if not _inside:
            _own = sys.getrecursionlimit()
            _raised = _own + MORE_LEVELS
            sys.setrecursionlimit(_raised)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            # Unless the program has set another one meanwhile.
            if not _inside and sys.getrecursionlimit() == _raised:
                sys.setrecursionlimit(_own)
