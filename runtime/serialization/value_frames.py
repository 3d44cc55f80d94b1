"""The values of a task with several return values, which travel in one message.

Loading a pickle is all or nothing, and each value belongs to a reference of its own. So each is a
**frame**, a pickle of its own, which is loaded when it is asked for and fails alone.

The results of consecutive elements of an array are one pickle nevertheless: that makes short tasks
cheap. Frames of objects whose class travels by value have the class in each, which takes 30 times
as long. An element that cannot be loaded fails those that came in one message with it.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any


class Frames:
    """Values, each a pickle of its own: asked for one, it loads that one and raises what it raises.

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
