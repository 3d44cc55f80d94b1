"""`raytwin bench` with real peers: its measurements, and that it leaves nothing behind."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from raytwin.scenarios.bench import gate, run
from raytwin.scenarios.bench.conversation import MARK, BenchError, Conversation
from raytwin.scenarios.bench.engines import OURS, SIMULATED
from raytwin.scenarios.bench.run import Effort, run_bench
from raytwin.scenarios.bench.side import cpu_s_by_pid
from raytwin.scenarios.bench.trees import Tree
from raytwin.scenarios.core.scenario import Silent
from tests.requirements import require

BRIEF = Effort(rounds=2, round_s=0.02, warm_up_s=0, fresh_rounds=1)
ROOT = Path(__file__).resolve().parents[2]
SESSION_VARIABLE = "RAYTWIN_TEST_SESSION"
"""Set by the tests' conftest: another benchmark on this machine is none of ours."""

TASKS = ("start_up", "idle_memory", "tasks_sync", "tasks_1000", "task_array")


@pytest.fixture
def no_side_left() -> Iterator[None]:
    """Fail if a process of a side is alive at the end, whoever its parent is."""
    yield
    assert not sides_alive()


def sides_alive() -> list[str]:
    """Return the processes of the sides that this test session has started."""
    session = os.environ[SESSION_VARIABLE]
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            if MARK in environment and environment.get(SESSION_VARIABLE) == session:
                found.append(f"{process.pid} {process.cmdline()}")
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def until(condition: Callable[[], bool], timeout_s: float = 30.0) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True


# -- what they measure -------------------------------------------------------------


@pytest.mark.slow
def test_ours_alone(tmp_path: Path, no_side_left: None) -> None:
    path = tmp_path / "bench.json"
    document = run_bench([], path, Silent(), BRIEF)
    assert json.loads(path.read_text()) == document
    assert document["host"]["cores"] > 0
    assert document["versions"]["raytwin"]
    rows = document["rows"]
    assert [row["name"] for row in rows] == list(run.NAMES)
    for row in rows:
        assert row["ours"] > 0
        assert row["range"][OURS][0] <= row["ours"] <= row["range"][OURS][1]
        assert len(row["samples"][OURS]) == row["rounds"]
        assert (row["peers"], row["ratio"]) == ({}, None)


@pytest.mark.ray
def test_beside_ray(no_side_left: None) -> None:
    require("ray", importlib.util.find_spec("ray") is not None, "pip install 'raytwin[ray]'")
    document = run_bench(
        ["ray"], None, Silent(), Effort(**{**vars(BRIEF), "names": TASKS, "rounds": 1})
    )
    rows = document["rows"]
    assert [row["name"] for row in rows] == list(TASKS)
    for row in rows:
        assert row["peers"]["ray"] > 0
        low, high = row["ratio_range"]["ray"]
        assert low <= row["ratio"] <= high
        wins = row["ours"] > row["peers"]["ray"]
        if row["rounds"] == 1:
            assert (row["ratio"] > 1) == (wins if row["better"] == "higher" else not wins)


@pytest.mark.slow
def test_beside_dask(no_side_left: None) -> None:
    installed = importlib.util.find_spec("distributed") is not None
    require("distributed", installed, "pip install 'raytwin[peers]'")
    names = ("task_array", "actor_sync", "get_small")
    document = run_bench(["dask"], None, Silent(), Effort(**{**vars(BRIEF), "names": names}))
    rows = document["rows"]
    assert {row["name"] for row in rows} == set(names)
    for row in rows:
        assert row["peers"]["dask"] > 0
        assert row["ratio"] > 0


def test_dask_waits_for_the_first_and_keeps_the_order() -> None:
    installed = importlib.util.find_spec("distributed") is not None
    require("distributed", installed, "pip install 'raytwin[peers]'")
    program = (
        "import tempfile, threading\n"
        "from raytwin.scenarios.bench import dask_engine as dask\n"
        "def same(x): return x\n"
        "class Sum:\n"
        "    def __init__(self): self.n = 0\n"
        "    def add(self, k):\n"
        "        self.n += k\n"
        "        return self.n\n"
        "if __name__ == '__main__':\n"
        "    dask.init(workers=2, directory=tempfile.mkdtemp())\n"
        "    f = dask.remote(same)\n"
        "    left = refs = [f.remote(i) for i in range(5)]\n"
        "    assert dask.get(refs) == list(range(5))\n"
        "    assert dask.get(f.map(range(3))) == [0, 1, 2]\n"
        "    assert dask.get(f.remote(dask.put(7))) == 7\n"
        "    for ref in refs:\n"
        "        ready, left = dask.wait(left)\n"
        "        assert ready == [ref]\n"
        "    assert left == []\n"
        "    actor = dask.remote(Sum).remote()\n"
        "    assert dask.get([actor.add.remote(2), actor.add.remote(3)])[-1] == 5\n"
        "    dask.shutdown()\n"
        "    print('all right')\n"
    )
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "program.py"
        path.write_text(program)
        done = subprocess.run(
            [sys.executable, str(path)],
            capture_output=True,
            text=True,
            cwd=Path(run.__file__).parents[2],
            env={**os.environ, "PYTHONPATH": str(Path(run.__file__).parents[2])},
            check=False,
        )
    assert "all right" in done.stdout, done.stderr


