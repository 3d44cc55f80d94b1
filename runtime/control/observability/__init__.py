"""What a node remembers of what ran, and the questions that a client may ask."""

from __future__ import annotations
