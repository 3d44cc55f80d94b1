"""Tests of the `local` backend, on real processes."""

from __future__ import annotations