def test_cpu_is_that_of_all_processes_of_a_cluster(no_side_left: None) -> None:
    spin = "import time\nwhile time.process_time() < 0.2: pass\nprint('spun', flush=True)\ninput()"
    before = cpu_s_by_pid()
    with subprocess.Popen(
        [sys.executable, "-c", spin], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "spun\n"
        spent = cpu_s_by_pid()
        child.communicate("\n")
    assert child.pid not in before
    assert 0.2 <= spent[child.pid] < 10
    assert spent[os.getpid()] >= before[os.getpid()] > 0
    with Conversation(OURS) as conversation:
        conversation.start()
        conversation.ask("prepare", case="tasks_sync", warm_up_s=0, at_least=1)
        rate, cpu_s = conversation.ask("round", round_s=0.2)
        # No more than all cores, and some of it.
        assert 0 < cpu_s < (os.cpu_count() or 1) / rate


@pytest.mark.parametrize("engine", [OURS, SIMULATED])
def test_a_tree_without_this_benchmark_is_measured_by_it(
    engine: str, tmp_path: Path, no_side_left: None
) -> None:
    """An older commit has another one, or none: both sides run the same program."""
    for folder in ("raytwin", "runtime", "simulator"):
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True)
    with Conversation(engine, tree=Tree("older", root=tmp_path), hash_seed=1) as conversation:
        conversation.start()
        conversation.ask("prepare", case="tasks_1000", warm_up_s=0, at_least=1)
        rate, cpu_s = conversation.ask("round", round_s=0.02)
        assert rate > 0
        assert cpu_s > 0


def test_a_tree_that_is_not_what_is_imported_is_not_measured(
    tmp_path: Path, no_side_left: None
) -> None:
    """Else a commit would be compared with itself, and nothing would ever be slower."""
    with (
        pytest.raises(BenchError, match=r"nothing has imported .*__init__\.py"),
        Conversation(OURS, tree=Tree("nothing", root=tmp_path)) as conversation,
    ):
        conversation.start()


def test_a_gate_measures_both_trees(no_side_left: None) -> None:
    tree = Tree("this tree")
    rounds = gate.Rounds(tree, Tree("the same"), slices=2, slice_s=0.02, warm_up_s=0)
    found = gate.compare_trees(rounds, ["tasks_1000", "sim:tasks_1000"], 0.02, 2, Silent())
    assert [(row["name"], row["statistic"]) for row in found["rows"]] == [
        ("tasks_1000", "time"), ("tasks_1000", "cpu"), ("sim:tasks_1000", "cpu")
    ]  # fmt: skip
    for row in found["rows"]:
        assert len(row["old_s"]) == len(row["new_s"]) == 2
        assert all(cost > 0 for cost in row["old_s"] + row["new_s"])
        assert row["verdict"] == "undecided"


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no repository")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_gate_leaves_neither_process_nor_worktree(
    number: signal.Signals, tmp_path: Path, no_side_left: None
) -> None:
    # The directory of cluster files, which stays, is in another one.
    files, runtime = tmp_path / "files", tmp_path / "runtime"
    files.mkdir()
    runtime.mkdir()
    command = ["bench", "--against", "HEAD", "--cases", "tasks_sync"]
    with subprocess.Popen(
        [sys.executable, "-m", "raytwin", *command], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "TMPDIR": str(files), "XDG_RUNTIME_DIR": str(runtime),
             "PYTHONPATH": str(ROOT)},
    ) as process:  # fmt: skip
        assert until(lambda: len(sides_alive()) > 3)
        assert str(files) in worktrees()
        process.send_signal(number)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + number, stderr
    assert "Traceback" not in stderr
    assert not list(files.iterdir())
    assert str(files) not in worktrees()


