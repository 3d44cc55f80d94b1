"""Programs for clusters of containers; containers import this module."""

from __future__ import annotations

import hashlib
import os
import socket
import time
from typing import Any

import raytwin as ray
from tests.processes.helpers import LIMIT_S


@ray.remote(max_retries=-1)
def double(x: int) -> int:
    time.sleep(0.01)
    return 2 * x


@ray.remote(max_retries=-1)
def large(x: int) -> bytes:
    return bytes([x % 256]) * 300_000


@ray.remote(max_retries=-1)
def digest(*values: bytes) -> str:
    return hashlib.sha256(b"".join(values)).hexdigest()


@ray.remote(max_retries=-1)
def total(count: int) -> int:
    """Submit tasks of its own."""
    return sum(ray.get([double.remote(i) for i in range(count)]))


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self, n: int) -> int:
        self.count += n
        return self.count


@ray.remote
def place() -> tuple[str, int, str]:
    """Return the host's name, the PID and the user's folder of a worker."""
    return socket.gethostname(), os.getpid(), os.environ["HOME"]


@ray.remote
def reaches(host: str, port: int, timeout_s: float) -> str:
    """Return how an attempt to connect ends: ``yes``, ``timeout`` or ``refused``."""
    try:
        with socket.create_connection((host, port), timeout_s):
            return "yes"
    except TimeoutError:
        return "timeout"
    except ConnectionError:
        return "refused"


def on(function: Any, node: int) -> Any:
    """Return a remote function or class that runs on a node."""
    return function.options(resources={f"node:{node}": 0.001})


def doubles_are_right(count: int = 100) -> None:
    refs = [double.remote(i) for i in range(count)]
    assert ray.get(refs, timeout=LIMIT_S) == [2 * i for i in range(count)]


def everything() -> list[Any]:
    """Run tasks, arrays, nested tasks, large values and actors; return what came out."""
    values = ray.get([double.remote(i) for i in range(50)], timeout=LIMIT_S)
    values += ray.get(double.map(range(50)), timeout=LIMIT_S)
    values.append(ray.get(on(total, 1).remote(20), timeout=LIMIT_S))
    parts = [on(large, node).remote(10 * node + i) for node in range(3) for i in range(3)]
    values += ray.get([on(digest, node).remote(*parts) for node in range(3)], timeout=LIMIT_S)
    values.append(ray.get(on(digest, 2).remote(ray.put(b"put" * 100_000)), timeout=LIMIT_S))
    counters = [on(Counter, node).remote() for node in range(3)]
    for n in range(1, 6):
        values += ray.get([counter.add.remote(n) for counter in counters], timeout=LIMIT_S)
    return values


def alive() -> list[bool]:
    """Return of each node whether it is alive."""
    return [row["Alive"] for row in ray.nodes()]
