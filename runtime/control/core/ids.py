"""Deterministic identifiers of tasks and objects.

A task's ID comes from its parent's ID and the parent's submission counter, an
object's ID from its task and return index. So a parent that is executed again
submits the same children, whose results are then found, not made twice.

This holds if a task that is executed again submits its children in the same order, as the paper
assumes. The counter alone distinguishes children, whatever their arguments.

========== ===== ==========================================================
ID         bytes made of
========== ===== ==========================================================
job        4     number of the job (u16), and of a detached actor in it (u16)
array ID   12    job + hash of the parent's task ID and its submission counter
task ID    16    array ID + index of the element (u32)
object ID  18    task ID + index of the return value (u16)
function   16    job + digest of its serialized form
========== ===== ==========================================================

So each ID contains its job, and two jobs never share an ID. A **detached actor** outlives its job:
the IDs of its tasks and objects are a *branch* of the job's, with a number of their own.

An actor's call that is replayed or sent again submits the same children, too. A thread that a task
has started submits in no fixed order: its submissions have the worker as parent (`root_task_id` of
its address), so each run has other IDs for them.

A task that raises and is retried has released the children of its failed try. So each try has
children with other IDs, on whichever worker it runs.

A single task is an array of one element. So is a `put`, whose ID comes from a separate counter.

A stream is a task whose values become objects one by one, while it runs. The task is element 0 of
its array, as for every single task. Item i that it yields is element ``STREAM_BASE + i`` of the
same array: the array is owned, found, copied and released as one, and a stream needs no table of
its own::

    worker ──StreamItems──> node ──TaskResults──> owner      an item at a time
    worker ──TasksDone────> node ──TaskResults──> owner      the number of items

Items arrive before the number of items, since both take the same path. An exception that the task
raises is its last item; a failure of the system is the result of element 0. A task that runs again
yields the same items again; the owner keeps the first ones.

An owner that runs again on another node asks for the same stream. The node of a task has its items
and forwards them, also those still to come (`ForwardResults`). The node of an actor remembers the
items of a call, which does not run again (`ReplyCache`). To reconstruct an item, the whole task
runs again; an item that this run does not yield is lost. All items live until no reference to any
of them is left.
"""

from __future__ import annotations

# The same as `hashlib.blake2b`, without the 2 MB of OpenSSL that come with it.
from _blake2 import blake2b
from functools import lru_cache

JOB_BYTES = 4
NUMBER_BYTES = 2
"""The length of a job's number, with which its ID begins."""
JOBS_MAX = 2**16 - 1
ARRAY_BYTES = 12
TASK_BYTES = 16
OBJECT_BYTES = 18

ELEMENTS_MAX = 2**31 - 1
STREAM_BASE = 2**31
"""Item i of a stream is element ``STREAM_BASE + i`` of its array."""
RETURNS_MAX = 2**16 - 1

_HASH_BYTES = ARRAY_BYTES - JOB_BYTES
_AT_ONCE = 64 // _HASH_BYTES
"""The number of hashes in the longest possible digest."""
FIRST = b"\0" * (OBJECT_BYTES - ARRAY_BYTES)
"""Behind an array's ID: the first value of its first element."""


def job_id(number: int, branch: int = 0) -> bytes:
    """Return the ID of a job, or of one of its detached actors.

    >>> job_id(1).hex(), job_id(1, 2).hex()
    ('00010000', '00010002')
    """
    return number.to_bytes(NUMBER_BYTES, "big") + branch.to_bytes(NUMBER_BYTES, "big")


def job_of(some_id: bytes) -> bytes:
    """Return the job that an array, task, object or function belongs to."""
    return some_id[:JOB_BYTES]


def job_number(some_id: bytes) -> int:
    """Return the number of the job that anything with an ID belongs to."""
    return int.from_bytes(some_id[:NUMBER_BYTES], "big")


def adopted(task: bytes, job: bytes) -> bytes:
    """Return the parent ID of a task's children if these belong to `job`.

    The ID of a call belongs to the caller's job, its children belong to the actor's.
    """
    return task if task[:JOB_BYTES] == job else job + task[JOB_BYTES:]


def array_id(parent: bytes, counter: int) -> bytes:
    """Return the ID of the `counter`-th submission of task `parent`."""
    at = counter % _AT_ONCE * _HASH_BYTES
    return parent[:JOB_BYTES] + _digests(parent, counter // _AT_ONCE)[at : at + _HASH_BYTES]


@lru_cache(maxsize=64)
def _digests(parent: bytes, block: int) -> bytes:
    """Return the hashes of several submissions: a long digest takes no longer than a short one."""
    return blake2b(parent + block.to_bytes(8, "big"), digest_size=_AT_ONCE * _HASH_BYTES).digest()


def put_id(parent: bytes, counter: int) -> bytes:
    """Return the array ID of the `counter`-th `put` of task `parent`."""
    return (
        parent[:JOB_BYTES]
        + blake2b(
            parent + counter.to_bytes(8, "big"),
            digest_size=ARRAY_BYTES - JOB_BYTES,
            person=b"put",
        ).digest()
    )


def root_task_id(nonce: str, job: bytes = job_id(1)) -> bytes:
    """Return the ID that a driver of `job`, or a worker outside its tasks, uses as a task's ID."""
    digest = blake2b(nonce.encode(), digest_size=TASK_BYTES - JOB_BYTES, person=b"driver")
    return job + digest.digest()


def task_id(array: bytes, index: int) -> bytes:
    """Return the ID of element `index` of `array`."""
    return array + index.to_bytes(4, "big")


def anew(task: bytes, tries: int) -> bytes:
    """Return the parent ID of a task's children in its n-th try, n > 0, after it has raised."""
    digest = blake2b(
        task + tries.to_bytes(8, "big"), digest_size=TASK_BYTES - JOB_BYTES, person=b"anew"
    )
    return task[:JOB_BYTES] + digest.digest()


def object_id(array: bytes, index: int, ret: int) -> bytes:
    """Return the ID of return value `ret` of element `index` of `array`."""
    if index == 0 and ret == 0:
        return array + FIRST
    return array + index.to_bytes(4, "big") + ret.to_bytes(2, "big")


def item_id(array: bytes, index: int) -> bytes:
    """Return the object ID of item `index` of a stream."""
    return object_id(array, STREAM_BASE + index, 0)


def split_object_id(oid: bytes) -> tuple[bytes, int, int]:
    """Return (array ID, element index, return index) of an object ID."""
    return (
        oid[:ARRAY_BYTES],
        int.from_bytes(oid[ARRAY_BYTES:TASK_BYTES], "big"),
        int.from_bytes(oid[TASK_BYTES:], "big"),
    )


def function_id(blob: bytes, job: bytes = job_id(1)) -> bytes:
    """Return the ID of a job's function: the digest of its serialized form."""
    digest = blake2b(blob, digest_size=TASK_BYTES - JOB_BYTES, person=b"function")
    return job + digest.digest()
