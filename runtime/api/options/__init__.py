"""The options of tasks, actors and `init`: which there are, their types and their checks."""

from __future__ import annotations
