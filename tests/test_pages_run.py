"""Every command and every program in the pages for readers runs.

Commands are the lines of blocks that are marked ``sh``, forms of commands in other blocks
(``raytwin status [--address host:port|auto]``: every option of a form is given, placeholders are
filled in), and what stands in backquotes with arguments. `SHORT` makes long ones short. They run
in a copy of the repository, which is removed.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer

from raytwin.scenarios.cli.main import app
from raytwin.scenarios.peers import simgrid_bag
from tests.requirements import require, require_namespaces

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TIMEOUT_S = 600.0
"""A calibration measures for a minute, where nothing else runs."""
NOT_COPIED = (
    ".git", ".venv", ".venv-oldest", "venv", "results", ".hypothesis", ".pytest_cache",
    ".mypy_cache", ".ruff_cache", ".import_linter_cache", ".benchmarks", "site",
)  # fmt: skip

ENDS_BY_CTRL_C = "raytwin start"
NAMES = "|".join(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
COMMAND = re.compile(r"(?:[A-Z_]+=\S+ )*(?:raytwin|make|python -m raytwin\.\S+)(?: .*)?|\. \S+")
PLACEHOLDERS = {
    "N": "2", "C": "1", "S": "3", "BYTES": "100000000", "NAME": "fig11b",
    "PLAN": "scenarios/applications/faults.json", "SCRIPT": "scenarios/applications/pipeline.py",
    "REV": "main", "ARGS...": "", "script.py": "scenarios/applications/counter.py",
}  # fmt: skip

CASES = "--cases tasks_sync"
BASELINE = "fig11b --scale quick"
BRIEF_GATE = "--cases sim:tasks_1000 --rounds 2"
REPOSITORY = (
    "git init -q -b main && git add . && "
    "git -c user.name=tests -c user.email=tests@localhost commit -qm copy"
)
"""Makes the copy a repository; a second time nothing is left to commit, and it exits with 1."""
JOURNALS = "raytwin exec --nodes 2 --journal journals scenarios/applications/pipeline.py"
FEW_ACTORS = "--set actors=10 --set period_s=0.05"
ONE_FAULT = '--set "faults=worker killed" --set rates_per_s=60 --set quiet_s=0.2 --set after_s=0.3'
MEASURED = {
    (
        f"raytwin whatif --nodes {nodes} --cpus-per-node 1 --measure {runs} --profile profile.json"
        f" scenarios/applications/{script}.py"
    ): f"{size}"
    for nodes, runs, script, size in (
        ("1,2", 3, "map_reduce", 2_000),
        ("1,2,4", 5, "actor_tree", 14),
        ("1,2,4", 5, "batch_prediction", 3),
        ("1,2,4", 5, "map_reduce", 2_000),
        ("1,2,4", 5, "monte_carlo_pi", 2_000),
        ("1,2,4", 5, "synchronous_server", 12),
    )
}
"""The scripts that are measured: what makes them short."""
ONE_CUT = '--set "cuts=both ways"'
FEW_POLICIES = "--nodes 2 --set tasks_per_cpu=3 --set policies=random,power-of-two"
SHORT = {
    **MEASURED,
    "raytwin run fig8b --backend sim --scale full": "--scale quick --nodes 1,2 --set tasks=1000",
    "raytwin run fig8b --nodes 10,100 --set tasks=1e7": (
        "--backend sim --nodes 1,2 --set tasks=1e3"
    ),
    "raytwin run fig11b --backend local --faults scenarios/applications/faults.json": FEW_ACTORS,
    "raytwin run fig11b --backend sim --faults scenarios/applications/faults.json": FEW_ACTORS,
    "raytwin run fig11a --backend sim,local": "--set time_factor=0.03 --set task_ms=10",
    "raytwin run fig11a --backend docker --nodes 3": "--set time_factor=0.03 --set task_ms=10",
    "raytwin run fig8b --backend sim --nodes 10,100": "--nodes 1,2 --set tasks=1e3",
    "raytwin run fig12a --backend local": "--nodes 2 --set repeats=1 --set bytes_on_host=1e6",
    "raytwin run fig13 --backend local": (
        "--nodes 2 --set repeats=1 --set width=32 --set batch=16 --set steps_on_host=12"
    ),
    "raytwin run fig8b --backend sim,local,ray": "--backend ray --nodes 1 --set tasks=1e2",
    "raytwin run fig8b --backend ray --nodes 1,2": "--nodes 1 --set tasks=1e2",
    "raytwin run recovery": f"--backend sim,local {ONE_FAULT}",
    (
        "raytwin run recovery --backend sim,local --profile profile.json --set rates_per_s=150 "
        "--set repeats=9"
    ): ONE_FAULT,
    "raytwin run recovery --backend sim --scale full --set repeats=20": (
        f"{ONE_FAULT} --set repeats=2"
    ),
    "raytwin run availability --backend sim": "--set intervals_s=2,1",
    "raytwin run partition --backend sim,local": ONE_CUT,
    "raytwin run partition --backend docker --nodes 3": ONE_CUT,
    "raytwin run table4": "--set repeats=1 --set draws=2 --set cpus=1,16",
    "raytwin run table4 --backend sim": "--set draws=2 --set cpus=1,16",
    "raytwin run table4 --backend local": "--set repeats=1 --set draws=2",
    "raytwin run table3": "--set repeats=1 --set round_s=0.1",
    "raytwin run table3 --backend sim,local": "--set repeats=1 --set round_s=0.1",
    "raytwin run table3 --backend local --set peers=fastapi,ray": (
        "--set repeats=1 --set round_s=0.1 --set peers=fastapi"
    ),
    "raytwin run fig14a --backend local": "--set iterations=6 --set pairs=4",
    "raytwin run fig14a --backend sim --nodes 4,128 --set step_us=500 --set add_us=140": (
        "--nodes 1,2 --set tasks=300"
    ),
    "raytwin run fig14b": (
        "--set cpus=8 --set steps=4000 --set iterations=4 --set steps_on_host=250 --set repeats=1"
    ),
    "raytwin run fig14b --backend sim --set gpu_host_usd=24.48 --set spot_share=0.25": (
        "--set cpus=8 --set steps=4000"
    ),
    "raytwin run slow-network --backend sim,local": (
        "--set delays_ms=0,20 --set tasks=20 --set passes=1"
    ),
    "raytwin run slow-network --backend sim,local,ray --set passes=1000 --set delays_ms=0,200": (
        "--set passes=3 --set delays_ms=0,20 --set tasks=20"
    ),
    "raytwin run policies --backend sim": FEW_POLICIES,
    "raytwin run policies --backend sim,local": f"--backend sim {FEW_POLICIES}",
    (
        "raytwin run policies --backend sim --nodes 100 --set skews=1,10,100 "
        "--set policies=power-of-two,batch-sampling"
    ): FEW_POLICIES,
    "raytwin fidelity --rounds 5": (
        "--rounds 2 --workloads sync,stream --profile simulator/profiles/paper.json"
    ),
    "raytwin fidelity --rounds 5 --search 12": (
        "--rounds 2 --workloads sync --search 2 --profile simulator/profiles/paper.json"
    ),
    "python -m raytwin.scenarios.peers.simgrid_bag": "--tasks 200 --nodes 4 --rounds 1",
    "python -m raytwin.scenarios.measure.simulation_speed": "--scale 0.002 --rounds 1",
    "raytwin fuzz --seeds 200": "--seeds 3",
    "raytwin fuzz --seeds 2000": "--seeds 3",
    "raytwin bench --peers ray,dask --json bench.json": f"{CASES} --rounds 2",
    "raytwin bench --peers ray --json bench.json": f"{CASES} --rounds 2",
    "raytwin bench --peers ray,dask --json results/bench.json": f"{CASES} --rounds 2",
    "python -m tests.fuzz_coverage --seeds 2500 --out results": "--seeds 4 --least 0",
    "raytwin bench --cases create_2000_actors,start_100_nodes,memory_100_nodes": (
        f"{CASES} --rounds 2"
    ),
    "raytwin bench --against main": BRIEF_GATE,
    (
        "raytwin bench --against main --cases tasks_sync,sim:tasks_1000 --json gate.json "
        "--markdown gate.md"
    ): BRIEF_GATE,
    (
        "raytwin bench --against main --json results/gate.json --markdown results/gate.md"
    ): BRIEF_GATE,
    "raytwin bench --json results/bench.json --history results/history.json": (
        f"{CASES} --rounds 2"
    ),
    "python -m tests.gate_proof --same 20 --burns 1 --sleeps 1 --out results/proof": (
        "--same 1 --burns 0 --sleeps 0 --rounds 2 --cases sim:tasks_1000"
    ),
    "raytwin baseline --check": BASELINE,
    "raytwin baseline --check fig11b --scale all": "--scale quick",
    "raytwin baseline --check --scale all": BASELINE,
    "raytwin baseline --update --scale all": BASELINE,
    "python -m tests.in_lanes": "-k links_lead",
    "python -m pytest tests/api": "--collect-only -q",
    'python -m pytest -m "not (browser or ray or docker or toxiproxy or slow or real)"': (
        "tests/control/test_ids.py"
    ),
    (
        'python -m pytest -m "not (browser or ray or docker or toxiproxy or slow or real)" '
        "--ignore tests/test_repository.py --ignore tests/test_docs.py "
        "--ignore tests/test_in_lanes.py --ignore tests/test_pages_run.py"
    ): "tests/control/test_ids.py",
    (
        "python -m pytest tests/benchmarks --benchmark-only "
        "--benchmark-json=results/microbenchmarks.json"
    ): "-k Plasma --benchmark-min-time=0.0001 --benchmark-max-time=0.1",
    "mypy": "runtime/control/core/ids.py",
    "raytwin replay --component journals/node-0.journal --break 5": "< continue.txt",
}
"""What is added to a long command. The last of two options of one name counts."""

CHECKS_MAY_FAIL = {
    "raytwin run fig14a --backend local",
    "raytwin run fig14a --backend sim --nodes 4,128 --set step_us=500 --set add_us=140",
    "raytwin run fig14b",
    "raytwin run recovery",
    "raytwin run partition --backend sim,local",
    "raytwin run partition --backend docker --nodes 3",
    "raytwin run fig11a --backend docker --nodes 3",
    "raytwin run fig11a --backend sim,local",
    "raytwin run table3",
    "raytwin run table3 --backend sim,local",
    "raytwin run table3 --backend local --set peers=fastapi,ray",
    "raytwin run table4",
    "raytwin run table4 --backend local",
}
"""Commands that judge measured rates, or what was learned: the tests' clock is short, and the
machine is busy."""

PROFILED = (
    "raytwin run recovery --backend sim,local --profile profile.json --set rates_per_s=150 "
    "--set repeats=9"
)
BEFORE = {
    **dict.fromkeys(
        (*MEASURED, PROFILED), "test -f profile.json || raytwin calibrate -o profile.json"
    ),
    "raytwin bench --against main": REPOSITORY,
    (
        "raytwin bench --against main --cases tasks_sync,sim:tasks_1000 --json gate.json "
        "--markdown gate.md"
    ): REPOSITORY,
    "make gate": REPOSITORY,
    "make gate AGAINST=main": REPOSITORY,
    "make proof": REPOSITORY,
    "raytwin compare before.json after.json": (
        "raytwin bench --cases tasks_sync --rounds 2 --json before.json && "
        "cp before.json after.json"
    ),
    "raytwin report results --scenario docs/my_scenario.py": (
        "raytwin run docs/my_scenario.py --backend sim"
    ),
    "raytwin replay --component journals/gcs.journal": JOURNALS,
    "raytwin replay --component journals/node-0.journal": JOURNALS,
    "raytwin replay --component journals/node-0.journal --break 5": (
        f"{JOURNALS} && echo continue > continue.txt"
    ),
    "raytwin report results": "raytwin run fig8b --backend sim --nodes 1,2 --set tasks=1000",
    "raytwin timeline results/fig11a/local": (
        "raytwin run fig11a --backend local --set time_factor=0.03 --set task_ms=10"
    ),
}
"""What writes that which a command reads, whether or not its checks hold."""

SHORT_PROGRAMS = {"range(1000)": "range(100)"}
"""What makes a program of a page shorter."""

USES = {
    "def square": "assert ray.get(square.map(range(9))) == [x * x for x in range(9)]\n",
    "class Counter": (
        "counter = Counter.remote()\n"
        "assert ray.get([counter.add.remote(n) for n in range(12)])[-1] == 66\n"
    ),
}
"""What is added to a program that defines something, by how it begins to."""


@dataclass(frozen=True)
class Command:
    """A command of a page, as it can be typed."""

    page: str
    text: str
    server: str = ""
    """The command before it in its block that keeps running meanwhile."""


def blocks(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the mark and the lines of each fenced block, then those of indented ones."""
    for mark, block in re.findall(r"(?ms)^```(\w*)\n(.*?)^```", text):
        yield mark, block.splitlines()
    prose = re.sub(r"(?ms)^```.*?^```", "", text)
    for block in re.findall(r"(?m)(?:^ {4}\S.*\n)+", prose):
        yield "", [line.strip() for line in block.splitlines()]


