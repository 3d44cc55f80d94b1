"""The values that can be loaded, of several that were pickled together.

The values of consecutive elements of a range, or of a task with several return values, travel as
one pickle of a list: that is what makes short tasks cheap. Loading it is all or nothing, so one
value whose class refuses to be loaded would take its neighbours along, which belong to references
of their own. So what could not be loaded is loaded once more, here, by the unpickler that is
written in Python, step by step: a step that raises is noted and not the end, and what is made of
what it should have made is not made either. An element then raises what it would raise alone, and
the others are there, with what they share. User code is called a second time for it, as it would
be if each value travelled alone. Where nothing fails, nothing of this is in the way.

What depends on what is told by the pickle, not by what came out of it: ``len([broken])`` would be
a number. So nothing of a program's is ever called with a stand-in for a value. Loading is a stack
machine, which does not recurse, nor does this: values may be as deep as they like.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable
from types import FrameType, TracebackType
from typing import Any

_ALONE = pickle.APPEND + pickle.STOP
"""How the pickle of a list of one ends; a longer one ends in APPENDS."""

_SINCE_MARK = -1
_TUPLES = {pickle.TUPLE1: 1, pickle.TUPLE2: 2, pickle.TUPLE3: 3, pickle.TUPLE: _SINCE_MARK}
"""Steps that make a tuple of so many things on the stack."""
_MAKE = {
    pickle.FROZENSET: _SINCE_MARK,
    pickle.STACK_GLOBAL: 2,
    pickle.EXT1: 0,
    pickle.EXT2: 0,
    pickle.EXT4: 0,
    pickle.REDUCE: 2,
    pickle.NEWOBJ: 2,
    pickle.NEWOBJ_EX: 3,
}
"""Steps that make something else of them, for which user code may be called."""
_CHANGE = {
    pickle.APPEND: 1,
    pickle.APPENDS: _SINCE_MARK,
    pickle.SETITEM: 2,
    pickle.SETITEMS: _SINCE_MARK,
    pickle.ADDITEMS: _SINCE_MARK,
    pickle.BUILD: 1,
}
"""Steps that put so many things on the stack into what is below them. A dict or set asks its
items for their hash, which may be user code, too."""
_UNKNOWN = (
    pickle.LIST, pickle.DICT, pickle.INST, pickle.OBJ, pickle.GLOBAL, pickle.PERSID,
    pickle.BINPERSID,
)  # fmt: skip
"""What would need care as well, and no pickle of protocol 5 has in it."""
_ATOMS = frozenset((int, float, complex, bool, str, bytes, type(None)))
"""Of what many may be one and the same object, and which are made of nothing that can fail."""


class _Unloadable:
    """In place of a value that cannot be loaded: why."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


class PartlyLoaded(list[Any]):
    """Values of which some cannot be loaded: asking for one of those raises why."""

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        for each in found if isinstance(index, slice) else (found,):
            if type(each) is _Unloadable:
                error = each.error
                # The traceback would keep the neighbours alive.
                del self, found, each
                try:
                    raise error
                finally:
                    del error
        return found


def load_apart(
    pickled: bytes | memoryview,
    buffers: Iterable[Any],
    error: Exception,
    as_raised: Callable[[Exception], Exception] = lambda error: error,
) -> list[Any]:
    """Return the list in a pickle that could not be loaded because of `error`.

    Asked for one of its values that cannot be loaded, the list raises what `as_raised` makes of
    what was raised. Raises that of `error` where no value is there but the one that failed, and
    where the list itself cannot be loaded, because it is no pickle, say.
    """
    unpickler = found = None
    try:
        if bytes(pickled[-len(_ALONE) :]) != _ALONE:
            unpickler = _Unpickler(io.BytesIO(pickled), buffers=buffers)
            found = unpickler.load_list()
            _clear_frames(unpickler.broken.values())
        if found is None:
            raise as_raised(error)
        return PartlyLoaded(
            value if why is None else _Unloadable(as_raised(why)) for value, why in found
        )
    finally:
        del pickled, buffers, error, unpickler, found  # a traceback would keep them alive