def worktrees() -> str:
    return subprocess.run(
        ["git", "worktree", "list"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


# -- how they end ------------------------------------------------------------------


def test_a_failing_request_is_one_line_with_the_trace_attached(no_side_left: None) -> None:
    with (
        pytest.raises(BenchError, match="ours failed to round: AssertionError: nothing is") as told,
        Conversation(OURS) as conversation,
    ):
        conversation.ask("round", round_s=0.1)
    assert "Traceback" in told.value.__notes__[0]


def test_a_side_that_dies_is_an_error_and_its_cluster_goes_with_it(no_side_left: None) -> None:
    with pytest.raises(BenchError, match="ours has ended"), Conversation(OURS) as conversation:
        conversation.ask("start")
        family = psutil.Process(conversation.process.pid).children(recursive=True)
        assert family
        os.kill(conversation.process.pid, signal.SIGKILL)
        conversation.ask("prepare", case="tasks_sync")
    assert not psutil.wait_procs(family, timeout=10)[1]


def test_a_side_that_hangs_is_given_up(no_side_left: None) -> None:
    with (
        pytest.raises(BenchError, match="gave no answer in 3 s"),
        Conversation(OURS, answer_timeout_s=3.0) as conversation,
    ):
        conversation.ask("start")
        conversation.ask("prepare", case="tasks_sync")
        conversation.ask("round", round_s=600)


def test_output_of_an_engine_does_not_disturb_the_protocol(no_side_left: None) -> None:
    with Conversation(OURS) as conversation:
        conversation.ask("start")
        side = psutil.Process(conversation.process.pid)
        pipes = {os.readlink(f"/proc/self/fd/{end.fileno()}") for end in conversation.pipes}
        assert len(pipes) == 2
        for process in (side, *side.children(recursive=True)):
            standard = {os.readlink(f"/proc/{process.pid}/fd/{number}") for number in range(3)}
            assert not standard & pipes, process.cmdline()


def test_interrupt_leaves_nothing(tmp_path: Path, no_side_left: None) -> None:
    path = tmp_path / "bench.json"
    program = (
        "import pathlib, sys\n"
        "from raytwin.scenarios.bench.run import Effort, run_bench\n"
        "from raytwin.scenarios.cli.progress import Lines\n"
        "run_bench([], pathlib.Path(sys.argv[1]), Lines(sys.stdout),"
        " Effort(round_s=60, names=('tasks_sync',)))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(run.__file__).parents[2],
    ) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any(line.startswith("round 1") for line in lines)
        assert until(lambda: bool(sides_alive()))
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode not in (0, None)
    assert "KeyboardInterrupt" in stderr
    assert not path.exists()


def test_a_side_that_is_at_work_is_interrupted(no_side_left: None) -> None:
    """It saw the end of its requests only after its work, and was killed after 5 s."""
    with pytest.raises(KeyboardInterrupt), Conversation(OURS) as conversation:
        conversation.ask("start")
        conversation.ask("prepare", case="tasks_sync")
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        conversation.ask("round", round_s=60)
    assert conversation.process.returncode == 0


def test_an_abandoned_cluster_takes_its_file_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_side_left: None
) -> None:
    """Also if its driver is in the middle of something, and cannot see to it."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("raytwin.scenarios.bench.conversation.ABANDON_TIMEOUT_S", 2.0)
    with pytest.raises(KeyboardInterrupt), Conversation(OURS) as conversation:
        conversation.ask("start")
        assert list((tmp_path / "raytwin").iterdir())
        os.kill(conversation.process.pid, signal.SIGSTOP)
        raise KeyboardInterrupt
    assert not list((tmp_path / "raytwin").iterdir())


def test_killed_benchmark_leaves_nothing(tmp_path: Path) -> None:
    program = (
        "from raytwin.scenarios.core.scenario import Silent\n"
        "from raytwin.scenarios.bench.run import Effort, run_bench\n"
        "run_bench([], None, Silent(), Effort(round_s=0.2, rounds=9999, names=('tasks_sync',)))\n"
    )
    # The directory of cluster files, which stays, is in another one.
    files, runtime = tmp_path / "files", tmp_path / "runtime"
    files.mkdir()
    runtime.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=Path(run.__file__).parents[2],
        env={**os.environ, "TMPDIR": str(files), "XDG_RUNTIME_DIR": str(runtime)},
    ) as process:
        assert until(lambda: len(sides_alive()) > 3)
        assert list(files.iterdir())
        process.kill()
    assert until(lambda: not sides_alive()), sides_alive()
    assert not list(files.iterdir())