def filled(form: str) -> str:
    """Return the command that a form stands for, with all of its options."""
    form = re.sub(r"[][]", "", form)
    words = [word.rpartition("|")[2] for word in form.split()]
    return " ".join(filter(None, (PLACEHOLDERS.get(word, word) for word in words)))


def commands_of(page: str, text: str) -> Iterator[Command]:
    """Yield the commands of one page."""
    for mark, lines in blocks(text):
        server = ""
        for line in lines:
            typed = " ".join(re.sub(r"(^|\s)#.*", "", line).split())
            if mark == "python" or not typed or (mark != "sh" and not COMMAND.fullmatch(typed)):
                continue
            assert COMMAND.fullmatch(typed), f"{page}: {line!r} in a block of commands"
            command = Command(page, filled(typed), server)
            yield command
            if command.text.startswith(ENDS_BY_CTRL_C):
                server = command.text
    for span in re.findall(r"(?s)(?<!`)`([^`]+)`(?!`)", re.sub(r"(?ms)^```.*?^```", "", text)):
        typed = " ".join(span.split())
        # A name alone, as of a command that the text is about, is no command to type.
        if re.fullmatch(rf"(?:[A-Z_]+=\S+ )*(?:raytwin (?:{NAMES}) \S.*|make \w+.*)", typed):
            yield Command(page, filled(typed))


