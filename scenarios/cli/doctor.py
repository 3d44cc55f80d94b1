"""What works on this machine, tried and not guessed, and how to get the rest.

`examine` runs a task on each backend, in a program of its own, so a crash there is a finding and
no crash here. Nothing is installed or changed.
"""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata

import psutil

from raytwin.chaos.toxiproxy import toxiproxy_process
from raytwin.runtime.on_ray import ray_session
from raytwin.scenarios.core import measured_host

LOCAL, SIM, DOCKER, RAY = "local", "sim", "docker", "ray"
LIBRARIES = ("simpy", "greenlet", "msgspec", "cloudpickle", "numpy", "pandas", "matplotlib")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TRIAL_TIMEOUT_S = 60

_TASK = """
import sys
import raytwin as ray

@ray.remote
def double(x):
    return 2 * x

ray.init(backend=sys.argv[1], nodes=2, cpus_per_node=1)
assert ray.get(double.remote(21)) == 42
ray.shutdown()
print("ran on a cluster of two nodes")
"""
_LINKS = """
from raytwin.chaos.faults.proxied_links import ToxiproxyLinks
from raytwin.runtime.on_ray.node_network import NodeNetwork

network = NodeNetwork(lambda host: ToxiproxyLinks(0, host, 0, host))
network.options(1)
network.close()
print("two network namespaces, with proxies between them")
"""


@dataclass(frozen=True)
class Finding:
    """One thing that was tried."""

    name: str
    ok: bool
    needed_for: str
    detail: str
    fix: str = ""
    """How to get it, where it is missing."""


class Missing(Exception):
    """What a trial raises if something is not there; says what was seen."""


def examine() -> Iterator[Finding]:
    """Try one thing after the other and yield what was found, in reading order."""
    both = f"{SIM}, {LOCAL}"
    trials: list[tuple[str, str, Callable[[], str], str]] = [
        ("Python", both, _python, "install CPython 3.11 or newer"),
        ("libraries", both, _libraries, "pip install raytwin"),
        ("cores", LOCAL, _cores, "give the container or machine a core"),
        ("memory", LOCAL, _memory, "free 1 GB of memory"),
        ("a task on sim", SIM, _run(_TASK, SIM), "mend what is missing above"),
        ("a task on local", LOCAL, _run(_TASK, LOCAL), "use Linux, and mend what is missing above"),
        ("Docker engine", DOCKER, _engine, "install docker.io, start dockerd, or set DOCKER_HOST"),
        ("a task on docker", DOCKER, _run(_TASK, DOCKER), "mend what is missing above"),
        ("a task on ray", RAY, _run(_TASK, RAY, on_ray=True), "pip install 'raytwin[ray]'"),
        (
            "links of ray", "faults of links on ray", _run(_LINKS),
            "be root, and apt install iproute2 iptables",
        ),
        ("ray", "bench --peers ray", partial(_version, "ray"), "pip install 'raytwin[ray]'"),
        (
            "dask", "bench --peers dask", partial(_version, "distributed"),
            "pip install 'raytwin[peers]'",
        ),
        (
            "gymnasium", "run table4", partial(_version, "gymnasium"), "pip install 'raytwin[rl]'",
        ),
        (
            "FastAPI", "run table3", partial(_version, "fastapi"), "pip install 'raytwin[peers]'",
        ),
        ("Chromium", "browser tests", _chromium, "apt install chromium, or set RAYTWIN_CHROMIUM"),
        ("Toxiproxy", "tests of its server", _toxiproxy, toxiproxy_process.INSTALL),
    ]  # fmt: skip
    for trial in trials:
        yield _try(*trial)


def healthy(findings: Sequence[Finding]) -> bool:
    """Return whether the backends sim and local work."""
    needed = [f for f in findings if {SIM, LOCAL} & set(f.needed_for.split(", "))]
    return all(finding.ok for finding in needed)


def _try(name: str, needed_for: str, trial: Callable[[], str], fix: str) -> Finding:
    try:
        return Finding(name, True, needed_for, trial())
    except (Missing, OSError, AttributeError, ImportError, subprocess.SubprocessError) as error:
        return Finding(name, False, needed_for, " ".join(str(error).split()), fix)


def _python() -> str:
    version = f"{platform.python_implementation()} {platform.python_version()}"
    if sys.implementation.name != "cpython":
        raise Missing(version)
    return version


def _libraries() -> str:
    broken = []
    for name in LIBRARIES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            broken.append(f"{name} ({error})")
    if broken:
        raise Missing(", ".join(broken))
    return ", ".join(f"{name} {metadata.version(name)}" for name in LIBRARIES)


def _cores() -> str:
    return f"{measured_host.cores()} usable, {os.cpu_count()} in the machine"


def _memory() -> str:
    memory = psutil.virtual_memory()
    text = f"{memory.available / 1e9:.1f} GB free of {memory.total / 1e9:.1f} GB"
    if memory.available < 1e9:
        raise Missing(text)
    return text


def _run(source: str, *arguments: str, on_ray: bool = False) -> Callable[[], str]:
    """Return a trial that is a program of its own, where even a crash is only a finding."""
    environment = ray_session.environment() if on_ray else None

    def trial() -> str:
        done = subprocess.run(
            [sys.executable, "-c", source, *arguments],
            capture_output=True,
            text=True,
            timeout=TRIAL_TIMEOUT_S,
            check=False,
            env=environment,
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise Missing(lines[-1])
        return done.stdout.strip()

    return trial


def _engine() -> str:
    """Return the version of the Docker engine that answers, and how to reach it."""
    from raytwin.runtime.containers import engine

    try:
        client = engine.connect()
    except engine.NoEngine as error:
        raise Missing(str(error)) from error
    found = f"{client.version()['Version']} at {engine.address()}"
    client.close()
    return found


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        raise Missing("not installed") from None


def _chromium() -> str:
    """Return the path and version of the first browser that is on PATH."""
    chosen = os.environ.get("RAYTWIN_CHROMIUM")
    for name in (chosen,) if chosen else BROWSERS:
        if path := shutil.which(name):
            done = subprocess.run(
                [path, "--version"], capture_output=True, text=True, timeout=20, check=False
            )
            if done.returncode:
                raise Missing(f"{path} does not start: exit code {done.returncode}")
            return f"{path}, {done.stdout.strip() or 'version unknown'}"
    raise Missing(f"not on PATH: {chosen or BROWSERS[0]}")


def _toxiproxy() -> str:
    """Return the path and version of the real Toxiproxy server."""
    try:
        path = toxiproxy_process.find_server()
    except toxiproxy_process.ServerError as error:
        raise Missing(f"{toxiproxy_process.VARIABLE} names no program") from error
    if path is None:
        raise Missing(f"not found; {' '.join(('python', *toxiproxy_process.OURS[1:]))} is there")
    done = subprocess.run(
        [path, "-version"], capture_output=True, text=True, timeout=20, check=False
    )
    if done.returncode:
        raise Missing(f"{path} does not start: exit code {done.returncode}")
    return f"{path}, {done.stdout.strip() or 'version unknown'}"
