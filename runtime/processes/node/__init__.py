"""The node process: local scheduler, shared-memory store, transfers and worker pool in one loop."""

from __future__ import annotations
