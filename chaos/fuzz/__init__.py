"""The fuzz: random programs under random faults, held to a sequential run."""

from __future__ import annotations
