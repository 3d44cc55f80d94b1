"""The fuzz: random programs under random faults, compared with a sequential run."""

from __future__ import annotations
