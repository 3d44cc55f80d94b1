"""However a driver ends, the engine keeps no container and no network of its cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raytwin.runtime.containers.engine import LABEL
from tests.processes.helpers import LIMIT_S, eventually

pytestmark = pytest.mark.docker
ROOT = Path(__file__).resolve().parents[2]

PRELUDE = """
import os, signal, time
import raytwin as ray

@ray.remote
def f(x=0, seconds=0):
    time.sleep(seconds)
    return x

def start(**options):
    session = ray.init(backend="docker", nodes=3, cpus_per_node=1)
    assert ray.get(f.map(range(20)), timeout=30) == list(range(20))
    print("ready", session.cluster.name, flush=True)
    return session.cluster
"""


@pytest.fixture
def drive(docker_engine: Any) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Run a script as a driver."""
    started: list[subprocess.Popen[str]] = []

    def run(script: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(script)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def ready(process: subprocess.Popen[str]) -> str:
    """Wait until a driver's cluster is up; return the cluster's name."""
    assert process.stdout is not None
    words = process.stdout.readline().split()
    assert words and words[0] == "ready", process.communicate(timeout=LIMIT_S)[1]
    return words[1]


def left(client: Any, cluster: str) -> list[str]:
    """Return what an engine has of a cluster."""
    filters = {"label": f"{LABEL}={cluster}"}
    rows = client.api.containers(all=True, filters=filters)
    return [*(row["Names"][0] for row in rows), *map(str, client.networks.list(filters=filters))]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, -2), (signal.SIGTERM, -15)]
)
def test_after_a_signal(
    drive: Callable[[str], subprocess.Popen[str]],
    docker_engine: Any,
    number: signal.Signals,
    code: int,
) -> None:
    """One container is paused and one is disconnected: they do not notice the driver's end."""
    driver = drive("""
        cluster = start()
        cluster.pause_node(1)
        cluster.disconnect_node(2)
        print("broken", flush=True)
        ray.get(f.options(resources={"node:0": 0.01}).remote(1, 600))
    """)
    cluster = ready(driver)
    assert driver.stdout is not None and driver.stdout.readline() == "broken\n"
    assert len(left(docker_engine, cluster)) == 3
    driver.send_signal(number)
    _, err = driver.communicate(timeout=LIMIT_S)
    assert driver.returncode == code, err
    assert ("KeyboardInterrupt" in err) == (number == signal.SIGINT)
    eventually(lambda: not left(docker_engine, cluster))


def test_after_a_normal_end(
    drive: Callable[[str], subprocess.Popen[str]], docker_engine: Any
) -> None:
    driver = drive("start()")
    cluster = ready(driver)
    _, err = driver.communicate(timeout=LIMIT_S)
    assert (driver.returncode, err) == (0, "")
    assert not left(docker_engine, cluster)


def test_while_it_starts(drive: Callable[[str], subprocess.Popen[str]], docker_engine: Any) -> None:
    """Killed as soon as the first container is there; the other's creation is under way."""
    driver = drive("""
        from raytwin.runtime.containers import container_cluster
        real = container_cluster.NodeContainer.__init__
        def announce(self, recipe, *args):
            # In one write: the containers start on threads of their own, which print at once.
            os.write(1, f"ready {recipe.cluster}\\n".encode())
            real(self, recipe, *args)
        container_cluster.NodeContainer.__init__ = announce
        ray.init(backend="docker", nodes=3, cpus_per_node=1)
    """)
    cluster = ready(driver)
    eventually(lambda: left(docker_engine, cluster))
    driver.kill()
    driver.communicate(timeout=LIMIT_S)
    eventually(lambda: not left(docker_engine, cluster))


def test_a_container_ends_with_its_driver_where_the_watcher_was_killed(
    drive: Callable[[str], subprocess.Popen[str]], docker_engine: Any
) -> None:
    driver = drive("""
        cluster = start()
        cluster._watcher.dismiss()
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    cluster = ready(driver)
    driver.communicate(timeout=LIMIT_S)
    eventually(lambda: len(left(docker_engine, cluster)) == 1)
    (network,) = docker_engine.networks.list(filters={"label": f"{LABEL}={cluster}"})
    network.remove()
