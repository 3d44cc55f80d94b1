"""The oracle: the sequential run, errors that faults explain, and invariants."""

from __future__ import annotations
