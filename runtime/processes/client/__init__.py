"""Drivers and workers: the real world under a session, threads, interrupts."""

from __future__ import annotations
