"""What both worlds' pickles have in common: how deep, and which arrays are shared.

pickle recurses into a value, two levels of the interpreter's for each of a list or
dict and three for each of an object: with the limit of 1,000 that a program is given, lists go
490 deep. Loading does not recurse. So what is too deep is written once more with a higher limit,
as far as the stack of a thread carries it.
"""

from __future__ import annotations

import copyreg
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any, TypeVar

import cloudpickle

T = TypeVar("T")

SHARED_BYTES_MIN = 2048
"""Arrays of so many bytes are read in the object store, where they are; smaller ones are copied
out of it, since a buffer of its own takes longer than the copies."""
MORE_LEVELS = 2_000
"""Of recursion, beyond the program's own limit. A level of the pickler's in C takes less than
1 KB of a stack, of which a thread has 8 MB."""

_PROTOCOL = 5
_BY_CLOUDPICKLE = (type, FunctionType)
"""Of what cloudpickle looks whether it travels by value: classes, metaclasses' too."""

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


class Pickler(cloudpickle.Pickler):
    """cloudpickle's, in less time for values of many parts."""

    def __init__(self, file: Any, buffers: Callable[[pickle.PickleBuffer], Any] | None) -> None:
        # Every object's class is looked up in it: in a ChainMap that takes a microsecond.
        self.dispatch_table = dict(copyreg.dispatch_table)
        for table in reversed(cloudpickle.Pickler.dispatch_table.maps):
            self.dispatch_table.update(table)
        super().__init__(file, _PROTOCOL, buffer_callback=buffers)

    def reducer_override(self, obj: Any) -> Any:
        if issubclass(type(obj), _BY_CLOUDPICKLE):
            return super().reducer_override(obj)
        return NotImplemented
