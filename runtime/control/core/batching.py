"""Cutting a long list into messages of a bounded length.

A call with its arguments and result is short (values above ``inline_bytes_max`` are in the object
store), but there may be many: the calls that wait for an actor to start, or the log from which an
actor is rebuilt. They are sent in messages of `PIECE_BYTES`, so that no other message waits long
behind one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from raytwin.runtime.control.core.call_batches import args_bytes
from raytwin.runtime.control.messages import CallRecord, TaskSpec

PIECE_BYTES = 8 << 20
"""The size of one message; a single item that is longer is a message of its own."""
ITEM_BYTES = 500
"""The size of a call without its arguments, as a Python object."""

T = TypeVar("T")


def task_bytes(task: TaskSpec) -> int:
    """Return roughly how long a call is in a message, and in memory."""
    return ITEM_BYTES + args_bytes(task)


def record_bytes(record: CallRecord) -> int:
    """Return roughly how long a logged call is in a message, and in memory."""
    size = 2 * ITEM_BYTES + len(record.task.args) + len(record.result.payload)
    for value in record.values:
        size += len(value.payload) + 100
    return size


def cut(items: list[T], weigh: Callable[[T], int], bytes_max: int = PIECE_BYTES) -> list[list[T]]:
    """Return the items in order in pieces of at most `bytes_max`, none of them empty.

    >>> cut([3, 4, 9, 1, 1], lambda item: item, 8)
    [[3, 4], [9], [1, 1]]
    """
    if len(items) <= 1:
        return [items] if items else []
    pieces: list[list[T]] = []
    room = 0
    for item in items:
        size = weigh(item)
        if size > room or not pieces:
            pieces.append([])
            room = bytes_max
        pieces[-1].append(item)
        room -= size
    return pieces
