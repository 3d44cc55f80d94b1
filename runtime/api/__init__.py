"""What programs see: Ray's task API."""

from __future__ import annotations

from runtime.api import exceptions
from runtime.api.calls import Blob, cancel, compute, get, now, put, sleep, wait
from runtime.api.cluster import (
    available_resources,
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
from runtime.api.streams import DynamicObjectRefGenerator, ObjectRefGenerator

__all__ = [
    "Blob", "DynamicObjectRefGenerator", "ObjectRef", "ObjectRefArray", "ObjectRefGenerator",
    "RemoteFunction", "available_resources", "cancel", "cluster_resources", "compute",
    "exceptions", "get", "init", "is_initialized", "nodes", "now", "put", "register_backend",
    "remote", "shutdown", "sleep", "timeline", "wait",
]  # fmt: skip
