"""Deterministic identifiers of tasks and objects.

A task's ID comes from its parent's ID and the parent's submission counter, an
object's ID from its task and return index. So a parent that is executed again
submits the same children, whose results are then found, not made twice.

========== ===== ==========================================================
ID         bytes made of
========== ===== ==========================================================
array ID   12    hash of the parent's task ID and its submission counter
task ID    16    array ID + index of the element (u32)
object ID  18    task ID + index of the return value (u16)
========== ===== ==========================================================

What an actor's call submits or puts is not found again in another incarnation:
it was its worker's, and is released with it while the call runs once more. So it
has other IDs there (`anew`), all but calls and creations of actors, which must
not take effect twice.

A single task is an array of one element. A `put` is an array of one element
too, drawn from a counter of its own.
"""

from __future__ import annotations

from hashlib import blake2b

ARRAY_BYTES = 12
TASK_BYTES = 16
OBJECT_BYTES = 18

ELEMENTS_MAX = 2**31 - 1
STREAM_BASE = 2**31
"""Item i of what a task yields is element ``STREAM_BASE + i`` of its array."""
RETURNS_MAX = 2**16 - 1

_FIRST = b"\0" * (OBJECT_BYTES - ARRAY_BYTES)


def array_id(parent: bytes, counter: int) -> bytes:
    """Return the ID of the `counter`-th submission of task `parent`."""
    return blake2b(parent + counter.to_bytes(8, "big"), digest_size=ARRAY_BYTES).digest()


def put_id(parent: bytes, counter: int) -> bytes:
    """Return the array ID of the `counter`-th `put` of task `parent`."""
    return blake2b(
        parent + counter.to_bytes(8, "big"), digest_size=ARRAY_BYTES, person=b"put"
    ).digest()


def root_task_id(job: str) -> bytes:
    """Return the task ID that stands for the driver of `job`."""
    return blake2b(job.encode(), digest_size=TASK_BYTES, person=b"driver").digest()


def task_id(array: bytes, index: int) -> bytes:
    """Return the ID of element `index` of `array`."""
    return array + index.to_bytes(4, "big")


def anew(task: bytes, incarnation: int) -> bytes:
    """Return what tasks and puts take for their parent that `task`, a call, makes.

    `incarnation` is its actor's; 0, or what is no call: the task itself.
    """
    if not incarnation:
        return task
    return blake2b(
        task + incarnation.to_bytes(8, "big"), digest_size=TASK_BYTES, person=b"anew"
    ).digest()


def object_id(array: bytes, index: int, ret: int) -> bytes:
    """Return the ID of return value `ret` of element `index` of `array`."""
    if index == 0 and ret == 0:
        return array + _FIRST
    return array + index.to_bytes(4, "big") + ret.to_bytes(2, "big")


def split_object_id(oid: bytes) -> tuple[bytes, int, int]:
    """Return (array ID, element index, return index) of an object ID."""
    return (
        oid[:ARRAY_BYTES],
        int.from_bytes(oid[ARRAY_BYTES:TASK_BYTES], "big"),
        int.from_bytes(oid[TASK_BYTES:], "big"),
    )


def function_id(blob: bytes) -> bytes:
    """Return the ID of a function: the digest of its serialized form."""
    return blake2b(blob, digest_size=16, person=b"function").digest()
