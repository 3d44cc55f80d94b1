"""The shell around a worker's queue, shared by both worlds: decode, call, report."""

from __future__ import annotations
