"""However a driver ends, nothing of its cluster stays: no process, file or zombie.

Each test runs a driver as a process of its own and looks at the machine before
and after it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from tests.processes.helpers import LIMIT_S, eventually

ROOT = Path(__file__).resolve().parents[2]
MARK = "RAYTWIN_TEST_DRIVER"

PRELUDE = """
import os, signal, subprocess, sys, threading, time
import raytwin as ray

@ray.remote
def f(x=0, seconds=0):
    time.sleep(seconds)
    return x

def start(**options):
    session = ray.init(**{"nodes": 3, "cpus_per_node": 1, **options})
    assert ray.get(f.map(range(20)), timeout=30) == list(range(20))
    big = ray.put(bytes(3_000_000))
    assert len(ray.get(big, timeout=30)) == 3_000_000
    print("ready", session.cluster.pids["zygote"], flush=True)
    return session
"""


class Driver:
    """A script that runs as a driver, and the traces that it must not leave."""

    def __init__(self, script: str) -> None:
        self.mark = uuid4().hex
        # The other lanes' programs come and go in the machine's own.
        self.folder = Path(tempfile.mkdtemp())
        self.process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(script)],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "TMPDIR": str(self.folder),
                MARK: self.mark,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )

    def wait_ready(self) -> int:
        """Wait until the cluster is up and used; return the zygote's PID."""
        assert self.process.stdout is not None
        words = self.process.stdout.readline().split()
        assert words and words[0] == "ready", self.process.communicate(timeout=LIMIT_S)[1]
        return int(words[1])

    def end(self) -> tuple[int, str, str]:
        """Wait for its end and check that nothing is left; return (code, out, err)."""
        out, err = self.process.communicate(timeout=LIMIT_S)
        eventually(lambda: not self.descendants())
        eventually(lambda: not files(self.folder))
        shutil.rmtree(self.folder)
        assert not [p for p in psutil.Process().children() if p.status() == psutil.STATUS_ZOMBIE]
        return self.process.returncode, out, err

    def descendants(self) -> list[psutil.Process]:
        """Return every process that inherited this driver's environment."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found


def files(folder: Path) -> set[str]:
    """Return what a cluster with this directory for temporary files could have left.

    The folder for the files of all clusters that run stays.
    """
    of_all = folder / f"raytwin-{os.getuid()}"
    made = {str(path) for path in folder.rglob("*") if path != of_all}
    return made | {str(path) for path in Path("/dev/shm").iterdir() if "raytwin" in path.name}


@pytest.fixture
def drivers() -> Iterator[list[Driver]]:
    """Drivers that a failed test did not end."""
    started: list[Driver] = []
    yield started
    for driver in started:
        if driver.process.poll() is None:
            driver.process.kill()
            driver.process.communicate()
        shutil.rmtree(driver.folder, ignore_errors=True)


def run(script: str) -> tuple[int, str, str]:
    return Driver(script).end()


def test_after_a_normal_end() -> None:
    code, _, err = run("start()")
    assert (code, err) == (0, "")


def test_after_a_shutdown_and_more_work() -> None:
    code, _, err = run("""
        for _ in range(2):
            start()
            ray.shutdown()
            children = subprocess.run(["ps", "--ppid", str(os.getpid())], capture_output=True)
            assert b"rt-" not in children.stdout
    """)
    assert (code, err) == (0, "")


def test_after_an_exception() -> None:
    code, _, err = run("""
        start()
        f.remote(1, 60)
        raise LookupError("the end")
    """)
    assert code == 1
    assert err.strip().endswith("LookupError: the end")


@pytest.mark.parametrize(("call", "code"), [("sys.exit(3)", 3), ("os._exit(4)", 4)])
def test_after_an_exit(call: str, code: int) -> None:
    assert run(f"start(); f.remote(1, 60); {call}")[::2] == (code, "")


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, -15), (signal.SIGKILL, -9), (signal.SIGINT, -2), (signal.SIGHUP, -1)],
)
def test_after_a_signal(number: signal.Signals, code: int, drivers: list[Driver]) -> None:
    driver = Driver("""
        start()
        ray.get(f.remote(1, 60))
    """)
    drivers.append(driver)
    driver.wait_ready()
    time.sleep(0.3)
    driver.process.send_signal(number)
    found, _, err = driver.end()
    assert found == code
    assert ("KeyboardInterrupt" in err) == (number == signal.SIGINT)


def test_a_program_may_go_on_after_ctrl_c(drivers: list[Driver]) -> None:
    driver = Driver("""
        start()
        for _ in range(3):
            try:
                ray.get(f.remote(1, 1))
                assert False, "not interrupted"
            except KeyboardInterrupt:
                print("interrupted", flush=True)
        assert ray.get(f.map(range(50)), timeout=30) == list(range(50))
    """)
    drivers.append(driver)
    driver.wait_ready()
    assert driver.process.stdout is not None
    for _ in range(3):
        time.sleep(0.2)
        driver.process.send_signal(signal.SIGINT)
        assert driver.process.stdout.readline().strip() == "interrupted"
    code, _, err = driver.end()
    assert (code, err) == (0, "")


def test_after_the_death_of_the_zygote(drivers: list[Driver]) -> None:
    driver = Driver("""
        start()
        try:
            ray.get(f.remote(1, 60))
        except ray.exceptions.RaySystemError as error:
            print(error)
    """)
    drivers.append(driver)
    os.kill(driver.wait_ready(), signal.SIGKILL)
    code, out, _ = driver.end()
    assert code == 0
    assert "the cluster is gone" in out


def test_after_a_zygote_that_hangs(drivers: list[Driver]) -> None:
    driver = Driver("""
        import raytwin.runtime.processes.spawn.local_cluster
        raytwin.runtime.processes.spawn.local_cluster.END_TIMEOUT_S = 0.5
        start()
        sys.stdin.read()
        time.sleep(0.5)
    """)
    drivers.append(driver)
    os.kill(driver.wait_ready(), signal.SIGSTOP)
    assert driver.end()[0] == 0


def test_while_it_starts(drivers: list[Driver]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        for delay_s in (0.0, 0.05, 0.1, 0.2):
            driver = Driver("""
                print("go", flush=True)
                ray.init(nodes=8, cpus_per_node=1)
            """)
            drivers.append(driver)
            assert driver.process.stdout is not None
            driver.process.stdout.readline()
            time.sleep(delay_s)
            driver.process.send_signal(number)
            driver.end()


def test_after_a_start_that_fails_half_way() -> None:
    code, out, err = run("""
        import raytwin.runtime.processes.spawn.local_cluster as cluster
        real = cluster.LocalCluster._spawn_node
        def spawn(self, number, driver=None):
            if number == 2:
                raise OSError("no more")
            real(self, number, driver)
        before = len(os.listdir("/proc/self/fd"))
        cluster.LocalCluster._spawn_node = spawn
        try:
            ray.init(nodes=3)
        except OSError as error:
            print(error)
        assert not ray.is_initialized()
        cluster.LocalCluster._spawn_node = real
        start()
        ray.shutdown()
        import gc; gc.collect()
        assert len(os.listdir("/proc/self/fd")) <= before + 2, os.listdir("/proc/self/fd")
    """)
    assert (code, err) == (0, "")
    assert out.startswith("no more")


def test_a_node_that_dies_at_its_start_fails_the_init() -> None:
    code, out, _ = run("""
        import raytwin.runtime.processes.spawn.local_cluster as cluster
        real = cluster.LocalCluster._spawn_node
        def spawn(self, number, driver=None):
            real(self, number, driver)
            self.kill(f"node:{number}", signal.SIGKILL)
        cluster.LocalCluster._spawn_node = spawn
        try:
            ray.init(nodes=3)
        except RuntimeError as error:
            print(error)
        assert not ray.is_initialized()
    """)
    assert code == 0
    assert "did not start" in out and "SIGKILL" in out


def test_a_forked_child_leaves_its_parents_cluster_alone() -> None:
    code, _, err = run("""
        import multiprocessing
        session = start()
        ref, big = f.remote(7), ray.put(bytes(1_000_000))
        value = ray.get(big)

        def child(how):
            assert not ray.is_initialized()
            try:
                ray.get(ref)
            except ray.exceptions.RaySystemError:
                pass
            else:
                raise AssertionError("a child used its parent's reference")
            session.shutdown()
            ray.shutdown()
            if how == "own":
                ray.init(nodes=1, cpus_per_node=1)
                assert ray.get(f.remote(8), timeout=30) == 8
            sys.exit(0)

        for how in ("plain", "own"):
            process = multiprocessing.get_context("fork").Process(target=child, args=(how,))
            process.start()
            process.join(30)
            assert process.exitcode == 0, process.exitcode
            pid = os.fork()
            if pid == 0:
                child(how)
            assert os.waitpid(pid, 0)[1] == 0
            assert ray.get(f.map(range(100)), timeout=30) == list(range(100))
        assert value == ray.get(big, timeout=30)
        assert ray.get(ref, timeout=30) == 7
    """)
    assert (code, err) == (0, "")


def test_a_child_that_outlives_the_driver_keeps_nothing_alive(drivers: list[Driver]) -> None:
    driver = Driver("""
        start()
        if os.fork() == 0:
            os.execv("/bin/sleep", ["sleep", "600"])
        print("forked", flush=True)
    """)
    drivers.append(driver)
    driver.wait_ready()
    # The child keeps the driver's environment and pipes: look for the others.
    eventually(lambda: driver.process.poll() is not None)
    eventually(lambda: [p.name() for p in driver.descendants()] == ["sleep"])
    driver.descendants()[0].kill()
    driver.end()


def test_init_on_another_thread() -> None:
    code, out, err = run("""
        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
        assert ray.get(f.remote(5), timeout=30) == 5
        print("used")
    """)
    assert (code, err) == (0, "")
    assert out.endswith("used\n")


def test_a_thread_that_goes_on_when_the_main_thread_ends() -> None:
    code, out, err = run("""
        start()
        def work():
            time.sleep(0.2)
            print(sum(ray.get(f.map(range(10)), timeout=30)))
        threading.Thread(target=work).start()
    """)
    assert (code, err) == (0, "")
    assert out.endswith("45\n")


def test_a_daemon_thread_that_waits_for_ever() -> None:
    code, _, _ = run("""
        start()
        def work():
            try:
                ray.get(f.remote(1, 600))
            except ray.exceptions.RaySystemError:
                pass
        threading.Thread(target=work, daemon=True).start()
        time.sleep(0.2)
    """)
    assert code == 0


def test_shutdown_ends_the_waits_of_other_threads() -> None:
    code, _, err = run("""
        for _ in range(5):
            start()
            ended = []
            def work():
                try:
                    ray.get(f.remote(1, 600))
                except ray.exceptions.RaySystemError:
                    ended.append(1)
            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            time.sleep(0.05)
            ray.shutdown()
            for thread in threads:
                thread.join(30)
                assert not thread.is_alive()
            assert len(ended) == 4, ended
    """)
    assert (code, err) == (0, "")


def test_a_signal_handler_that_shuts_down(drivers: list[Driver]) -> None:
    driver = Driver("""
        def handler(number, frame):
            ray.shutdown()
            sys.exit(5)
        signal.signal(signal.SIGTERM, handler)
        start()
        ray.get(f.remote(1, 600))
    """)
    drivers.append(driver)
    driver.wait_ready()
    time.sleep(0.2)
    driver.process.terminate()
    assert driver.end()[0] == 5


def test_output_of_tasks_is_visible() -> None:
    code, out, err = run("""
        start()
        def speak():
            print("to stdout")
            print("to stderr", file=sys.stderr)
        ray.get(ray.remote(speak).remote(), timeout=30)
    """)
    assert code == 0
    assert "to stdout\n" in out
    assert err == "to stderr\n"


@pytest.mark.parametrize("backend", ["local", "sim"])
def test_after_the_command_line_is_terminated(
    backend: str, drivers: list[Driver], tmp_path: Path
) -> None:
    """A directory for the storage of fig10b's cluster is what only the command line takes away."""
    command = ["raytwin", "run", "fig10b", "--backend", backend, "--out", str(tmp_path / "out")]
    driver = Driver(f"""
        from raytwin.scenarios.cli import main as cli
        sys.argv[:] = {command}
        cli.main()
    """)
    drivers.append(driver)
    eventually(lambda: files(driver.folder))
    time.sleep(0.2)
    # As `timeout` does it, twice.
    driver.process.send_signal(signal.SIGTERM)
    driver.process.send_signal(signal.SIGTERM)
    code, _, err = driver.end()
    assert code == 143, err
    assert "terminated" in err.splitlines()[-1]
    assert "Traceback" not in err
