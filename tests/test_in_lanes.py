"""The lanes of the whole suite: every test in one of them, and no failure lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.in_lanes import BESIDE_RAY, NICE, NOT_SIMULATED, SIMULATED, UNDER_FAULTS, lane

ROOT = Path(__file__).resolve().parent.parent


def test_every_file_of_tests_is_in_one_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert all(
        Path(each).exists() for each in (*SIMULATED, *UNDER_FAULTS, *NOT_SIMULATED, *BESIDE_RAY)
    )
    lanes = [lane(name) for name in ("what is real", *NICE)]
    for file in map(str, Path("tests").rglob("test_*.py")):
        runs = [name for name in lanes if is_run(file, name)]
        assert len(runs) == 1, (file, runs)


def is_run(file: str, arguments: list[str]) -> bool:
    """Whether pytest runs a file if it is given these paths and options."""
    within = any(Path(file).is_relative_to(each) for each in arguments)
    return within and f"--ignore={file}" not in arguments


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        ("", 0),
        ("tests/chaos/test_of_it.py", 1),
        ("tests/control/test_of_it.py", 1),
        ("tests/api/test_of_it.py", 1),
        ("tests/test_like_ray.py", 1),
    ],
)
@pytest.mark.slow
def test_a_failure_in_any_lane_is_one(tmp_path: Path, broken: str, code: int) -> None:
    files = (*SIMULATED, *UNDER_FAULTS, *NOT_SIMULATED, *BESIDE_RAY, "tests/api")
    for each in files:
        file = each if Path(each).suffix else f"{each}/test_of_it.py"
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"def test_it():\n    assert {file != broken}\n")
    done = subprocess.run(
        [sys.executable, ROOT / "tests/in_lanes.py", "--import-mode=importlib"],
        check=False,
        cwd=tmp_path,
        env={"PYTHONDONTWRITEBYTECODE": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == code, done.stdout + done.stderr
    real, beside_ray, simulated, under_faults = done.stdout.split("\n== ")
    assert passed(1 + len(NOT_SIMULATED), "api" in broken) in real
    assert passed(len(BESIDE_RAY), "ray" in broken) in beside_ray
    assert passed(len(SIMULATED), "control" in broken) in simulated
    assert passed(len(UNDER_FAULTS), "chaos" in broken) in under_faults


def passed(tests: int, but_one: bool) -> str:
    """Return the end of what pytest prints."""
    if not but_one:
        return f"{tests} passed"
    return f"1 failed, {tests - 1} passed" if tests > 1 else "1 failed"
