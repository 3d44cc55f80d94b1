"""The global scheduler: policies, placement of actors, placement groups."""

from __future__ import annotations
