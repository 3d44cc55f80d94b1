"""The oracle: the sequential run, the errors that faults explain, and the invariants."""

from __future__ import annotations
