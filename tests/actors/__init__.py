"""Actors, as programs use them."""

from __future__ import annotations
