"""The oracle: the sequential run, errors and the deaths that explain them, and invariants."""

from __future__ import annotations
