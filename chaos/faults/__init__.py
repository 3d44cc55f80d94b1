"""Fault plans: what happens to a cluster and when, and who carries it out."""

from __future__ import annotations
