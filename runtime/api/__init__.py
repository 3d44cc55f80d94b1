"""Ray's task API, which programs import through the package `raytwin`."""

from __future__ import annotations

from raytwin.runtime.api import exceptions, util
from raytwin.runtime.api.actors import ActorClass, ActorHandle, exit_actor, get_actor, kill, method
from raytwin.runtime.api.backend import ObjectRef, ObjectRefArray
from raytwin.runtime.api.ids import ActorID, JobID, NodeID, TaskID
from raytwin.runtime.api.lifecycle import (
    available_resources,
    cluster_resources,
    init,
    is_initialized,
    nodes,
    shutdown,
    timeline,
)
from raytwin.runtime.api.runtime_context import RuntimeContext, get_gpu_ids, get_runtime_context
from raytwin.runtime.api.streams import DynamicObjectRefGenerator, ObjectRefGenerator
from raytwin.runtime.api.tasks import (
    Blob,
    RemoteFunction,
    cancel,
    compute,
    get,
    now,
    put,
    remote,
    sleep,
    wait,
)

__all__ = [
    "ActorClass", "ActorHandle", "ActorID", "Blob", "DynamicObjectRefGenerator", "JobID",
    "NodeID", "ObjectRef", "ObjectRefArray", "ObjectRefGenerator", "RemoteFunction",
    "RuntimeContext", "TaskID", "available_resources", "cancel", "cluster_resources", "compute",
    "exceptions", "exit_actor", "get", "get_actor", "get_gpu_ids", "get_runtime_context",
    "init", "is_initialized", "kill", "method", "nodes", "now", "put", "remote", "shutdown",
    "sleep", "timeline", "util", "wait",
]  # fmt: skip
