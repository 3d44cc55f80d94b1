"""The options of tasks, actors and `init`: their names, types and checks."""

from __future__ import annotations
