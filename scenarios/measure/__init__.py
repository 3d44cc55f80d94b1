"""What a scenario is, how it runs and what it leaves: results, traces, calibration."""

from __future__ import annotations
