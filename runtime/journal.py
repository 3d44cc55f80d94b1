"""A journal: every turn of a component, written down.

A file begins with `MAGIC` and the number of its format, in a line. Records follow, each a length
(u32, big-endian) and msgpack. The first is the component's `Origin`, or nil in the one journal of a
simulation, which has the turns of several components. Each further one is a turn, an array

    [component, now_s, inputs, timer, outputs, error]

with inputs ``[[source, [message, ...]], ...]``, the number of the timer that fired (0: none),
outputs ``[[destination, [message, ...]], ...]``, and, only if the turn raised, what. Turn 0 of a
component of a real process is its construction: it has outputs alone.

A component that is given the same inputs at the same times sends the same outputs, in whatever
world it runs: `simulator.machine.replayed_component` does that.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.messages import Message

MAGIC = b"raytwin journal "
FORMAT = 2
_FIRST_LINE = MAGIC + b"%d\n" % FORMAT
_LENGTH_BYTES = 4


class JournalError(ValueError):
    """A file that is no journal, or not one that this version can read; says so in a line."""


class Origin(msgspec.Struct):
    """The arguments with which a process has made its component."""

    component: str
    """Its address."""
    config: Config
    host: str = ""
    port: int = 0
    """Where a node or a replica listens."""
    incarnation: int = 1
    """Of a node: how many times it was started."""
    resources: dict[str, float] = {}
    """Of a node."""
    state: bytes = b""
    """Of a durable replica whose file had a state: the snapshot of its machine; else empty."""


class Turn(msgspec.Struct, array_like=True):
    """One record, typed for reading."""

    component: str
    now_s: float
    inputs: list[tuple[str, list[Message]]]
    timer: int
    outputs: list[tuple[str, list[Message]]]
    error: str = ""
    """The `repr` of the exception that ended the turn and the component's process; empty: none."""


class Journal:
    """Appends turns to a file."""

    def __init__(self, file: BinaryIO, origin: Origin | None = None) -> None:
        """`file` is empty, without a buffer, and closed by the journal."""
        self._file = file
        self._encoder = msgspec.msgpack.Encoder()
        file.write(_FIRST_LINE)
        self._append([_version(), origin])

    @classmethod
    def of_component(cls, directory: Path, origin: Origin) -> Journal:
        """Begin the journal of a component: ``node-0.journal``, after a restart
        ``node-0.2.journal``. It overwrites no other."""
        name = origin.component.replace(":", "-")
        path, number = directory / f"{name}.journal", 1
        while path.exists():
            number += 1
            path = directory / f"{name}.{number}.journal"
        return cls(path.open("xb", buffering=0), origin)

    @classmethod
    def of_simulation(cls, path: Path) -> Journal:
        """Begin the journal of a simulation, or begin it anew."""
        return cls(path.open("wb", buffering=0))

    def write(self, turn: list[Any]) -> None:
        """Write one record; the file is complete up to here whatever happens."""
        self._append(turn)

    def _append(self, record: Any) -> None:
        body = self._encoder.encode(record)
        self._file.write(len(body).to_bytes(_LENGTH_BYTES, "big") + body)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class JournalReader:
    """The turns of a journal, in order; may be iterated several times."""

    def __init__(self, path: Path) -> None:
        """Raises JournalError for what is no journal of this version, OSError for what cannot be
        opened."""
        self.path = path
        self.turns = 0
        """The number of complete turns."""
        self.cut_bytes = 0
        """The bytes behind them, of a turn that was cut off."""
        with path.open("rb") as file:
            self._check_first_line(file.readline(len(_FIRST_LINE) + 10))
            first = _next(file)
            if first is None:
                raise JournalError(f"{path} is cut off before its first turn")
            self.origin = self._origin(first)
            """None: the journal of a simulation."""
            self._begin = end = file.tell()
            nbytes = os.fstat(file.fileno()).st_size
            while prefix := file.read(_LENGTH_BYTES):
                file.seek(int.from_bytes(prefix, "big"), os.SEEK_CUR)
                if len(prefix) < _LENGTH_BYTES or file.tell() > nbytes:
                    break
                end = file.tell()
                self.turns += 1
            self.cut_bytes = nbytes - end

    def __iter__(self) -> Iterator[Turn]:
        """Yield the complete turns. Raises JournalError for one that cannot be read."""
        decoder = msgspec.msgpack.Decoder(Turn)
        with self.path.open("rb") as file:
            file.seek(self._begin)
            for number in range(self.turns):
                body = _next(file)
                assert body is not None, f"{self.path} has become shorter"
                try:
                    yield decoder.decode(body)
                except msgspec.DecodeError as error:
                    raise JournalError(
                        f"turn {number} of {self.path} cannot be read: {error}"
                    ) from error

    def _check_first_line(self, line: bytes) -> None:
        if line == _FIRST_LINE:
            return
        number = line.removeprefix(MAGIC).removesuffix(b"\n")
        if line.startswith(MAGIC) and number.isdigit() and line.endswith(b"\n"):
            raise JournalError(
                f"{self.path} is a journal of format {int(number)}, and this version of raytwin"
                f" reads format {FORMAT}"
            )
        if line and _FIRST_LINE.startswith(line):
            raise JournalError(f"{self.path} is cut off before its first turn")
        raise JournalError(f"{self.path} is no journal: init(journal=DIR) has files of it written")

    def _origin(self, body: bytes) -> Origin | None:
        try:
            version, raw = msgspec.msgpack.decode(body, type=tuple[str, msgspec.Raw])
            # The version first: the origin of another one may have another form.
            if version != _version():
                raise JournalError(
                    f"{self.path} was written by raytwin {version}, and this is {_version()}:"
                    " messages differ between versions"
                )
            return msgspec.msgpack.decode(raw, type=Origin | None)
        except msgspec.DecodeError as error:
            raise JournalError(f"the head of {self.path} cannot be read: {error}") from error


def _next(file: BinaryIO) -> bytes | None:
    """Return the next record; None if it is not complete."""
    prefix = file.read(_LENGTH_BYTES)
    size = int.from_bytes(prefix, "big")
    body = file.read(size) if len(prefix) == _LENGTH_BYTES else b""
    return body if body and len(body) == size else None


def _version() -> str:
    """Return the version that is installed, or "source" for a bare source tree."""
    from importlib import metadata  # a process without a journal has no use for it

    try:
        return metadata.version("raytwin")
    except metadata.PackageNotFoundError:
        return "source"
