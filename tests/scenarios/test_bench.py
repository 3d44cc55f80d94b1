"""`raytwin bench`: rows, interleaving, refusals, and that nothing is left behind."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import raytwin
from scenarios.base import Silent, UsageError
from scenarios.bench import BenchError, Effort, cases, engines, large, run, run_bench
from scenarios.bench.conversation import MARK, Conversation
from scenarios.bench.engines import OURS
from scenarios.bench.limits import LIMITS, Limits
from tests.requirements import require

HIGHER = cases.CASES["tasks_sync"]
LOWER = cases.FRESH["start_up"]
BRIEF = Effort(rounds=3, round_s=0.02, limit_s=0.01, fresh_rounds=1, settle_s=0.1)
SESSION_VARIABLE = "RAYTWIN_TEST_SESSION"
"""Set by the tests' conftest: another benchmark on this machine is none of ours."""

TASKS = ("start_up", "idle_memory", "tasks_sync", "tasks_1000", "task_array")
REQUIRED = ["name", "ours", "peers", "ratio", "unit"]


def samples(ours: list[float], ray: list[float], limit: list[float]) -> run.Samples:
    return run.Samples({OURS: ours, "ray": ray}, limit)


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


# -- rows --------------------------------------------------------------------------


def test_ratio_is_the_median_of_rounds_and_not_a_ratio_of_medians() -> None:
    # Medians are 20 and 10, and the rounds' own ratios 10, 1 and 3.
    found = run.row(HIGHER, samples([10, 20, 60], [1, 20, 20], [40, 40, 99]), [OURS, "ray"])
    assert found["ours"] == 20
    assert found["peers"] == {"ray": 20}
    assert found["ratio"] == found["ratios"]["ray"] == 3
    assert found["ratio_range"] == {"ray": [1, 10]}
    assert found["range"] == {OURS: [10, 60], "ray": [1, 20]}
    assert found["limit"]["fraction"] == 0.5
    assert found["rounds"] == 3
    assert found["better"] == "higher"


def test_less_is_better_for_seconds() -> None:
    found = run.row(LOWER, samples([1, 2], [8, 8], [0.3, 0.3]), [OURS, "ray"])
    assert found["ratio"] == 6
    assert found["limit"]["fraction"] == pytest.approx(0.2)
    assert found["better"] == "lower"


def test_without_peers_there_is_no_ratio() -> None:
    found = run.row(HIGHER, run.Samples({OURS: [5.0]}, [10.0]), [OURS])
    assert found["peers"] == {}
    assert found["ratio"] is None
    assert list(found)[:5] == REQUIRED


def test_every_case_says_what_it_is() -> None:
    assert set(run.NAMES) == {
        "start_up", "idle_memory", "first_put_800mb", "tasks_sync", "tasks_1000", "task_array",
        "wait_1000",
        "put_small", "get_small", "put_1mb", "put_800mb", "actor_sync", "actor_1000",
        "create_100_actors",
    }  # fmt: skip
    assert set(run.KNOWN) - set(run.NAMES) == set(large.LARGE) == set(large.FUNCTIONS)
    for case in (*cases.CASES.values(), *cases.FRESH.values(), *large.LARGE.values()):
        assert case.about.endswith("."), case.name
        assert case.limit in LIMITS, case.name


# -- rounds ------------------------------------------------------------------------


class Fake:
    """A side, and the limits, that note what they are asked and answer 1, 2, 3, ..."""

    def __init__(self, name: str, log: list[tuple[str, str]]) -> None:
        self.name, self.log, self.count = name, log, 0

    def ask(self, what: str, **details: Any) -> float | None:
        self.log.append((self.name, what))
        self.count += 1
        return float(self.count)

    def measure(self, what: str, round_s: float = 0.0, **details: Any) -> float:
        self.ask(what)
        return float(self.count)

    def forget(self) -> None:
        self.log.append((self.name, "forget"))


def test_rounds_interleave_and_the_first_ones_only_warm_up() -> None:
    log: list[tuple[str, str]] = []
    fakes = {name: Fake(name, log) for name in (OURS, "ray")}
    effort = Effort(rounds=2, warm_up_rounds=1)
    found = run.measure_case(HIGHER, fakes, Fake("limits", log), effort, Silent())
    rounds = [name for name, what in log if what in ("round", HIGHER.limit)]
    assert rounds == [OURS, "ray", *["limits", OURS, "ray"] * 2]
    # 1 is the answer to "prepare", 2 that to the round that warms up.
    assert found.sides == {OURS: [3, 4], "ray": [3, 4]}
    assert log[-3:] == [(OURS, "finish"), ("ray", "finish"), ("limits", "forget")]


