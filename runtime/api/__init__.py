"""What programs see: Ray's task API."""

from __future__ import annotations

from runtime.api import exceptions, util
from runtime.api.actors import ActorClass, ActorHandle, exit_actor, get_actor, kill, method
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
from runtime.api.ids import ActorID, JobID, NodeID, TaskID
from runtime.api.refs import ObjectRef, ObjectRefArray
from runtime.api.remote_function import RemoteFunction, remote
from runtime.api.runtime_context import RuntimeContext, get_gpu_ids, get_runtime_context
from runtime.api.state import register_backend
from runtime.api.streams import DynamicObjectRefGenerator, ObjectRefGenerator

__all__ = [
    "ActorClass", "ActorHandle", "ActorID", "Blob", "DynamicObjectRefGenerator", "JobID", "NodeID",
    "ObjectRef",
    "ObjectRefArray", "ObjectRefGenerator", "RemoteFunction", "RuntimeContext", "TaskID",
    "available_resources", "cancel", "cluster_resources", "compute", "exceptions", "exit_actor",
    "get", "get_actor", "get_gpu_ids", "get_runtime_context", "init", "is_initialized", "kill",
    "method", "nodes", "now", "put", "register_backend", "remote", "shutdown", "sleep",
    "timeline", "util", "wait",
]  # fmt: skip
