"""A cluster in virtual time: its processes, drivers, workers and stores."""

from __future__ import annotations
