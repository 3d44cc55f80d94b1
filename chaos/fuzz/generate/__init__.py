"""Random programs and clusters, drawn from a seed."""

from __future__ import annotations
