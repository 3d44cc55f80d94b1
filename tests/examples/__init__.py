"""The examples, on every backend."""

from __future__ import annotations
