"""The parts that every head has: channels with nodes and replicas, and the failure detector."""

from __future__ import annotations

import socket
from collections.abc import Callable

from raytwin.runtime.control.channels.channel import Me
from raytwin.runtime.control.core.addresses import HEAD, HEALTH, is_node, is_replica
from raytwin.runtime.control.gcs.failure_detector import FailureDetector
from raytwin.runtime.control.messages import NodeInfo
from raytwin.runtime.journal import Origin
from raytwin.runtime.processes.net.channels import Channels
from raytwin.runtime.processes.net.component_process import ComponentProcess, Route
from raytwin.runtime.processes.net.heartbeat_connections import accept_heartbeats
from raytwin.runtime.processes.net.process_settings import HeadSettings


def add_head_channels(
    process: ComponentProcess,
    settings: HeadSettings,
    listener: socket.socket,
    info_of: Callable[[int], NodeInfo | None],
) -> Channels:
    """Add ``links`` and ``health`` to a head's process, and accept connections."""
    config = settings.config
    channels = Channels(
        process, Me(HEAD, 1), settings.token, config, info_of, lambda peer: None, process.stop
    )
    health = FailureDetector(process.begin_first_turn(HEALTH), config)
    channels.on_heartbeats = accept_heartbeats(process)

    def find_route(destination: str) -> Route | None:
        if not (is_node(destination) or is_replica(destination)):
            return None
        return channels.route(destination, destination)

    process.add("links", channels.peers)
    process.add(HEALTH, health)
    process.find_route = find_route
    channels.listen(listener)
    health.start()
    process.end_first_turn(Origin(HEALTH, config))
    return channels