COMMANDS: dict[str, Command] = {}
"""Each once, by its text, where it stands first."""
for each in PAGES:
    for found in commands_of(each.name, each.read_text()):
        COMMANDS.setdefault(found.text, found)


def programs_of(page: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield a name and the source of the programs of one page, one after the other.

    If they start a cluster in two ways, the second as a comment, there are two.
    """
    source = ""
    for mark, lines in blocks(text):
        if mark == "python":
            block = "\n".join(lines) + "\n"
            source += block + "".join(use for begin, use in USES.items() if begin in block)
    for long, short in SHORT_PROGRAMS.items():
        source = source.replace(long, short)
    if source:
        yield page, source
    other, found = re.subn(r"(?m)^ray\.init\(.*\n# (ray\.init\(.*?\)).*$", r"\1", source)
    if found:
        yield f"{page}, started otherwise", other


PROGRAMS = dict(each for page in PAGES for each in programs_of(page.name, page.read_text()))


def recipe(command: str) -> list[str]:
    """Return what a ``make`` command would run, but for the installing."""
    variables, target = re.fullmatch(r"((?:[A-Z_]+=\S+ )*)make (.*)", command).groups()  # type: ignore[union-attr]
    stamps = [f"--old-file={sys.prefix}/.raytwin-{stamp}"
              for stamp in ("created", "installed", "installed-dev", "installed-ray")]  # fmt: skip
    done = subprocess.run(
        ["make", "--dry-run", *stamps, *shlex.split(target), f"VENV={sys.prefix}"],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    lines = [
        line.replace(f"{sys.prefix}/bin/", "").replace("cd .venv-oldest/work && ../bin/", "")
        for line in done.stdout.splitlines()
    ]
    skipped = (
        " -m pip ", " -m venv ", "touch ", "echo ", "command -v", "||", " -c ", ".venv-oldest",
    )  # fmt: skip
    kept = [line.strip() for line in lines if not any(word in f" {line}" for word in skipped)]
    return [variables + line for line in kept]


@functools.cache
def steps(command: str) -> tuple[str, ...]:
    """Return the short commands that are run for a command."""
    if re.match(r"(?:[A-Z_]+=\S+ )*make ", command):
        return tuple(step for each in recipe(command) for step in steps(each))
    return (f"{command} {SHORT.get(without_variables(command), '')}".strip(),)


def without_variables(command: str) -> str:
    """Return a command without what is set for it alone."""
    return re.sub(r"^(?:[A-Z_]+=\S+ )+", "", command)


def parameters() -> Iterator[Any]:
    """Yield a parameter for each command, with its name and marks."""
    for command in COMMANDS.values():
        peers = re.search(r"--peers|make bench|--backend (\w+,)*ray\b", command.text)
        marks = [pytest.mark.ray] if peers else []
        if "--backend docker" in command.text:
            marks.append(pytest.mark.docker)
        yield pytest.param(command, id=f"{command.page}: {command.text}", marks=marks)


# -- where they run --------------------------------------------------------------


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A copy of the repository, in which ``raytwin`` is its own."""
    # Unix sockets are below it, whose paths have at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="rtd-", dir="/tmp") as name:
        copy = Path(name) / "raytwin"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*NOT_COPIED))
        (copy.parent / "bin").mkdir()
        program = copy.parent / "bin" / "raytwin"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tests.short_commands "$@"\n')
        program.chmod(0o755)
        yield copy


