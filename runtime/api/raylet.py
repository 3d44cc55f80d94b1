"""The classes that programs import from Ray's compiled core, ``ray._raylet``."""

from __future__ import annotations

from raytwin.runtime.api.backend import ObjectRef
from raytwin.runtime.api.ids import ActorID, JobID, NodeID, TaskID
from raytwin.runtime.api.modules import missing_names
from raytwin.runtime.api.streams import DynamicObjectRefGenerator, ObjectRefGenerator

__getattr__ = missing_names("_raylet")

__all__ = [
    "ActorID", "DynamicObjectRefGenerator", "JobID", "NodeID", "ObjectRef", "ObjectRefGenerator",
    "TaskID",
]  # fmt: skip
