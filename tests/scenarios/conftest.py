"""Fixtures for the command line's tests."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from raytwin.scenarios.measure import registry
from tests.scenarios import synthetic


@pytest.fixture
def synthetic_scenarios(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the synthetic scenarios exist."""
    monkeypatch.setattr(registry, "scenarios", lambda: synthetic.ALL)


@pytest.fixture
def calibrations(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A calibration that takes no time; the list grows by one for each."""
    made: list[object] = []
    module = ModuleType("raytwin.scenarios.measure.calibrate")

    def calibrate(progress: object) -> dict[str, float]:
        made.append(progress)
        return {"task_s": 0.001}

    module.calibrate = calibrate  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "raytwin.scenarios.measure.calibrate", module)
    return made