def test_what_a_peer_lacks_is_not_asked_of_it_and_the_row_says_why() -> None:
    case = cases.CASES["create_100_actors"]
    log: list[tuple[str, str]] = []
    fakes = {name: Fake(name, log) for name in (OURS, "ray", "dask")}
    found = run.measure_case(case, fakes, Fake("limits", log), Effort(rounds=9), Silent())
    assert not [what for name, what in log if name == "dask"]
    # It takes long: fewer rounds than asked for, and one to warm up.
    assert case.rounds_max is not None
    assert len(found.sides[OURS]) == len(found.limit) == case.rounds_max < 9
    assert sum(name == "ray" and what == "round" for name, what in log) == case.rounds_max + 1
    row = run.row(case, found, [OURS, "ray", "dask"])
    assert list(row["peers"]) == list(row["ratios"]) == ["ray"]
    assert list(row["left_out"]) == ["dask"]
    assert "worker" in row["left_out"]["dask"]


def test_the_first_peer_that_has_the_case_gives_the_ratio() -> None:
    case = cases.CASES["create_100_actors"]
    found = run.row(case, run.Samples({OURS: [6.0]}, [10.0]), [OURS, "dask"])
    assert (found["peers"], found["ratio"]) == ({}, None)


def test_an_actor_that_does_not_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "END_TIMEOUT_S", 0.05)
    with subprocess.Popen(["sleep", "60"]) as process:
        pidfd = os.pidfd_open(process.pid)
        with pytest.raises(TimeoutError, match="an actor is alive"):
            cases.await_ends([pidfd])
        process.kill()
        process.wait()
    with pytest.raises(OSError):
        os.fstat(pidfd)


def test_ended_actors_are_waited_for() -> None:
    with subprocess.Popen(["sleep", "0.05"]) as process:
        cases.await_ends([os.pidfd_open(process.pid)])
        assert process.poll() == 0


def test_what_does_not_fit_into_memory_is_left_out_aloud(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    progress = Silent()
    monkeypatch.setattr(progress, "say", said.append)
    large = ("put_800mb", "create_100_actors")
    available = max(cases.CASES[name].memory_bytes for name in large) * 1.5

    class Memory:
        def __init__(self) -> None:
            self.available = available

    monkeypatch.setattr(psutil, "virtual_memory", Memory)
    alone = [case.name for case in run.affordable(cases.CASES, run.NAMES, 1, progress)]
    assert set(large) <= set(alone)
    assert not said
    beside = [case.name for case in run.affordable(cases.CASES, run.NAMES, 2, progress)]
    assert beside == [name for name in alone if name not in large]
    assert len(said) == len(large)
    assert all(any(name in line for line in said) for name in large)


def test_an_operation_is_repeated_for_the_length_of_a_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 100.0

    def operation() -> None:
        nonlocal now_s
        now_s += 0.25

    monkeypatch.setattr(cases.time, "perf_counter", lambda: now_s)
    # Five, since four end at 1.0 s: before the round does.
    assert cases.repeated_per_s(operation, 1.1) == pytest.approx(4.0)
    assert now_s == pytest.approx(101.25)


@pytest.mark.parametrize("name", LIMITS)
def test_limits_are_measured(name: str) -> None:
    with Limits() as limits:
        assert limits.measure(name, 0.01) > 0


def test_large_clusters_are_what_they_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("NODES", 3), ("ACTOR_NODES", 2), ("ACTORS", 5)):
        monkeypatch.setattr(large, name, value)
    for measure in large.FUNCTIONS.values():
        try:
            assert measure(raytwin) > 0
        finally:
            raytwin.shutdown()


def test_large_clusters_are_measured_alone_and_anew_in_each_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[tuple[str, str]] = []

    class Side(Fake):
        def __init__(self, engine: str, answer_timeout_s: float) -> None:
            super().__init__(engine, log)

        def __enter__(self) -> Side:
            return self

        def __exit__(self, *_: object) -> None:
            self.log.append((self.name, "end"))

    monkeypatch.setattr(run, "Conversation", Side)
    each = large.LARGE["create_2000_actors"]
    found = run.measure_large(each, Fake("limits", log), Effort(large_rounds=2), Silent())
    assert found.sides == {OURS: [1, 1]}
    assert log == [("limits", each.limit), (OURS, "large"), (OURS, "end")] * 2


def test_a_peer_that_a_large_cluster_is_not_measured_on_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []

    class Loud(Silent):
        def say(self, text: str) -> None:
            said.append(text)

    def measured(*_: object) -> run.Samples:
        assert said, "it is said before it takes its time"
        return run.Samples({OURS: [1.0]}, [1.0])

    monkeypatch.setattr(run, "check_peers", lambda peers: None)
    monkeypatch.setattr(run, "measure_large", measured)
    (row,) = run_bench(["ray"], None, Loud(), Effort(names=("create_2000_actors",)))
    why = "it is measured for ours alone"
    assert said[-1] == f"create_2000_actors is left out for ray: {why}"
    assert (row["left_out"], row["peers"], row["ratio"]) == ({"ray": why}, {}, None)


# -- refusals ----------------------------------------------------------------------


def test_unknown_peer() -> None:
    with pytest.raises(UsageError, match="no peer 'rya': did you mean 'ray'"):
        run_bench(["rya"], None, Silent())


def test_peer_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'raytwin\[ray\]'"):
        run_bench(["ray"], None, Silent())
    with pytest.raises(UsageError, match=r"pip install 'raytwin\[peers\]'"):
        run_bench(["dask"], None, Silent())


