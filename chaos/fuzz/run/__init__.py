"""Running seeds: one case, and campaigns of many."""

from __future__ import annotations
