"""Whether anything listens at an address that a user has typed."""

from __future__ import annotations

import socket


def knock(host: str, port: int, timeout_s: float) -> None:
    """Return if somebody accepts a connection. Raises OSError if nobody does."""
    socket.create_connection((host, port), timeout=timeout_s).close()
