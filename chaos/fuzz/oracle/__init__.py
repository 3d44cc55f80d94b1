"""What must hold: the sequential run, outcomes that faults explain, invariants."""

from __future__ import annotations
