"""The objects of a node: where they are, how they come and go."""

from __future__ import annotations
