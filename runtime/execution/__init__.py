"""Executes a worker's tasks and calls in both worlds: decodes, calls, reports."""

from __future__ import annotations
