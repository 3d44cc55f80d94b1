"""Serializes and deserializes values: all pickling of both worlds."""

from __future__ import annotations
