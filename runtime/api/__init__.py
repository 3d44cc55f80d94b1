"""What programs see: Ray's task API."""

from __future__ import annotations

from runtime.api import exceptions
from runtime.api.calls import Blob, compute, get, now, put, sleep, wait
from runtime.api.cluster import (
    cluster_resources,
    init,
    is_initialized,
    nodes,
    shutdown,
    timeline,
)
from runtime.api.refs import ObjectRef, ObjectRefArray
from runtime.api.remote_function import RemoteFunction, remote
from runtime.api.state import register_backend

__all__ = [
    "Blob", "ObjectRef", "ObjectRefArray", "RemoteFunction", "cluster_resources", "compute",
    "exceptions", "get", "init", "is_initialized", "nodes", "now", "put", "register_backend",
    "remote", "shutdown", "sleep", "timeline", "wait",
]  # fmt: skip
