"""Workers and nodes that die, hang or come back: results stay right, nothing hangs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import raytwin as ray
from raytwin.runtime.api.exceptions import ObjectLostError, RaySystemError, WorkerCrashedError
from tests.processes.conftest import Start
from tests.processes.helpers import LIMIT_S, eventually, workers_of

MB = 1 << 20


def get(refs: Any) -> Any:
    return ray.get(refs, timeout=LIMIT_S)


@ray.remote
def identity(x: Any) -> Any:
    return x


@ray.remote
def once(path: str, harm: str, value: Any) -> Any:
    """Come to harm the first time, return the value the next."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return value
    if harm == "exit":
        os._exit(3)
    elif harm == "sys.exit":
        raise SystemExit(3)
    elif harm == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    os.kill(os.getpid(), signal.SIGKILL)


@ray.remote
def make(nbytes: int) -> Any:
    return np.ones(nbytes, np.uint8)


def on(function: Any, node: int, **options: Any) -> Any:
    return function.options(resources={f"node:{node}": 0.01}, **options)


@pytest.fixture
def one(start: Start) -> Any:
    return start(nodes=1, cpus_per_node=2)


@pytest.mark.usefixtures("one")
@pytest.mark.parametrize("harm", ["exit", "sys.exit", "segfault", "kill"])
def test_a_task_whose_worker_dies_is_retried(tmp_path: Path, harm: str) -> None:
    assert get(once.remote(str(tmp_path / "a"), harm, "value")) == "value"
    refs = [once.remote(str(tmp_path / str(i)), harm, i) for i in range(8)]
    others = identity.map(range(500))
    assert get(refs) == list(range(8))
    assert get(others) == list(range(500))


@pytest.mark.usefixtures("one")
def test_one_bad_element_of_a_map_does_not_harm_the_others(tmp_path: Path) -> None:
    @ray.remote
    def element(i: int) -> int:
        if i == 37 and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os._exit(1)
        return i

    assert get(element.map(range(1000))) == list(range(1000))
    assert (tmp_path / "died").exists()


@pytest.mark.usefixtures("one")
def test_without_retries_the_death_of_a_worker_is_an_error(tmp_path: Path) -> None:
    refs = [
        once.options(max_retries=0).remote(str(tmp_path / "a"), "kill", 1),
        once.options(max_retries=0).remote(str(tmp_path / "b"), "exit", 1),
    ]
    for ref in refs:
        with pytest.raises(WorkerCrashedError, match="once"):
            get(ref)
    with pytest.raises(WorkerCrashedError):
        get(identity.remote(refs[0]))
    assert get(identity.remote(1)) == 1


@pytest.mark.usefixtures("one")
def test_retries_come_to_an_end(tmp_path: Path) -> None:
    @ray.remote(max_retries=2)
    def always() -> None:
        with (tmp_path / "tries").open("a") as file:
            file.write("x")
        os._exit(1)

    with pytest.raises(WorkerCrashedError):
        get(always.remote())
    assert (tmp_path / "tries").read_text() == "xxx"


@pytest.mark.usefixtures("one")
def test_user_errors_are_not_retried(tmp_path: Path) -> None:
    @ray.remote
    def fails() -> None:
        with (tmp_path / "tries").open("a") as file:
            file.write("x")
        raise ValueError

    with pytest.raises(ValueError):
        get(fails.remote())
    assert (tmp_path / "tries").read_text() == "x"


def test_idle_workers_that_are_killed_are_replaced(one: Any) -> None:
    node = one.cluster.pids["node:0"]
    for _ in range(5):
        workers = eventually(lambda: workers_of(node))
        for worker in workers:
            worker.kill()
        assert get([identity.remote(i) for i in range(20)]) == list(range(20))


