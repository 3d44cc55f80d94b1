"""The settings that a process receives when it starts."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import msgspec

from raytwin.runtime.control.core.config import Config


class HeadSettings(msgspec.Struct):
    """Settings of the head; its descriptors: spawn socket, listening socket, those of replicas."""

    config: Config
    token: bytes
    journal: str = ""
    storage: str = ""
    """The file of a durable GCS; empty for any other."""
    replicas: dict[str, dict[str, tuple[str, int]]] = {}
    """By replica whose listening socket is among the descriptors, in this order: its `via`."""


class ReplicaSettings(msgspec.Struct):
    """Settings of a replica of the GCS; its descriptor, if it has one, is the socket on which it
    listens, in place of its own."""

    name: str
    config: Config
    token: bytes
    head: tuple[str, int]
    host: str = "127.0.0.1"
    journal: str = ""
    via: dict[str, tuple[str, int]] = {}
    """By process: the address of a proxy at which the replica reaches it, in place of its own."""


class NodeSettings(msgspec.Struct):
    """Settings of a node; its descriptors: spawn socket, arena, file; on the driver's node also
    the driver's socket."""

    node: int
    resources: dict[str, float]
    config: Config
    token: bytes
    head: tuple[str, int]
    host: str = "127.0.0.1"
    journal: str = ""
    incarnation: int = 1
    """How many times a node of this number was started, this start included."""
    spill_directory: str = ""
    """The directory of the file of spilled objects."""
    join_socket: str = ""
    """The abstract socket on which the node admits drivers; empty for none."""
    via: dict[str, tuple[str, int]] = {}
    """By process: the address of a proxy at which the node reaches it, in place of its own."""
    listening: bool = False
    """Whether the last descriptor is the socket on which the node listens, in place of its own."""
    port: int = 0
    """The port on which the node listens; 0 for any."""


class WorkerSettings(msgspec.Struct):
    """Settings of a worker; its descriptors: the socket to its node, the arena, its file, and on
    the first driver's node the socket through which it reaches that driver."""

    address: str
    node: int
    config: Config
    driver: str = ""
    """The driver's address, if there is such a socket."""


LENGTH_BYTES = 4
"""A `Welcome` is preceded by its length, big-endian; the arena's descriptors come with it."""
ARENA_FDS = 2
"""The descriptors of a node's arena: memory and file."""


class Welcome(msgspec.Struct):
    """The node's answer to a driver that asks to join."""

    address: str
    """The driver's address; empty if the node refuses the driver, for `reason`."""
    job: int
    node: int
    config: Config
    reason: str = ""


def abstract(name: str) -> str:
    """Return the address of an abstract Unix socket."""
    return f"\0{name}"


def journal_path(directory: str) -> Path | None:
    """Return the directory of journals; None if there are none."""
    return Path(directory) if directory else None


class _NamedFormatter(logging.Formatter):
    """Begins every line with the name of the process."""

    def __init__(self) -> None:
        super().__init__()
        self.process_name = ""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return f"raytwin {self.process_name}: {record.message}"


_formatter = _NamedFormatter()


def set_up_logging(name: str) -> None:
    """Log warnings to standard error, one line each, with the process's name.

    The zygote sets logging up once. A process that it forks changes only the name, and so
    writes to 80 shared pages fewer.
    """
    _formatter.process_name = name
    root = logging.getLogger()
    if not any(handler.formatter is _formatter for handler in root.handlers):
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_formatter)
        for other in root.handlers[:]:
            root.removeHandler(other)
        root.addHandler(handler)
        root.setLevel(logging.WARNING)
