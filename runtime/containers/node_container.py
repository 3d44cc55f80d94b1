"""One container of a cluster, from outside: starts it, prints its output, ends it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from codecs import getincrementaldecoder
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from docker import DockerClient
from docker.errors import NotFound
from docker.types import LogConfig, Mount
from docker.utils.socket import frames_iter

from raytwin.runtime.containers import container_node
from raytwin.runtime.containers.container_node import ContainerSettings
from raytwin.runtime.containers.engine import LABEL, ended_ignored
from raytwin.runtime.containers.host_image import SCRATCH
from raytwin.runtime.processes.spawn.worker_pids import worker_pids

STDOUT, STDERR = 1, 2
END_TIMEOUT_S = 20.0
SHARED_MEMORY_BYTES = 1 << 40
"""The size of ``/dev/shm`` in a container without a limit of its memory: none either."""
FILLING = f"{SCRATCH}/filling"
"""The file that fills a container's disk."""
FULL = 1
"""The exit code of `dd` where no space is left."""
PRESSURE = "/dev/shm/pressure"
"""The file that occupies a container's memory; raytwin's own shared memory is nameless."""


@dataclass(frozen=True)
class Limits:
    """The limits of a container's resources; None: no limit."""

    cpus: float | None = None
    memory_bytes: int | None = None
    """Of all its processes and their shared memory; beyond it the kernel kills one of them."""
    disk_bytes: int | None = None
    """Of `SCRATCH`, which is then a file system in memory and counts there too."""


@dataclass(frozen=True)
class Recipe:
    """The recipe that all containers of one cluster share."""

    client: DockerClient
    cluster: str
    """The cluster's name, which is the name of its network."""
    image: str
    mounts: list[Mount]
    environment: Mapping[str, str]
    python: str
    """The interpreter's path in the container."""
    paths: list[str]
    """The program's module search path."""
    limits: Limits = field(default_factory=Limits)


