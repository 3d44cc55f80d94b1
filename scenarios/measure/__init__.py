"""Running scenarios: the registry, the runner, baselines and the calibration of the simulator."""

from __future__ import annotations
