"""The program in a container: starts a zygote and one node, and ends with either.

Its standard input begins with a `ContainerSettings`, preceded by its length, big-endian. The input
then stays open for as long as the driver wants the node; at its end this program exits, and the
kernel kills all processes of the container with it.

    python -m raytwin.runtime.containers.container_node
"""

from __future__ import annotations

import os
import select
import sys
from typing import Any, BinaryIO, NoReturn

import msgspec

from raytwin.runtime.processes.net.packets import packet_pair, receive_packet, send_packet
from raytwin.runtime.processes.net.process_settings import NodeSettings
from raytwin.runtime.processes.spawn import zygote
from raytwin.runtime.session.node_resources import EXITED
from raytwin.runtime.store.arena import Arena

LENGTH_BYTES = 4
SETTINGS_BYTES_MAX = 1 << 24


class ContainerSettings(msgspec.Struct):
    """Settings of a container; `pack` and `read` are its form on the standard input."""

    node: NodeSettings
    store_bytes: int
    python: tuple[int, int]
    """The version of the driver's interpreter: functions travel as its bytecode."""
    paths: list[str]
    """The driver's module search path, as far as the container has it."""
    modules: list[str]
    """Modules to load for workers; see `preload`."""


def pack(settings: ContainerSettings) -> bytes:
    """Return the beginning of a container's standard input."""
    body = msgspec.msgpack.encode(settings)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def read(stream: BinaryIO) -> ContainerSettings:
    """Return the settings with which a stream begins; raises ValueError if there are none."""
    length = int.from_bytes(_read(stream, LENGTH_BYTES), "big")
    if length > SETTINGS_BYTES_MAX:
        raise ValueError(f"settings of {length:,} bytes: this is no input of a raytwin driver")
    return msgspec.msgpack.decode(_read(stream, length), type=ContainerSettings)


def _read(stream: BinaryIO, nbytes: int) -> bytes:
    data = stream.read(nbytes)
    if len(data) < nbytes:
        raise ValueError(f"the input ends after {len(data)} of {nbytes} bytes")
    return data


def main() -> NoReturn:
    """Run the node until it or the driver ends; exits with 1 unless the driver ended it."""
    settings = read(sys.stdin.buffer)
    if settings.python != sys.version_info[:2]:
        _exit(
            f"the image has Python {_version(sys.version_info[:2])}, and the driver"
            f" {_version(settings.python)}: build the image with the driver's version"
        )
    node = settings.node
    key = f"node:{node.node}"
    arena = Arena.create(settings.store_bytes, node.spill_directory)
    control = _fork_zygote()
    paths = [*settings.paths, *(path for path in sys.path if path not in settings.paths)]
    send_packet(control, ["start", paths, "", ["node"], settings.modules])
    send_packet(control, ["spawn", "node", key, msgspec.msgpack.encode(node), False], arena.fds)
    arena.close()
    poll = select.poll()
    for fd in (sys.stdin.fileno(), control.fileno()):
        poll.register(fd, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == sys.stdin.fileno():
                os._exit(0)  # the driver is gone: nothing of the node is needed any more
            packet = receive_packet(control)
            if packet is None:
                _exit("the zygote is gone")
            kind, ended, reason = packet[0]
            if kind == "exited" and ended == key:
                _exit("" if reason == EXITED else f"{key} ended: {reason}")


def _fork_zygote() -> Any:
    """Fork a zygote, which has the modules of this process; return the socket for requests."""
    control, theirs = packet_pair()
    parent = os.getpid()
    if os.fork() == 0:
        control.close()
        # Of this program's input the zygote and its workers have nothing to read.
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, sys.stdin.fileno())
        os.close(nothing)
        sys.argv[1:] = [str(theirs.fileno()), str(parent)]
        zygote.main()
    theirs.close()
    return control


def _version(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _exit(reason: str) -> NoReturn:
    if reason:
        print(f"raytwin container: {reason}", file=sys.stderr, flush=True)
    os._exit(1)


if __name__ == "__main__":
    main()
