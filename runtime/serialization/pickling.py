"""The pickler of both worlds, and the classes that stand in for values in a pickle.

`Input` stands in serialized arguments for the value of a dependency. `Frames` are the values of a
task with several return values, which travel in one message. Loading a pickle is all or nothing,
and each value belongs to a reference of its own. So each value is a **frame**, a pickle of its own:
a program loads it when it reads it, and an error concerns that value alone.

The results of consecutive elements of an array are one pickle nevertheless, which makes short tasks
cheap: if a class travels by value, each frame would contain the class, which takes 30 times as
long. An element that cannot be loaded also fails the other elements of its message.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType
from typing import Any

import cloudpickle

SHARED_BYTES_MIN = 2048
"""The smallest array that is read in the object store without a copy, bytes. Smaller ones are
copied, since a separate buffer takes longer than the copies."""

_PROTOCOL = 5
_BY_CLOUDPICKLE = (type, FunctionType)
"""The types that cloudpickle may send by value: functions and classes, also of metaclasses."""


class Pickler(cloudpickle.Pickler):
    """cloudpickle's pickler, made faster for values of many parts."""

    def __init__(self, file: Any, buffers: Callable[[pickle.PickleBuffer], Any] | None) -> None:
        # A dict, since pickling looks up each object's class: a microsecond in a ChainMap.
        self.dispatch_table = dict(copyreg.dispatch_table)
        for table in reversed(cloudpickle.Pickler.dispatch_table.maps):
            self.dispatch_table.update(table)
        self.dispatch_table[CodeType] = _reduce_code
        super().__init__(file, _PROTOCOL, buffer_callback=buffers)

    def reducer_override(self, obj: Any) -> Any:
        if issubclass(type(obj), _BY_CLOUDPICKLE):
            return super().reducer_override(obj)
        return NotImplemented


def _reduce_code(code: CodeType) -> Any:
    """Send the file's name along, which cloudpickle 3.1.3 omits: tracebacks need it."""
    make, args = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return _make_code, (code.co_filename, make, args)


def _make_code(filename: str, make: Callable[..., CodeType], args: tuple[Any, ...]) -> CodeType:
    return make(*args).replace(co_filename=filename)


class Input:
    """Stands in serialized arguments for the value of a dependency."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    def __reduce__(self) -> Any:
        return Input, (self.index,)


class Frames:
    """Values, each a pickle of its own, which is loaded when the program reads it, and may raise.

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
