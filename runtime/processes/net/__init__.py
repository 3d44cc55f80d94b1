"""Sockets: the event loop, frames, connections, and who may send what to whom."""

from __future__ import annotations
