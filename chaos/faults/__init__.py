"""Fault plans: the faults of a cluster and their times, and the injectors that cause them."""

from __future__ import annotations
