"""The lanes of the whole suite: every test in one of them, and no failure lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.in_lanes import ALSO_SIMULATED, BESIDE_RAY, NICE, NOT_SIMULATED, SIMULATED, lane

ROOT = Path(__file__).resolve().parent.parent


def test_every_file_of_tests_is_in_one_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert all(
        Path(each).exists() for each in (*SIMULATED, *ALSO_SIMULATED, *NOT_SIMULATED, *BESIDE_RAY)
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
        ("tests/api/test_of_it.py", 1),
        ("tests/test_like_ray.py", 1),
    ],
)
@pytest.mark.slow
def test_a_failure_in_any_lane_is_one(tmp_path: Path, broken: str, code: int) -> None:
    files = [f"{folder}/test_of_it.py" for folder in (*SIMULATED, "tests/api")]
    for file in (*files, *ALSO_SIMULATED, *NOT_SIMULATED, *BESIDE_RAY):
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
        timeout=60,
    )
    assert done.returncode == code, done.stdout + done.stderr
    real, beside_ray, simulated = done.stdout.split("\n== ")
    assert ("1 failed, 5 passed" if "api" in broken else "6 passed") in real
    beside = len(BESIDE_RAY)
    passed = f"1 failed, {beside - 1} passed" if "ray" in broken else f"{beside} passed"
    assert passed in beside_ray
    folders = len((*SIMULATED, *ALSO_SIMULATED))
    passed = f"1 failed, {folders - 1} passed" if "chaos" in broken else f"{folders} passed"
    assert passed in simulated
