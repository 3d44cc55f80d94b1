"""Libraries on top of tasks and actors; they use nothing but the API itself."""

from __future__ import annotations