UNSET = (
    "RAYTWIN_ADDRESS", "RAYTWIN_REQUIRE", "RAYTWIN_SOAK", "PYTEST_ADDOPTS",
    "PYTHONBREAKPOINT",  # Ray sets it in a process that has been its driver
)  # fmt: skip


def environment(folder: Path) -> dict[str, str]:
    """Return that of a shell in `folder` in which the environment is active."""
    (folder.parent / "run").mkdir(mode=0o700, exist_ok=True)
    path = [str(folder.parent / "bin"), os.path.join(sys.prefix, "bin"), os.environ["PATH"]]
    variables = {
        **os.environ, "PATH": os.pathsep.join(path), "PYTHONPATH": str(folder),
        "XDG_RUNTIME_DIR": str(folder.parent / "run"),
    }  # fmt: skip
    for name in UNSET:
        variables.pop(name, None)
    return variables


def run(command: str, folder: Path, codes: tuple[int, ...] = (0,)) -> None:
    """Run a command to its end and look at its exit code."""
    done = subprocess.run(
        ["sh", "-c", command], cwd=folder, env=environment(folder), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode in codes, (
        f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    )


@contextmanager
def kept_running(command: str, folder: Path) -> Iterator[None]:
    """Start a server and wait for its first line; end it with Ctrl-C."""
    with subprocess.Popen(
        ["sh", "-c", f"exec {command}"], cwd=folder, env=environment(folder), text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            assert re.search(r"\d+\.\d+\.\d+\.\d+:\d+", process.stdout.readline())
            yield
        finally:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(TIMEOUT_S)
    assert process.returncode in (0, 128 + signal.SIGINT, -signal.SIGINT)


def engine() -> tuple[bool, str]:
    """Return whether a Docker engine answers, and the error if none does."""
    from raytwin.runtime.containers.engine import NoEngine, connect

    try:
        connect().close()
    except NoEngine as error:
        return False, str(error)
    return True, ""


# -- the tests ---------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(480)
@pytest.mark.parametrize("command", list(parameters()))
def test_a_command_runs(command: Command, folder: Path, request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("ray"):
        for peer, package in ("ray", "ray"), ("peers", "distributed"):
            require(peer, find_spec(package) is not None, f"{package} is not installed")
        if "slow-network" in command.text:
            require_namespaces()
    if request.node.get_closest_marker("docker"):
        require("docker", *engine())
    if "simgrid" in command.text:
        require("simgrid", not simgrid_bag.missing(), simgrid_bag.missing())
    if "ppo.py" in command.text:
        require("rl", find_spec("gymnasium") is not None, "gymnasium is not installed")
    if command.text.startswith(ENDS_BY_CTRL_C):
        with kept_running(command.text, folder):
            pass
        return
    if command.text in BEFORE:
        run(BEFORE[command.text], folder, (0, 1))
    assert steps(command.text), "nothing of it runs"
    for step in steps(command.text):
        if command.server:
            with kept_running(command.server, folder):
                run(step, folder)
        else:
            run(step, folder, (0, 1) if command.text in CHECKS_MAY_FAIL else (0,))


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs(name: str, folder: Path) -> None:
    (folder / "program.py").write_text(PROGRAMS[name])
    run("python program.py", folder)


def test_commands_and_programs_are_found_wherever_they_stand() -> None:
    page = (
        "`raytwin list`, `raytwin fuzz --seeds\nN`\n\n"
        "    raytwin status [--address host:port|auto]\n"
        "```sh\nraytwin start  # until Ctrl-C\nX=1 raytwin exec a.py\n```\n"
        "```text\nraytwin does this\n```\n```python\nmake = 1\n```\n"
    )
    found = [(each.text, each.server) for each in commands_of("page", page)]
    assert found == [
        ("raytwin start", ""), ("X=1 raytwin exec a.py", "raytwin start"),
        ("raytwin does this", ""), ("raytwin status --address auto", ""),
        ("raytwin fuzz --seeds 2", ""),
    ]  # fmt: skip
    with pytest.raises(AssertionError, match="in a block of commands"):
        list(commands_of("page", "```sh\nrm -r everything\n```\n"))


@pytest.mark.parametrize("command", ["raytwin nothing", "raytwin exec absent.py", "false"])
def test_a_command_that_fails_is_seen(command: str, folder: Path) -> None:
    with pytest.raises(AssertionError, match="exit"):
        run(command, folder)


def test_no_entry_of_the_tables_is_left_over() -> None:
    texts = set(COMMANDS)
    ran = {without_variables(each) for each in texts}
    ran |= {without_variables(line) for each in texts if re.match(r".*\bmake ", each)
            for line in recipe(each)}  # fmt: skip
    assert set(SHORT) <= ran
    assert set(BEFORE) | CHECKS_MAY_FAIL <= texts
    sources = "".join(page.read_text() for page in PAGES)
    assert all(text in sources for text in (*USES, *SHORT_PROGRAMS))
