"""`raytwin exec`: scripts written for Ray, on raytwin."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0
BACKENDS = pytest.mark.parametrize("backend", ["sim", "local"])

HELPER = """
import ray

@ray.remote
def helped(x):
    from ray.exceptions import RayError
    return x, RayError.__name__

def plain(x):
    return ray.get(ray.put(x))
"""

SCRIPT = """
import sys
import helper
import ray
import ray.util.scheduling_strategies as strategies
from ray.exceptions import RayTaskError
from ray.util.multiprocessing import Pool
from ray.util.placement_group import placement_group

class Point:
    def __init__(self, x):
        self.x = x

@ray.remote
def move(point):
    return Point(point.x + 1)

@ray.remote
def bad():
    raise KeyError("k")

if __name__ == "__main__":
    ray.init("auto", num_cpus=9, include_dashboard=False, log_to_driver=False)
    print(sys.argv[1:], len(ray.nodes()), ray.cluster_resources()["CPU"])
    point = ray.get(move.remote(Point(1)))
    print(type(point) is Point, point.x)
    print(ray.get(helper.helped.remote(2)), ray.get(ray.remote(helper.plain).remote(3)))
    try:
        ray.get(bad.remote())
    except RayTaskError as error:
        print(isinstance(error, KeyError))
    with Pool(2) as pool:
        print(pool.map(lambda x: x * x, range(4)))
    print(ray.get(placement_group([{"CPU": 1}]).ready()).bundle_specs)
    sys.exit(7)
"""


def run(
    folder: Path, script: str, *options: str, args: tuple[str, ...] = ()
) -> tuple[int, str, str]:
    """Run a script; return (exit code, standard output, standard error)."""
    path = folder / "script.py"
    path.write_text(script, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "raytwin", "exec", *options, str(path), *args],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@BACKENDS
def test_a_script_runs_unchanged(tmp_path: Path, backend: str) -> None:
    (tmp_path / "helper.py").write_text(HELPER, encoding="utf-8")
    options = ("--backend", backend, "--nodes", "2", "--cpus-per-node", "3", "--seed", "5")
    code, out, err = run(tmp_path, SCRIPT, *options, args=("--nodes", "x"))
    assert out.splitlines() == [
        "['--nodes', 'x'] 2 6.0",
        "True 2",
        "(2, 'RayError') 3",
        "True",
        "[0, 1, 4, 9]",
        "[{'CPU': 1.0}]",
    ], err
    assert code == 7


@BACKENDS
def test_without_init_the_command_line_counts_too(tmp_path: Path, backend: str) -> None:
    script = "import ray\nray.get(ray.put(1))\nprint(len(ray.nodes()))"
    code, out, err = run(tmp_path, script, "--backend", backend, "--nodes", "3")
    assert (code, out) == (0, "3\n"), err


def test_an_exception_looks_as_pythons(tmp_path: Path) -> None:
    script = "def f():\n    raise ValueError('boom')\nf()\n"
    path = tmp_path / "script.py"
    code, out, err = run(tmp_path, script)
    plain = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert (code, out, err) == (plain.returncode, plain.stdout, plain.stderr)
    code, _, err = run(tmp_path, "1 +")
    assert code == 1
    assert err.splitlines()[-1].startswith("SyntaxError")


INTERRUPTED = """
import os, signal, sys, time
if sys.argv[1:] == ["ray"]:
    import ray
    ray.init()
    ray.get(ray.put(1))
print("begun")
def f():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
f()
"""


def test_ctrl_c_ends_it_with_the_traceback_that_python_prints(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    for args in ((), ("ray",)):
        code, out, err = run(tmp_path, INTERRUPTED, args=args)
        plain = subprocess.run(
            [sys.executable, str(path)],
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        assert (code, out, err) == (130, plain.stdout, plain.stderr)
    assert err.splitlines()[-1] == "KeyboardInterrupt"


def test_sigterm_ends_it_as_it_ends_python(tmp_path: Path) -> None:
    script = "import os, signal\nprint(signal.getsignal(15) is signal.SIG_DFL, flush=True)\n"
    code, out, err = run(tmp_path, script + "os.kill(os.getpid(), signal.SIGTERM)")
    assert (code, out, err) == (-15, "True\n", "")


AS_PYTHON_HAS_IT = """
def f(x: int) -> str: ...
class C:
    y: float
print(f.__annotations__, C.__annotations__, __annotations__)
print(__file__, f.__code__.co_filename)
import sys
print(sys.argv)
"""


def test_the_script_is_compiled_and_named_as_python_does(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(AS_PYTHON_HAS_IT, encoding="utf-8")
    printed = [
        subprocess.run(
            [sys.executable, *command, "script.py"],
            capture_output=True, text=True, timeout=LIMIT_S, check=True, cwd=tmp_path,
        ).stdout
        for command in ((), ("-m", "raytwin", "exec"))
    ]  # fmt: skip
    assert printed[0].startswith("{'x': <class 'int'>")
    assert printed[0] == printed[1]


def test_exit_codes(tmp_path: Path) -> None:
    assert run(tmp_path, "import sys; sys.exit(3)")[0] == 3
    code, _, err = run(tmp_path, "raise SystemExit('so long')")
    assert (code, err) == (1, "so long\n")


def test_unsupported_names_are_named(tmp_path: Path) -> None:
    for line in ("import ray.data", "from ray import tune", "import ray\nray.train"):
        code, _, err = run(tmp_path, line)
        assert code == 1
        assert "ray.data" in err or "tune" in err or "raytwin has no ray.train" in err


def test_bad_command_lines(tmp_path: Path) -> None:
    code, _, err = run(tmp_path, "", "--backend", "dask")
    assert code == 2
    assert len(err.splitlines()) == 1
    gone = subprocess.run(
        [sys.executable, "-m", "raytwin", "exec", str(tmp_path / "none.py")],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert gone.returncode == 2
    assert len(gone.stderr.splitlines()) == 1
