"""Processes: the zygote that forks them, what they are told, and the cluster that they form."""

from __future__ import annotations
