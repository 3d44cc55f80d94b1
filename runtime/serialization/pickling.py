"""What both worlds' pickles have in common: the pickler, and the classes that stand in for values.

`Input` stands in serialized arguments for the value of a dependency. `Frames` are the values of a
task with several return values, which travel in one message. Loading a pickle is all or nothing,
and each value belongs to a reference of its own. So each is a **frame**, a pickle of its own, which
is loaded when a program reads it and fails alone.

The results of consecutive elements of an array are one pickle nevertheless: that makes short tasks
cheap. Frames of objects whose class travels by value have the class in each, which takes 30 times
as long. An element that cannot be loaded fails those that came in one message with it.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import cloudpickle

SHARED_BYTES_MIN = 2048
"""Arrays of so many bytes are read in the object store, where they are; smaller ones are copied
out of it, since a buffer of its own takes longer than the copies."""

_PROTOCOL = 5
_BY_CLOUDPICKLE = (type, FunctionType)
"""What cloudpickle may send by value: functions and classes, metaclasses' too."""


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


class Input:
    """Stands in serialized arguments for the value of a dependency."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    def __reduce__(self) -> Any:
        return Input, (self.index,)


class Frames:
    """Values, each a pickle of its own, which is loaded, and may raise, when it is read.

    `frames` has a pickle and its out-of-band buffers for each value.
    """

    __slots__ = ("_frames",)

    def __init__(self, frames: list[tuple[bytes, list[Any]]]) -> None:
        self._frames = frames

    def __reduce__(self) -> Any:
        return Frames, (self._frames,)

    def __getitem__(self, index: int) -> Any:
        frame, buffers = self._frames[index]
        return pickle.loads(frame, buffers=buffers)


def framed(
    values: Sequence[Any], pickler: pickle.Pickler, file: io.BytesIO, buffers: list[Any]
) -> Frames:
    """Return values as frames, pickled by a pickler that writes to `file` and `buffers`."""
    frames = []
    for value in values:
        pickler.clear_memo()
        pickler.dump(value)
        frames.append((file.getvalue(), buffers[:]))
        file.seek(0)
        file.truncate()
        buffers.clear()
    return Frames(frames)
