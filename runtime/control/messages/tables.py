"""The GCS's key-value table, the history of finished tasks, and its rows on disk."""

from __future__ import annotations

from typing import Union

from msgspec import Struct


class KvPut(Struct, array_like=True, tag=90):
    """Set a key; answered by `KvReply` with the client's number of the ``request``."""

    key: bytes
    value: bytes
    request: int
    client: str = ""


class KvGet(Struct, array_like=True, tag=91):
    key: bytes
    request: int
    client: str = ""


class KvReply(Struct, array_like=True, tag=93):
    """``value``: the key's value, or, after a put, its value before; None: it had none."""

    request: int
    client: str
    value: Union[bytes, None]


class FindTask(Struct, array_like=True, tag=94):
    """Ask for the record of a finished array of tasks; answered by `TaskFound`."""

    array: bytes
    request: int
    client: str = ""


class TaskFound(Struct, array_like=True, tag=95):
    """``row`` as `TaskHistory` packs it; None: no such array has finished."""

    request: int
    client: str
    row: Union[bytes, None]


class StoreRows(Struct, array_like=True, tag=96):
    """Write rows to disk; `LoadRow` reads them back."""

    rows: list[tuple[bytes, bytes]]


class LoadRow(Struct, array_like=True, tag=97):
    key: bytes
    request: int


class RowLoaded(Struct, array_like=True, tag=98):
    request: int
    row: Union[bytes, None]


HistoryMessage = Union[
    KvPut, KvGet, KvReply, FindTask, TaskFound, StoreRows, LoadRow, RowLoaded,
]  # fmt: skip
