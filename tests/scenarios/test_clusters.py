"""``raytwin start`` and ``raytwin status``, and scripts that join their clusters."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "RAYTWIN_ADDRESS"}
    return {**kept, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **more}


def raytwin(*args: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "raytwin", *args],
        env=environment(**more), capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def own_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The newest cluster is this test's, whatever else runs on the machine."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def kept(own_directory: None) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A cluster that `raytwin start` keeps: its process, and its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "raytwin", "start", "--nodes", "2", "--cpus-per-node", "3"],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    said = process.stdout.readline()
    found = re.search(r"running at (\S+):", said)
    assert found is not None, said + process.communicate(timeout=LIMIT_S)[1]
    yield process, found.group(1)
    process.kill()
    process.communicate()


@pytest.mark.parametrize("victim", ["rt-head", "rt-node:0"])
def test_a_cluster_that_nobody_can_join_any_more_is_not_kept(
    kept: tuple[subprocess.Popen[str], str], victim: str
) -> None:
    process, _ = kept
    family = psutil.Process(process.pid).children(recursive=True)
    (found,) = [each for each in family if each.name() == victim]
    found.kill()
    said, wrong = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert f"the cluster has ended ({victim[3:]}: " in said, wrong
    psutil.wait_procs(family, timeout=LIMIT_S)
    assert not [each for each in family if each.is_running()]


def test_a_cluster_is_kept_for_programs_until_it_is_interrupted(
    kept: tuple[subprocess.Popen[str], str], tmp_path: Path
) -> None:
    process, address = kept
    script = tmp_path / "script.py"
    script.write_text(
        "import ray\n"
        "context = ray.init(namespace='mine')\n"
        "f = ray.remote(lambda x: x + 1)\n"
        "print(ray.get(f.remote(1)), len(ray.nodes()), context.address_info['address'])\n"
    )
    for found in (
        raytwin("exec", "--address", address, str(script)),
        raytwin("exec", str(script), RAYTWIN_ADDRESS="auto"),
    ):
        assert found.stdout.strip() == f"2 2 {address}", found.stderr
    alone = raytwin("exec", "--nodes", "1", str(script), RAYTWIN_ADDRESS=address)
    assert alone.stdout.startswith("2 1 ") and address not in alone.stdout
    shown = raytwin("status", "--address", address)
    assert shown.returncode == 0, shown.stderr
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["cluster", "at", address] in lines
    assert [line[:4] for line in lines if line[1:2] == ["alive"]] == [
        ["0", "alive", "3/3", "CPU,"], ["1", "alive", "3/3", "CPU,"],
    ]  # fmt: skip
    assert [line[0] for line in lines if "mine" in line] == ["2", "3"]
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, rest, errors) == (0, "", "")
    gone = raytwin("status", "--address", address)
    assert gone.returncode == 2 and "no raytwin cluster" in gone.stderr


def test_impossible_options_take_one_line() -> None:
    for args in (["status", "--address", "nowhere"], ["start", "--nodes", "100000"]):
        found = raytwin(*args)
        assert found.returncode == 2
        assert len(found.stderr.splitlines()) == 1, found.stderr


WHERE = """
import ray
try:
    context = ray.init({address!r})
    print(len(ray.nodes()), context.address_info["address"])
except (ConnectionError, ValueError) as error:
    print(type(error).__name__, error)
"""


def test_the_address_of_a_script_means_what_it_means_without_exec(
    kept: tuple[subprocess.Popen[str], str], tmp_path: Path
) -> None:
    """Nothing starts in the place of a cluster that the script names."""
    _, address = kept
    for given, options, said in (
        ("auto", [], f"2 {address}"),
        (address, [], f"2 {address}"),
        ("1.2.3.4:5", [], "ConnectionError no raytwin cluster"),
        ("1.2.3.4:5", ["--backend", "local"], "ConnectionError no raytwin cluster"),
        (address, ["--nodes", "3"], f"ValueError the cluster at '{address}' is there already"),
        ("1.2.3.4:5", ["--backend", "sim"], "ValueError a simulated cluster lives"),
        ("ray://localhost:1", [], "ValueError raytwin cannot connect to 'ray://"),
    ):
        script = tmp_path / "script.py"
        script.write_text(WHERE.format(address=given))
        found = raytwin("exec", *options, str(script), RAYTWIN_ADDRESS="9.9.9.9:9")
        assert found.stdout.startswith(said), (given, options, found.stdout, found.stderr)
        assert found.stderr == ""


def test_an_address_overridden_by_the_command_line_is_reported(
    kept: tuple[subprocess.Popen[str], str], tmp_path: Path
) -> None:
    _, address = kept
    for given, options, told, nodes in (
        ("1.2.3.4:5", ["--address", address], address, 2),
        ("1.2.3.4:5", ["--address", "local", "--nodes", "3"], "local", 3),
        ("1.2.3.4:5", ["--address", "local", "--backend", "sim"], "local", 1),
        ("auto", ["--backend", "sim", "--nodes", "4"], "local", 4),
    ):
        script = tmp_path / "script.py"
        script.write_text(
            WHERE.format(address=given).replace('context.address_info["address"]', "0")
        )
        found = raytwin("exec", *options, str(script))
        assert found.stdout == f"{nodes} 0\n", (given, options, found.stdout, found.stderr)
        # What a simulated script has used comes after it.
        assert found.stderr.splitlines()[0] == (
            f"raytwin: the script's address {given!r} is {told!r} for the options of the"
            " command line"
        )


def test_auto_finds_no_cluster_where_none_runs(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(WHERE.format(address="auto"))
    found = raytwin("exec", str(script))
    assert found.stdout.startswith("ConnectionError no raytwin cluster of this user is running")


def test_a_script_does_not_run_if_it_could_not_join(
    kept: tuple[subprocess.Popen[str], str], tmp_path: Path
) -> None:
    _, address = kept
    script = tmp_path / "script.py"
    script.write_text("print('runs')")
    for options, said in (
        (["--address", "foo"], "cannot connect to 'foo'"),
        (["--address", ""], "cannot connect to ''"),
        (["--address", "localhost:1"], "no raytwin cluster"),
        (["--address", address, "--nodes", "2", "--seed", "1"], "--nodes, --seed cannot be chosen"),
        (["--address", address, "--backend", "sim"], "--backend cannot be chosen"),
    ):
        found = raytwin("exec", *options, str(script))
        assert (found.returncode, found.stdout) == (2, ""), options
        (line,) = found.stderr.splitlines()
        assert said in line
    assert (
        raytwin("exec", "--address", address, "--backend", "local", str(script)).stdout == "runs\n"
    )
