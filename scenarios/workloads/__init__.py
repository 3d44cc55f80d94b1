"""Programs that several scenarios or the calibration run."""

from __future__ import annotations