def test_a_worker_that_is_killed_at_random_moments(one: Any) -> None:
    node = one.cluster.pids["node:0"]
    slow = ray.remote(max_retries=-1)(lambda i: (time.sleep(0.01), i)[1])
    nested = ray.remote(max_retries=-1)(lambda i: sum(ray.get([slow.remote(i) for _ in range(3)])))
    refs = [nested.remote(i) for i in range(20)]
    for _ in range(8):
        time.sleep(0.03)
        workers = workers_of(node)
        if workers:
            workers[len(workers) // 2].kill()
    assert get(refs) == [3 * i for i in range(20)]


def test_a_killed_worker_frees_what_it_held(one: Any) -> None:
    @ray.remote(max_retries=0)
    def hold() -> None:
        held = ray.put(np.zeros(MB, np.uint8))
        kept = ray.get(held)
        os._exit(len(kept) % 2)

    for _ in range(3):
        with pytest.raises(WorkerCrashedError):
            get(hold.remote())

    def empty() -> bool:
        get(ray.put(None))
        return one.query("stores") == [[0, 0, 0, 0]]

    eventually(empty)


# -- nodes ---------------------------------------------------------------------


@pytest.fixture
def three(start: Start) -> Iterator[Any]:
    session = start(nodes=3, cpus_per_node=1, heartbeat_timeout_s=3.0)
    eventually(lambda: session.cluster.poll() or "node:2" in session.cluster.pids)
    yield session


def kill_node(session: Any, number: int) -> None:
    session.cluster.kill(f"node:{number}", signal.SIGKILL)


def dead(number: int) -> bool:
    return not ray.nodes()[number]["Alive"]


@pytest.mark.parametrize("array", [False, True])
def test_tasks_of_a_killed_node_run_elsewhere(three: Any, array: bool) -> None:
    slow = ray.remote(lambda i: (time.sleep(0.02), i)[1])
    refs = slow.map(range(200)) if array else [slow.remote(i) for i in range(200)]
    time.sleep(0.5)
    kill_node(three, 1)
    assert get(refs) == list(range(200))
    eventually(lambda: dead(1))
    assert get(slow.map(range(20))) == list(range(20))
    assert "killed" in ray.nodes()[1]["DeathReason"] or ray.nodes()[1]["DeathReason"]


def test_two_of_three_nodes_are_killed(three: Any) -> None:
    slow = ray.remote(lambda i: (time.sleep(0.02), i)[1])
    refs = slow.map(range(150))
    time.sleep(0.3)
    kill_node(three, 1)
    time.sleep(0.2)
    kill_node(three, 2)
    assert get(refs) == list(range(150))


def test_without_retries_the_death_of_a_node_is_an_error(three: Any) -> None:
    ref = on(ray.remote(max_retries=0)(time.sleep), 1).remote(60)
    time.sleep(0.3)
    kill_node(three, 1)
    with pytest.raises(WorkerCrashedError):
        get(ref)


def test_the_only_copy_of_an_object_dies_with_its_node(three: Any) -> None:
    lost, copied = (on(make, 1, max_retries=0).remote(MB) for _ in range(2))
    small = on(identity, 1).remote("small")
    assert len(get(copied)) == MB
    assert ray.wait([lost, small], num_returns=2, timeout=LIMIT_S, fetch_local=False)[1] == []
    kill_node(three, 1)
    eventually(lambda: dead(1))
    with pytest.raises(ObjectLostError, match=r"only copy was on node 1.*make has no retries left"):
        get(lost)
    with pytest.raises(ObjectLostError):
        get(identity.remote(lost))
    with pytest.raises(ObjectLostError):
        get(on(identity, 2).remote(lost))
    assert len(get(copied)) == MB
    assert get(small) == "small"
    assert get(on(identity, 2).remote(small)) == "small"


def test_a_task_that_only_a_dead_node_could_run_waits(three: Any) -> None:
    kill_node(three, 1)
    eventually(lambda: dead(1))
    ref = on(identity, 1).remote(1)
    assert ray.wait([ref], timeout=0.2) == ([], [ref])
    assert get(identity.remote(2)) == 2


def test_a_paused_node_is_declared_dead_and_leaves_when_it_comes_back(three: Any) -> None:
    slow = ray.remote(lambda i: (time.sleep(0.02), i)[1])
    held = on(make, 1, max_retries=0).remote(MB)
    assert ray.wait([held], timeout=LIMIT_S, fetch_local=False)[0]
    pid = three.cluster.pids["node:1"]
    refs = slow.map(range(150))
    time.sleep(0.2)
    os.kill(pid, signal.SIGSTOP)
    try:
        assert get(refs) == list(range(150))
        # What only it had is lost, although it is not known to be gone.
        with pytest.raises(ObjectLostError):
            get(held)
        assert "heartbeat" in ray.nodes()[1]["DeathReason"]
    finally:
        os.kill(pid, signal.SIGCONT)
    process = psutil.Process(pid) if psutil.pid_exists(pid) else None
    eventually(lambda: process is None or not process.is_running())
    assert get(slow.map(range(30))) == list(range(30))


def test_a_fetch_from_a_paused_node_ends_when_it_is_declared_dead(three: Any) -> None:
    held = on(make, 1, max_retries=0).remote(64 * MB)
    assert ray.wait([held], timeout=LIMIT_S, fetch_local=False)[0]
    pid = three.cluster.pids["node:1"]
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(ObjectLostError):
            get(on(identity, 2).remote(held))
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_driver_without_its_node_gets_an_error(one: Any) -> None:
    ref = ray.remote(time.sleep).remote(60)
    one.cluster.kill("node:0", signal.SIGKILL)
    with pytest.raises(RaySystemError, match="gone"):
        get(ref)
    with pytest.raises(RaySystemError, match="gone"):
        get(identity.remote(1))
    with pytest.raises(RaySystemError, match="gone"):
        ray.put(np.zeros(MB, np.uint8))


@pytest.mark.parametrize("victim", ["head", "zygote"])
def test_a_driver_without_head_or_zygote_gets_an_error(one: Any, victim: str) -> None:
    ref = ray.remote(time.sleep).remote(60)
    time.sleep(0.1)
    os.kill(one.cluster.pids[victim], signal.SIGKILL)
    with pytest.raises(RaySystemError, match="gone"):
        get(ref)


def test_processes_of_user_code_end_with_its_worker(one: Any) -> None:
    @ray.remote
    def start_child() -> int:
        import subprocess

        return subprocess.Popen(["sleep", "600"]).pid

    pid = get(start_child.remote())
    assert psutil.pid_exists(pid)
    for worker in workers_of(one.cluster.pids["node:0"]):
        worker.kill()
    eventually(lambda: not psutil.pid_exists(pid))
    another = get(start_child.remote())
    ray.shutdown()
    eventually(lambda: not psutil.pid_exists(another))