class _Unpickler(pickle._Unpickler):
    """Goes on behind a step that raises, and knows what that has broken."""

    stack: list[Any]
    metastack: list[list[Any]]
    """The stacks below the marks."""
    pop_mark: Callable[[], list[Any]]

    def __init__(self, file: io.BytesIO, *, buffers: Iterable[Any]) -> None:
        super().__init__(file, buffers=buffers)
        self.broken: dict[int, Exception] = {}
        """Why things cannot be loaded, by identity."""
        self._wholes: dict[int, list[Any]] = {}
        """What was made of a thing, or changed by it: broken if that thing is broken, which may
        turn out later, since things that refer to one another are used before they are done."""
        self._kept: list[Any] = []
        """All whose identities are noted: else something else could have them."""
        self._called: tuple[Any, tuple[Any, ...]] = None, ()
        """What the last call has left, and its arguments."""

    def load_list(self) -> list[tuple[Any, Exception | None]] | None:
        """Return what there is of a list, and why it cannot be loaded; None if it is no list."""
        try:
            found = self.load()
        except Exception:
            return None  # and the first error stands for all: it says what is wrong
        if type(found) is not list:
            return None
        return [(value, self.broken.get(id(value))) for value in found]

    def take_step(self, load: Callable[[Any], None], count: int, changes: bool) -> None:
        """Have `load` take a step which takes `count` things from the stack.

        It pushes one, or `changes` the one below.
        """
        since_mark = count == _SINCE_MARK
        below = self.metastack[-1] if since_mark else self.stack
        left = len(below) if since_mark else len(below) - count
        if changes and left == 1 and (self.metastack[0] if self.metastack else below) is below:
            load(self)  # the list of all values: what is broken in it does not break it
            return
        parts = list(self.stack) if since_mark else below[left:]
        whole = below[left - 1] if changes else None
        involved = [whole, *parts] if changes else parts
        error = self._why(involved)
        if error is None:
            try:
                load(self)
            except Exception as raised:
                error = _without_frames(raised)
        if error is None:
            self._note(below[-1], parts)
        else:
            if since_mark and self.stack is not below:
                self.pop_mark()
            del below[left:]
            if not changes:
                whole = _Unloadable(error)
                below.append(whole)
            self._break(whole, error)
        if not changes:
            self._called = below[-1], parts[-1] if parts and type(parts[-1]) is tuple else ()

    def make_tuple(self, load: Callable[[Any], None], count: int) -> None:
        """Have `load` make a tuple. Of what is broken, too: what it begins with is asked for."""
        parts = self.stack[:] if count == _SINCE_MARK else self.stack[-count:]
        load(self)
        self._note(self.stack[-1], parts)
        error = self._why(parts)
        if error is not None:
            self._break(self.stack[-1], error)

    def take_back(self, load: Callable[[Any], None]) -> None:
        """Have `load` pop what is on the stack.

        A class or function of cloudpickle's, and what has a `state_setter`, is given its state
        by a call, whose own value is popped: that has changed it, or it is broken.
        """
        last = self.stack[-2:]
        load(self)
        made, arguments = self._called
        if len(last) == 2 and arguments and last[0] is arguments[0] and last[1] is made:
            self._note(last[0], list(arguments[1:]))
            error = self._why([made])
            if error is not None:
                self._break(last[0], error)

    def _why(self, things: list[Any]) -> Exception | None:
        """Return why the first of them that is broken cannot be loaded."""
        return next((self.broken[id(each)] for each in things if id(each) in self.broken), None)

    def _note(self, whole: Any, parts: list[Any]) -> None:
        if type(whole) in _ATOMS:
            return
        for part in parts:
            if type(part) not in _ATOMS:
                self._kept.append(part)
                self._wholes.setdefault(id(part), []).append(whole)

    def _break(self, thing: Any, error: Exception) -> None:
        """Note why something cannot be loaded, and what was made of it already."""
        left = [thing]
        while left:
            thing = left.pop()
            if id(thing) not in self.broken:
                self._kept.append(thing)
                self.broken[id(thing)] = error
                left += self._wholes.get(id(thing), ())


def _without_frames(error: Exception) -> Exception:
    """Return an error with the traceback that it has when pickle's C calls what raises it."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None and _is_ours(trace.tb_frame):
        trace = trace.tb_next
    return error.with_traceback(trace)


def _clear_frames(errors: Iterable[Exception]) -> None:
    """Have errors keep nothing alive that only the loading of the values has referred to.

    A frame in a traceback has those that called it, also when they have returned.
    """
    for error in errors:
        trace = error.__traceback__
        frame = None if trace is None else trace.tb_frame.f_back
        while frame is not None and _is_ours(frame) and frame.f_code is not load_apart.__code__:
            frame.clear()
            frame = frame.f_back


def _is_ours(frame: FrameType) -> bool:
    return frame.f_globals is globals() or frame.f_globals is vars(pickle)


def _steps() -> dict[int, Callable[[Any], None]]:
    """Return what each opcode has done."""
    steps = dict(_Unpickler.dispatch)
    for opcode in _UNKNOWN:
        del steps[opcode[0]]
    ways: list[tuple[dict[bytes, int], Callable[..., Callable[[Any], None]]]] = [
        (_TUPLES, lambda load, count: lambda self: self.make_tuple(load, count)),
        (_MAKE, lambda load, count: lambda self: self.take_step(load, count, changes=False)),
        (_CHANGE, lambda load, count: lambda self: self.take_step(load, count, changes=True)),
        ({pickle.POP: 1}, lambda load, _: lambda self: self.take_back(load)),
    ]
    for counts, way in ways:
        for opcode, count in counts.items():
            steps[opcode[0]] = way(steps[opcode[0]], count)
    return steps


_Unpickler.dispatch = _steps()
