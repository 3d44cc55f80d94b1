"""`init` refuses unusable options in one line, on every backend, and starts nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import raytwin as ray

ROOT = Path(__file__).resolve().parents[2]

REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"foo": 1}, TypeError, "init() has no option 'foo': docs/api.md lists what there is"),
    ({"node": 3}, TypeError, "init() has no option 'node': did you mean 'nodes'?"),
    (
        {"cpus_per_node": 2, "num_cpus": 3},
        ValueError,
        "cpus_per_node=2 and num_cpus=3: they are two names for one thing",
    ),
    ({"gcs_storage": 5}, TypeError, "gcs_storage is a path, not 5"),
    ({"policy": 3}, TypeError, "policy is a string, not 3"),
    ({"address": 5}, TypeError, "address is a string, not 5"),
]


@pytest.mark.parametrize("backend", ["sim", "local"])
@pytest.mark.parametrize(("options", "error", "text"), REFUSED, ids=str)
def test_errors_take_one_line(
    backend: str, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as raised:
        ray.init(backend=backend, **options)
    assert str(raised.value) == text
    assert not ray.is_initialized()


@pytest.mark.parametrize(
    ("backend", "option", "other"),
    [("local", "profile", "sim"), ("local", "nodes_per_host", "sim"),
     ("sim", "object_spilling_dir", "local")],
)  # fmt: skip
def test_an_option_of_another_backend(backend: str, option: str, other: str) -> None:
    value = 1 if option == "nodes_per_host" else "x"
    with pytest.raises(TypeError) as raised:
        ray.init(backend=backend, **{option: value})
    assert str(raised.value) == f"{option} is an option of backend={other!r}, not of {backend!r}"


def test_storage_that_cannot_be_written_starts_no_process(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "none" / "x", tmp_path / "file" / "x"):
        with pytest.raises(ValueError, match=r"gcs_storage=.*not a directory"):
            ray.init(gcs_storage=path)
    assert not ray.is_initialized()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [({"gcs_storage": "/proc/x"}, "gcs_storage='/proc/x': /proc is not a directory to write to"),
     ({"gcs_storage": "/proc"}, "gcs_storage='/proc' is a directory: give a file"),
     ({"gcs_storage": "/dev/null"}, "gcs_storage='/dev/null' is a device: give a file"),
     ({"object_spilling_dir": "/proc"}, "object_spilling_dir: /proc is not a directory to write"),
     ({"journal": "/proc"}, "journal: /proc is not a directory to write to"),
     ({"journal": "/proc/x"}, "journal: /proc/x is not a directory to write to"),
     ({"journal": "/proc/x", "backend": "sim"}, "journal: /proc/x is not a file to write to")],
)  # fmt: skip
def test_a_directory_that_takes_no_file_starts_no_process(
    capfd: pytest.CaptureFixture[str], options: dict[str, Any], said: str
) -> None:
    """Whatever its mode says, and whoever asks: root may write everywhere."""
    with pytest.raises(ValueError, match=said):
        ray.init(nodes=1, cpus_per_node=1, **options)
    assert not ray.is_initialized()
    assert capfd.readouterr().err == ""


def test_two_names_of_an_option_may_agree() -> None:
    ray.init(backend="sim", cpus_per_node=2, num_cpus=2)
    assert ray.cluster_resources()["CPU"] == 2
    ray.shutdown()


def test_numbers_of_numpy_are_numbers() -> None:
    import numpy as np

    ray.init(backend="sim", num_cpus=np.float64(2), resources={"a": np.int64(3)})
    assert ray.cluster_resources()["a"] == 3
    ray.shutdown()


@pytest.mark.parametrize("command", [["exec", "x.py"], ["run", "fig9"], ["reproduce"]])
def test_a_seed_that_is_too_large_for_a_command(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "x.py").write_text("import ray; ray.init()")
    name, *rest = command
    done = subprocess.run(
        [sys.executable, "-m", "raytwin", name, "--seed", str(2**80), *rest],
        capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "--seed" in line
