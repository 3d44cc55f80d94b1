"""Jobs: a driver comes in by its node's door, says who it is, and ends; see the page of `node`."""

from __future__ import annotations

from typing import Union

from msgspec import Struct


class JobInfo(Struct, array_like=True):
    """A row of the job table."""

    number: int
    """0: it is to be given one."""
    driver: str = ""
    """The address of its client."""
    node: int = 0
    pid: int = 0
    namespace: str = ""
    entrypoint: str = ""
    alive: bool = True
    started_s: float = 0.0
    ended_s: float = 0.0
    reason: str = ""
    """Why it has ended."""


class RegisterJob(Struct, array_like=True, tag=165):
    """A driver is at the door of its node; answered by `JobRegistered`."""

    info: JobInfo
    key: int


class JobRegistered(Struct, array_like=True, tag=166):
    """``info.number`` is 0 if there are no numbers left."""

    info: JobInfo
    key: int


class DescribeJob(Struct, array_like=True, tag=167):
    """A driver says what of its job only it knows."""

    namespace: str
    entrypoint: str
    pid: int
    job: bytes = b""
    """As its node knows."""


class JobEnded(Struct, array_like=True, tag=168):
    """A driver, or a detached actor, is gone: nothing of its job is wanted any more."""

    job: bytes
    reason: str
    kept: list[bytes] = []
    """Functions of it, and of jobs before, that detached actors are made by."""


JobMessage = Union[
    RegisterJob, JobRegistered, DescribeJob, JobEnded,
]  # fmt: skip
