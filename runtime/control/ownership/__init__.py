"""Ownership: reference counts, borrowers, and who owns what."""

from __future__ import annotations
