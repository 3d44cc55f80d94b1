"""Simulated machines: hosts, cores, the network, and what things cost."""

from __future__ import annotations
