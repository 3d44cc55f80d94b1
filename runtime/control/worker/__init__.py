"""The worker's queue: what it runs next and what it reports."""

from __future__ import annotations
