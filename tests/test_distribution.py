"""The built wheel works where the repository is not, and takes no name but `raytwin`.

The wheel is installed into an empty environment. Its dependencies are not downloaded a second
time: a ``.pth`` file there names the site-packages of the environment that runs the tests. Python
reads no ``.pth`` of a folder that is added in this way, so that the editable raytwin of that
environment stays out of sight. Whether the declared dependencies suffice is `make oldest`'s.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("runtime", "simulator", "chaos", "scenarios", "reports")
PROGRAM = """
from pathlib import Path
import sys

import raytwin as ray

# No decoy shadows the package, and the repository is out of reach.
assert Path(ray.__file__).is_relative_to(sys.prefix), ray.__file__


@ray.remote
def add(a, b):
    return a + b


for backend in ("local", "sim"):
    ray.init(backend=backend, nodes=2, cpus_per_node=1)
    print(backend, ray.get([add.remote(i, 1) for i in range(3)]))
    ray.shutdown()
"""
TYPED = """
from __future__ import annotations

import raytwin as ray


@ray.remote
def add(a: int, b: int) -> int:
    return a + b


ray.init(backend="sim", nodes=2)
reference: ray.ObjectRef = add.remote(1, 2)
print(ray.get([reference], timeout=5.0))
"""
WRONGLY_TYPED = """
import raytwin as ray

ray.sleep("long")
ray.get(5)
"""

TEST = """
import pytest
import raytwin as ray


@pytest.mark.faults([{"at_s": 0.1, "action": "kill", "target": "node:1"}])
def test_it(raytwin_cluster):
    raytwin_cluster(backend="sim")
    ray.sleep(1)
    assert len([row for row in ray.nodes() if row["Alive"]]) == 1
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Installed:
    """An environment with the wheel, and a folder to work in that is full of decoys."""

    def __init__(self, folder: Path) -> None:
        self.environment = folder / "environment"
        self.work = folder / "work"
        for name in FOLDERS:
            (self.work / name).mkdir(parents=True)
            (self.work / name / "__init__.py").write_text("raise ImportError('a decoy')\n")

    def path(self, name: str) -> str:
        """Return the path of a program of the environment."""
        return str(self.environment / "bin" / name)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the folder of decoys, with no setting that leads out of there."""
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "MYPY", "RAYTWIN_ADDRESS"))
        }
        return subprocess.run(
            command,
            check=False,
            cwd=self.work,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )

    def output(self, *command: str) -> str:
        """Run a command that has to succeed; return what it prints."""
        done = self.run(*command)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip(sys.executable, "wheel", str(ROOT), "--no-deps", "--wheel-dir", str(folder))
    (built,) = folder.glob("raytwin-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    place = Installed(tmp_path_factory.mktemp("installed"))
    venv.create(place.environment, with_pip=False, symlinks=True)
    pip(place.path("python"), "install", "--no-deps", "--no-index", str(wheel))
    (packages,) = place.environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return place


def pip(python: str, *arguments: str) -> None:
    """Run the test environment's pip for the environment of an interpreter."""
    command = [sys.executable, "-m", "pip", "--python", python, "--quiet", "--no-input"]
    done = subprocess.run(
        [*command, *arguments],
        check=False,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr


def test_the_wheel_has_the_fault_plans_and_their_schema(wheel: Path) -> None:
    within = set(zipfile.ZipFile(wheel).namelist())
    faults = ROOT / "chaos" / "faults"
    files = [*faults.glob("plans/*.yaml"), faults / "plan.schema.json"]
    assert len(files) > 1
    assert {f"raytwin/{file.relative_to(ROOT)}" for file in files} <= within


def test_the_wheel_has_every_module_and_no_other_package(wheel: Path) -> None:
    within = {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")}
    folders = [(ROOT / folder).rglob("*.py") for folder in FOLDERS]
    modules = [*(ROOT / "raytwin").glob("*.py"), *(path for each in folders for path in each)]
    names = [path.relative_to(ROOT).as_posix().removeprefix("raytwin/") for path in modules]
    # Beside the package: pytest imports the plugin at every start, which must not import all of it.
    assert within == {*(f"raytwin/{name}" for name in names), "raytwin_pytest.py"}


def test_a_program_runs_on_processes_and_in_the_simulator(installed: Installed) -> None:
    (installed.work / "program.py").write_text(PROGRAM)
    out = installed.output(installed.path("python"), "program.py")
    assert out.splitlines() == ["local [1, 2, 3]", "sim [1, 2, 3]"]


def test_the_command_lists_the_scenarios(installed: Installed) -> None:
    by_name = installed.output(installed.path("raytwin"), "list")
    assert "fig8a" in by_name
    assert installed.output(installed.path("python"), "-m", "raytwin", "list") == by_name


def test_the_commands_run_a_scenario_and_report_it(installed: Installed) -> None:
    raytwin = installed.path("raytwin")
    installed.output(raytwin, "run", "fig11b", "--backend", "sim", "--scale", "quick")
    installed.output(raytwin, "report", "results", "-o", "report.html")
    assert "fig11b" in (installed.work / "report.html").read_text()


def test_pytest_has_the_plugin_and_tests_use_it(installed: Installed) -> None:
    (installed.work / "test_it.py").write_text(TEST)
    out = installed.output(installed.path("python"), "-m", "pytest", "test_it.py")
    assert "1 passed" in out
    assert "raytwin-" in out.split("plugins: ")[1].splitlines()[0]


def test_the_commands_find_scenarios_of_other_packages(installed: Installed) -> None:
    (packages,) = installed.environment.glob("lib/python*/site-packages")
    folder = packages / "others-1.2.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.2\n")
    (folder / "entry_points.txt").write_text("[raytwin.scenarios]\ndarts = others:SCENARIO\n")
    (packages / "others.py").write_text((ROOT / "docs" / "my_scenario.py").read_text())
    raytwin = installed.path("raytwin")
    assert "(from others 1.2)" in installed.output(raytwin, "list", "darts")
    installed.output(raytwin, "run", "darts", "--backend", "sim", "--out", "others")
    installed.output(raytwin, "report", "others")


def test_a_type_checker_reads_the_installed_types(installed: Installed) -> None:
    def check(text: str) -> subprocess.CompletedProcess[str]:
        (installed.work / "typed.py").write_text(text)
        python = installed.path("python")
        return installed.run(
            sys.executable, "-m", "mypy", "--python-executable", python, "--strict", "typed.py"
        )

    right, wrong = check(TYPED), check(WRONGLY_TYPED)
    assert right.returncode == 0, right.stdout + right.stderr
    assert wrong.returncode == 1
    assert wrong.stdout.count('has incompatible type "') == 2, wrong.stdout
