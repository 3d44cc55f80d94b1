"""Runs the fuzz: one case, a campaign of many seeds, the shrinking of a case, a replay."""

from __future__ import annotations