def test_peer_whose_store_would_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(engines, "STORE_BYTES", 1 << 60)
    require("shared memory", Path("/dev/shm").exists(), "no /dev/shm")
    with pytest.raises(UsageError, match="GB are needed"):
        run_bench(["ray"], None, Silent())


def test_unknown_case() -> None:
    with pytest.raises(UsageError, match="did you mean 'tasks_sync'"):
        run_bench([], None, Silent(), Effort(names=("task_sync",)))


# -- real sides --------------------------------------------------------------------


@pytest.mark.slow
def test_ours_alone(tmp_path: Path, no_side_left: None) -> None:
    path = tmp_path / "bench.json"
    rows = run_bench([], path, Silent(), BRIEF)
    assert json.loads(path.read_text()) == rows
    assert [row["name"] for row in rows] == list(run.NAMES)
    for row in rows:
        assert row["ours"] > 0
        assert row["range"][OURS][0] <= row["ours"] <= row["range"][OURS][1]
        assert row["limit"]["value"] > 0
        assert (row["peers"], row["ratio"]) == ({}, None)


@pytest.mark.ray
def test_beside_ray(no_side_left: None) -> None:
    require("ray", importlib.util.find_spec("ray") is not None, "pip install 'raytwin[ray]'")
    rows = run_bench(["ray"], None, Silent(), Effort(**{**vars(BRIEF), "names": TASKS}))
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
    names = ("tasks_sync", "task_array", "actor_sync", "put_small", "get_small")
    rows = run_bench(["dask"], None, Silent(), Effort(**{**vars(BRIEF), "names": names}))
    assert {row["name"] for row in rows} == set(names)
    for row in rows:
        assert row["peers"]["dask"] > 0
        assert row["ratio"] > 0
        assert row["left_out"] == {}


def test_dask_waits_for_the_first_and_keeps_the_order() -> None:
    installed = importlib.util.find_spec("distributed") is not None
    require("distributed", installed, "pip install 'raytwin[peers]'")
    program = (
        "import tempfile, threading\n"
        "from scenarios.bench import dask_engine as dask\n"
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
        family = psutil.Process(conversation.pid).children(recursive=True)
        assert family
        os.kill(conversation.pid, signal.SIGKILL)
        conversation.ask("prepare", case="tasks_sync")
    assert not psutil.wait_procs(family, timeout=10)[1]


def test_a_side_that_hangs_is_given_up(no_side_left: None) -> None:
    with (
        pytest.raises(BenchError, match="gave no answer in 3 s"),
        Conversation(OURS, answer_timeout_s=3.0) as conversation,
    ):
        conversation.ask("memory", settle_s=600)


def test_what_an_engine_prints_does_not_get_into_the_conversation(no_side_left: None) -> None:
    with Conversation(OURS) as conversation:
        conversation.ask("start")
        side = psutil.Process(conversation.pid)
        pipes = {os.readlink(f"/proc/self/fd/{end.fileno()}") for end in conversation.pipes}
        assert len(pipes) == 2
        for process in (side, *side.children(recursive=True)):
            standard = {os.readlink(f"/proc/{process.pid}/fd/{number}") for number in range(3)}
            assert not standard & pipes, process.cmdline()


def test_interrupt_leaves_nothing(tmp_path: Path, no_side_left: None) -> None:
    path = tmp_path / "bench.json"
    program = (
        "import pathlib, sys\n"
        "from scenarios.bench import Effort, run_bench\n"
        "from scenarios.progress import Lines\n"
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
        assert any(line.startswith("tasks_sync") for line in lines)
        assert until(lambda: bool(sides_alive()))
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode not in (0, None)
    assert "KeyboardInterrupt" in stderr
    assert not path.exists()


def test_cases_that_were_complete_are_kept(tmp_path: Path, no_side_left: None) -> None:
    path = tmp_path / "bench.json"
    names = ("put_small", "tasks_sync")
    rows = []

    def after(row: dict[str, Any]) -> None:
        rows.append(row)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_bench([], path, Silent(), Effort(**{**vars(BRIEF), "names": names}), after)
    assert [row["name"] for row in rows] == ["tasks_sync"]
    assert json.loads(path.read_text()) == {"incomplete": ["put_small"], "rows": rows}


def test_an_abandoned_cluster_takes_its_file_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_side_left: None
) -> None:
    """Also if its driver is in the middle of something, and cannot see to it."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("scenarios.bench.conversation.ABANDON_TIMEOUT_S", 2.0)
    with pytest.raises(KeyboardInterrupt), Conversation(OURS) as conversation:
        conversation.ask("start")
        assert list((tmp_path / "raytwin").iterdir())
        os.kill(conversation.pid, signal.SIGSTOP)
        raise KeyboardInterrupt
    assert not list((tmp_path / "raytwin").iterdir())


def test_killed_benchmark_leaves_nothing(tmp_path: Path) -> None:
    program = (
        "from scenarios.base import Silent\n"
        "from scenarios.bench import Effort, run_bench\n"
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
