"""A report of synthetic scenarios."""

from __future__ import annotations

from pathlib import Path

import pytest

from raytwin.reports.html import render
from raytwin.scenarios.core import results
from raytwin.scenarios.core.scenario import Request
from raytwin.scenarios.measure import runner
from tests.scenarios import synthetic


def run_all(out: Path, backends: tuple[str, ...] = ("sim", "local")) -> list[results.Result]:
    """Run the synthetic scenarios into `out` and read them back."""
    for scenario in synthetic.GOOD.values():
        for backend in backends:
            settings = scenario.settings("quick", {})
            profile = out / "profile.json"
            job = runner.Job(scenario, backend, "quick", 1, None, settings)
            outcome = scenario.run(Request(backend, seed=1, settings=settings, profile=profile))
            results.write(out, runner.assemble(job, profile, outcome))
    return results.read_all(out)


@pytest.fixture
def found(tmp_path: Path) -> list[results.Result]:
    """Results of the synthetic scenarios."""
    return run_all(tmp_path / "results")


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on them."""
    folder = tmp_path_factory.mktemp("report")
    path = folder / "report.html"
    path.write_text(render(run_all(folder / "results"), synthetic.GOOD), encoding="utf-8")
    return path
