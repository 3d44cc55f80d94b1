"""The local scheduler of a node: from a submitted task to a worker that runs it."""

from __future__ import annotations
