"""The pytest-benchmark suites in ``tests/benchmarks``: what a regression looks like, and names."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from raytwin.scenarios.bench.cases import CASES
from tests.requirements import require

ROOT = Path(__file__).resolve().parents[2]
BRIEF = ("--benchmark-min-rounds=1", "--benchmark-max-time=0.01", "--benchmark-min-time=0.00001")


def measure(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "tests/benchmarks/test_parts.py", "-q",
         "-p", "no:cacheprovider", "-k", "test_encode_frame", "--benchmark-only", *BRIEF, *options],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip


def test_a_regression_fails_in_one_line(tmp_path: Path) -> None:
    """It ended in the traceback of an internal error."""
    path = tmp_path / "before.json"
    assert measure(f"--benchmark-json={path}").returncode == 0
    before = json.loads(path.read_text())
    for factor, code in ((1e6, 0), (1e-12, 1)):
        for measured in before["benchmarks"]:
            measured["stats"]["min"] *= factor
        path.write_text(json.dumps(before))
        done = measure(f"--benchmark-compare={path}", "--benchmark-compare-fail=min:10%")
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr
        assert ("Performance has regressed" in done.stderr) == bool(code)
        assert ("test_encode_frame" in done.stderr) == bool(code)


def test_nothing_to_compare_with_is_said_in_one_line() -> None:
    done = measure("--benchmark-compare-fail=min:10%")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "requires valid --benchmark-compare" in done.stderr
    assert "_multicall" not in done.stdout + done.stderr


@pytest.mark.ray
def test_names_are_those_of_rays_microbenchmark() -> None:
    require("ray", importlib.util.find_spec("ray") is not None, "pip install 'raytwin[ray]'")
    found = importlib.util.find_spec("ray._private.ray_perf")
    assert found is not None
    assert found.origin is not None
    source = Path(found.origin).read_text()
    names = [case.ray_name for case in CASES.values() if case.ray_name]
    assert len(names) > 5
    assert [name for name in names if f'"{name}"' not in source] == []
