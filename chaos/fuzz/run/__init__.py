"""Runs the fuzz: one case, or a campaign of many seeds."""

from __future__ import annotations
