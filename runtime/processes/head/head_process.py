"""The head process: GCS and global scheduler behind one TCP listener."""

from __future__ import annotations

import socket

import msgspec

from raytwin.runtime.control.gcs.gcs import Gcs
from raytwin.runtime.control.scheduling.global_scheduler import GlobalScheduler
from raytwin.runtime.journal import Origin
from raytwin.runtime.processes.head.head_channels import add_head_channels
from raytwin.runtime.processes.head.process_ends import ProcessEnds
from raytwin.runtime.processes.net.component_process import ComponentProcess
from raytwin.runtime.processes.net.process_settings import (
    HeadSettings,
    journal_path,
    set_up_logging,
)

# Made before the fork: msgspec takes a millisecond to inspect a class.
_settings_of = msgspec.msgpack.Decoder(HeadSettings).decode


class Head:
    """Wires the components to the nodes' channels."""

    def __init__(
        self, settings: HeadSettings, listener: socket.socket, spawner: socket.socket
    ) -> None:
        config = settings.config
        self.process = ComponentProcess(config.seed, journal_path(settings.journal))
        gcs = Gcs(self.process.begin_first_turn("gcs"), config)
        self.process.add("gcs", gcs)
        self.process.end_first_turn(Origin("gcs", config))
        scheduler = GlobalScheduler(self.process.begin_first_turn("global"), config)
        self.process.add("global", scheduler)
        self.process.end_first_turn(Origin("global", config))
        channels = add_head_channels(self.process, settings, listener, gcs.nodes.rows.get)
        ProcessEnds(self.process, spawner, channels.peers)


def main(payload: bytes, fds: list[int]) -> None:
    """Run the head until it is killed."""
    set_up_logging("head")
    settings = _settings_of(payload)
    spawner, listener, *of_replicas = (socket.socket(fileno=fd) for fd in fds)
    # Imported only if needed: sqlite3 alone would cost every cluster 1 MB.
    if settings.config.gcs_durable:
        from raytwin.runtime.processes.head.durable_head import durable_head

        durable_head(settings, listener, spawner).run()
    elif settings.config.chained:
        from raytwin.runtime.processes.head.replicated_head import replicated_head

        replicated_head(settings, listener, spawner, of_replicas).run()
    else:
        Head(settings, listener, spawner).process.run()
