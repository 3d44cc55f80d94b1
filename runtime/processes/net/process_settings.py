"""What a process is told when it starts."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import msgspec

from raytwin.runtime.control.core.config import Config

HEAD_AWAY_S = 30.0
"""How long nodes and replicas wait for a head that is started again."""
HEAD_PAUSE_S = 0.05
"""Between two attempts to reach it."""


class HeadSettings(msgspec.Struct):
    """For the head; its descriptors: spawn socket, the listening socket."""

    config: Config
    token: bytes
    journal: str = ""
    storage: str = ""
    """The GCS's file, where it is durable; with replicas or shards their directory."""


class ReplicaSettings(msgspec.Struct):
    """For a replica of the GCS; it has no descriptors."""

    name: str
    config: Config
    token: bytes
    head: tuple[str, int]
    host: str = "127.0.0.1"
    journal: str = ""
    storage: str = ""
    """The directory of the replicas' files, where they have some."""


class NodeSettings(msgspec.Struct):
    """For a node; its descriptors: spawn socket, arena, perhaps the driver's and its workers'
    to the driver."""

    node: int
    resources: dict[str, float]
    config: Config
    token: bytes
    head: tuple[str, int]
    host: str = "127.0.0.1"
    journal: str = ""
    incarnation: int = 1
    """How often a node of this number was started so far, this time included."""
    spill_directory: str = ""
    """Where evicted objects go."""
    door: str = ""
    """The abstract socket on which it lets drivers in, empty for none."""


class WorkerSettings(msgspec.Struct):
    """For a worker; its descriptors: the socket to its node, the arena, perhaps one to the
    driver."""

    address: str
    node: int
    config: Config
    direct_to: str = ""
    """That driver's address."""


def journal_path(directory: str) -> Path | None:
    """Return the journal's directory, None for none."""
    return Path(directory) if directory else None


class _Signed(logging.Formatter):
    """Every line says which process speaks."""

    def __init__(self) -> None:
        super().__init__()
        self.who = ""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return f"raytwin {self.who}: {record.message}"


_signed = _Signed()


def set_up_logging(name: str) -> None:
    """Log warnings to standard error, one line each, saying who speaks.

    The zygote sets this up for all; what it has forked then changes the name alone,
    which writes to 80 shared pages less.
    """
    _signed.who = name
    root = logging.getLogger()
    if not any(handler.formatter is _signed for handler in root.handlers):
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_signed)
        for other in root.handlers[:]:
            root.removeHandler(other)
        root.addHandler(handler)
        root.setLevel(logging.WARNING)
