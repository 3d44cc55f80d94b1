"""What both worlds' pickles have in common: once, how deep, and which arrays are shared.

**Once.** A worker writes a value twice: as it travels, and in a form that is the same when it
runs again (`session.recipes`); and what turns out to be large a third time, alone. What user code
makes of an object (`__reduce__`, `__getstate__`) is kept meanwhile (`Once`) and used again.

**Depth.** pickle recurses into a value, two levels of the interpreter's for each of a list or
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
from contextvars import ContextVar
from types import FunctionType
from typing import Any, TypeVar

import cloudpickle

from runtime.api.refs import ObjectRef

T = TypeVar("T")

SHARED_BYTES_MIN = 2048
"""Arrays of so many bytes are read in the object store, where they are; smaller ones are copied
out of it, since a buffer of its own takes longer than the copies."""
MORE_LEVELS = 2_000
"""Of recursion, beyond the program's own limit. A level of the pickler's in C takes less than
1 KB of a stack, of which a thread has 8 MB."""

_PROTOCOL = 5
_ASKED = ("__reduce_ex__", "__reduce__", "__getstate__", "__getnewargs_ex__", "__getnewargs__")
_NO_ITEMS = (None, None)
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


class Reductions:
    """What objects were reduced to, by identity: they are asked once."""

    def __init__(self) -> None:
        self._made: dict[int, Any] = {}
        self._objects: list[Any] = []
        """Kept: else another one could have the identity."""

    def of(self, obj: Any, table: dict[type, Callable[[Any], Any]]) -> Any:
        """Return what an object is reduced to: a string or tuple, as pickle wants it.

        `table` has the reducers of classes. Raises what reducing it raises.
        """
        made = self._made.get(id(obj))
        if made is None:
            reduce = table.get(type(obj))
            made = obj.__reduce_ex__(_PROTOCOL) if reduce is None else reduce(obj)
            if len(made) > 3 and type(made) is tuple and made[3:] != _NO_ITEMS:
                made = _Made(list(part) if _is_iterator(part) else part for part in made)
            self._made[id(obj)] = made
            self._objects.append(obj)
        if type(made) is _Made:
            items = (iter(part) if type(part) is list else part for part in made[3:5])
            return *made[:3], *items, *made[5:]
        return made


class _Made(tuple[Any, ...]):
    """What has iterators, as lists: they can be had once."""


reductions: ContextVar[Reductions | None] = ContextVar("reductions", default=None)
"""Where pickling a value looks, and notes, what its objects are reduced to."""


class Once:
    """Entered, it has objects reduced once, however often they are pickled in there.

    A class, since one that `contextmanager` makes of a generator takes four times as long: as long
    as it takes to pickle a small value.
    """

    __slots__ = ("_outer",)

    def __enter__(self) -> None:
        self._outer = reductions.set(Reductions())

    def __exit__(self, *exc: object) -> None:
        reductions.reset(self._outer)


class Pickler(cloudpickle.Pickler):
    """cloudpickle's, in less time for values of many parts."""

    def __init__(self, file: Any, buffers: Callable[[pickle.PickleBuffer], Any] | None) -> None:
        # Every object's class is looked up in it: in a ChainMap that takes a microsecond.
        self.dispatch_table = dict(copyreg.dispatch_table)
        for table in reversed(cloudpickle.Pickler.dispatch_table.maps):
            self.dispatch_table.update(table)
        self.made = reductions.get()
        # Whoever writes a reference has to hear of it each time.
        self.as_it_is: set[type] = {ObjectRef}
        super().__init__(file, _PROTOCOL, buffer_callback=buffers)

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind in self.as_it_is:
            return NotImplemented
        if issubclass(kind, _BY_CLOUDPICKLE):
            return super().reducer_override(obj)
        if self.made is not None and not self.asks_nobody(kind):
            return self.made.of(obj, self.dispatch_table)
        self.as_it_is.add(kind)
        return NotImplemented

    def asks_nobody(self, kind: type) -> bool:
        """Whether reducing objects of a class calls nothing of a program's."""
        return (
            all(getattr(kind, name, None) is getattr(object, name, None) for name in _ASKED)
            and not issubclass(kind, list | dict)
            and kind not in self.dispatch_table
        )


def _is_iterator(part: Any) -> bool:
    return hasattr(type(part), "__next__")
