"""What programs see: Ray's task API."""

from __future__ import annotations

from runtime.api import exceptions
from runtime.api.actors import ActorClass, ActorHandle, exit_actor, get_actor, kill, method
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
    "ActorClass", "ActorHandle", "Blob", "ObjectRef", "ObjectRefArray", "RemoteFunction",
    "cluster_resources", "compute", "exceptions", "exit_actor", "get", "get_actor", "init",
    "is_initialized", "kill", "method", "nodes", "now", "put", "register_backend", "remote",
    "shutdown", "sleep", "timeline", "wait",
]  # fmt: skip