class NodeContainer:
    """The container of one node, from its creation to its end."""

    def __init__(self, recipe: Recipe, node: int, incarnation: int, host: str) -> None:
        """Create and start the container, which waits for its settings (`begin`)."""
        self.node = node
        self.host = host
        self.ended = threading.Event()
        self.paused = False
        self.disconnected = False
        self._recipe = recipe
        limits = recipe.limits
        tmpfs = {"/run": "size=1m"}
        if limits.disk_bytes is not None:
            tmpfs[SCRATCH] = f"size={limits.disk_bytes},mode=1777"
        api = recipe.client.api
        endpoint = api.create_endpoint_config(ipv4_address=host)
        self._container = recipe.client.containers.create(
            recipe.image,
            [recipe.python, "-m", container_node.__name__],
            name=f"{recipe.cluster}-node{node}.{incarnation}",
            hostname=f"node{node}",
            user=f"{os.getuid()}:{os.getgid()}",
            labels={LABEL: recipe.cluster},
            environment={**recipe.environment, "HOME": SCRATCH, "TMPDIR": SCRATCH},
            working_dir=SCRATCH,
            mounts=recipe.mounts,
            tmpfs=tmpfs,
            network=recipe.cluster,
            networking_config={recipe.cluster: endpoint},
            nano_cpus=None if limits.cpus is None else round(limits.cpus * 1e9),
            mem_limit=limits.memory_bytes,
            memswap_limit=limits.memory_bytes,  # of both together: no swap
            cap_add=["NET_ADMIN"],  # for `packet_filters`, which act in the container alone
            shm_size=limits.memory_bytes or SHARED_MEMORY_BYTES,
            # With attached input that ends with the first connection to it.
            stdin_open=True,
            auto_remove=True,
            log_config=LogConfig(type=LogConfig.types.NONE),
        )
        self._streams = api.attach_socket(
            self._container.id, {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        )
        threading.Thread(target=self._print, name=f"raytwin-output-{node}", daemon=True).start()
        self._container.start()
        try:
            self._container.reload()
        except NotFound:
            raise RuntimeError(f"the container of node {node} ended when it started") from None
        self.pid: int = self._container.attrs["State"]["Pid"]
        """The PID of its first process, in this machine's name space."""

    def begin(self, settings: ContainerSettings) -> None:
        """Have the container start its node."""
        # A program's deadlines for its own sockets are not for this one.
        raw = self._streams._sock
        raw.settimeout(None)
        raw.sendall(container_node.pack(settings))

    def _print(self) -> None:
        """Print what the container prints, until it ends."""
        decoders = {
            stream: getincrementaldecoder("utf-8")("replace") for stream in (STDOUT, STDERR)
        }
        try:
            for stream, data in frames_iter(self._streams, tty=False):
                out = sys.stderr if stream == STDERR else sys.stdout
                # A program may have closed its output, and goes on all the same.
                with suppress(OSError, ValueError):
                    out.write(decoders[stream].decode(data))
                    out.flush()
        finally:
            self.ended.set()
            self._streams._response.close()

    def kill(self) -> None:
        """End the container at once, whether it is paused or not; return when it has ended."""
        with ended_ignored():
            self._container.kill()
        self.paused = False
        if not self.ended.wait(END_TIMEOUT_S):
            raise RuntimeError(f"the container of node {self.node} does not end")
        self.disconnected = False

    def await_removal(self) -> None:
        """Return when the engine has removed the container, which has ended."""
        with suppress(NotFound):
            self._container.wait(condition="removed", timeout=END_TIMEOUT_S)

    def pause(self) -> None:
        """Freeze all processes of the container."""
        self._container.pause()
        self.paused = True

    def resume(self) -> None:
        """Go on with all processes of the container."""
        if self.paused:
            self._container.unpause()
            self.paused = False

    def disconnect(self) -> None:
        """Take the container's only network from it."""
        self._network().disconnect(self._container)
        self.disconnected = True

    def reconnect(self) -> None:
        """Give the network back to the container, with its old address."""
        self._network().connect(self._container, ipv4_address=self.host)
        self.disconnected = False

    @property
    def silent(self) -> str:
        """Return why the node cannot answer, empty if it can."""
        return "paused" if self.paused else "disconnected" if self.disconnected else ""

    def _network(self) -> Any:
        return self._recipe.client.networks.get(self._recipe.cluster)

    def run_as_root(self, command: list[str], codes: tuple[int, ...] = (0,)) -> None:
        """Run a command in the container as root; raises RuntimeError for other exit codes."""
        code, output = self._container.exec_run(command, user="0:0")
        if code not in codes:
            said = " ".join(output.decode(errors="replace").split())
            raise RuntimeError(f"node {self.node}: {' '.join(command)}: {said}")

    def fill_disk(self) -> None:
        """Fill the file system of spilled objects; raises ValueError where it has no limit."""
        if self._recipe.limits.disk_bytes is None:
            raise ValueError("only a disk with a limit can be filled: give container_disk_bytes")
        self.run_as_root(["dd", "if=/dev/zero", f"of={FILLING}", "bs=64k"], (FULL,))

    def press_memory(self, nbytes: int) -> None:
        """Occupy so much of the container's memory, with a file in memory."""
        zeros = ["dd", "if=/dev/zero", f"of={PRESSURE}", "bs=64k"]
        wanted = ["iflag=count_bytes", f"count={nbytes}"]
        self.run_as_root([*zeros, *wanted], (0, FULL, 128 + signal.SIGKILL))

    def free(self) -> None:
        """Undo `fill_disk` and `press_memory`."""
        self.run_as_root(["rm", "-f", FILLING, PRESSURE])

    def outer_pids(self, pid: int) -> list[int]:
        """Return the PID in this machine's name space of the worker that has `pid` in its own."""
        return [each for each in self.workers() if _inner_pid(each) == pid]

    def workers(self) -> list[int]:
        """Return the PIDs of its workers in this machine's name space, oldest first."""
        if self.ended.is_set():
            return []
        import psutil  # the import takes 80 ms, and only faults need it

        try:
            zygotes = [each.pid for each in psutil.Process(self.pid).children()]
        except psutil.NoSuchProcess:
            return []
        return [pid for zygote in zygotes for pid in worker_pids(zygote, self.node)]


def _inner_pid(pid: int) -> int:
    """Return the PID of a process in its own name space; 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    (line,) = (line for line in status.splitlines() if line.startswith("NSpid:"))
    return int(line.split()[-1])
