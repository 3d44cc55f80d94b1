"""The head process: the GCS and the global scheduler, alone, durable or replicated."""

from __future__ import annotations
