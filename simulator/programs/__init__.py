"""Programs in virtual time: greenlets, event loops, signals and exits."""

from __future__ import annotations
