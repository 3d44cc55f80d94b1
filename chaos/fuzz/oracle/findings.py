"""Findings: the violations of a run, each with its kind as an enum and a detail to read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """The kinds of violations; `invariants` and `run.case_run` say when each is found."""

    VALUE = "value"
    ERROR = "error"
    """An error that nothing explains."""
    HANG = "hang"
    """A wait that can never end, or a program that has not ended in time."""
    LIVENESS = "liveness"
    """After the last fault, what could end did not end within the bound."""
    RAISED = "raised"
    """The program, or the system under it, raised."""
    KEYS = "keys"
    """The history of the key-value table is not linearizable."""
    REPLICAS = "replicas"
    """A client has an answer that a member of the chain lacks."""
    DEATHS = "deaths"
    """A process was given up before it was silent for the limit, or a node for no report."""
    JOBS = "jobs"
    OVERSUBSCRIPTION = "oversubscription"
    RESOURCES = "resources"
    BUNDLES = "bundles"
    ACTORS = "actors"
    STORES = "stores"
    DISKS = "disks"
    TABLES = "tables"
    REFERENCES = "references"
    MEMORY = "memory"
    TIMELINE = "timeline"
    """The timeline has other tasks than have run."""
    RETRIES = "retries"
    """A task has lost more retries than it was run again, or fewer than workers have died of it."""
    REPEATED = "repeated"
    """A task has run again, though nothing had died and its options ask for no retry."""


@dataclass(frozen=True)
class Finding:
    """One violation."""

    kind: Kind
    detail: str
    error: str = ""
    """The name of the exception's type, if there was one."""

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.detail}"
