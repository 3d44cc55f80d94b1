"""A journal: every turn of a component, written down.

One record per turn: a length (u32, big-endian) and a msgpack array

    [component, now_s, inputs, timer, outputs]

with inputs ``[[source, [message, ...]], ...]``, the number of the timer that
fired (0: none) and outputs ``[[destination, [message, ...]], ...]``. A component
that is given the same inputs at the same times leads to the same outputs, in
whatever world it runs: see `tests/test_one_control_plane.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from raytwin.runtime.control.messages import Message


class Turn(msgspec.Struct, array_like=True):
    """One record, typed for reading."""

    component: str
    now_s: float
    inputs: list[tuple[str, list[Message]]]
    timer: int
    outputs: list[tuple[str, list[Message]]]


class Journal:
    """Appends turns to a file."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("wb", buffering=0)
        self._encoder = msgspec.msgpack.Encoder()

    def write(self, turn: list[Any]) -> None:
        """Write one record; the file is complete up to here whatever happens."""
        body = self._encoder.encode(turn)
        self._file.write(len(body).to_bytes(4, "big") + body)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read(path: Path) -> Iterator[Turn]:
    """Yield the turns of a journal; a record cut off at the end is left out.

    Raises ValueError for a file that is not a journal.
    """
    data = path.read_bytes()
    decoder = msgspec.msgpack.Decoder(Turn)
    at = 0
    while at + 4 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        if at + 4 + size > len(data):
            return
        try:
            yield decoder.decode(data[at + 4 : at + 4 + size])
        except msgspec.DecodeError as error:
            raise ValueError(f"{path} is not a journal: {error}") from error
        at += 4 + size
