"""The oracle: the sequential run, errors and the deaths that explain them, reports of silence, and
invariants."""

from __future__ import annotations
