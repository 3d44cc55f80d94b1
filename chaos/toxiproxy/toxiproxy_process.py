"""A Toxiproxy server as a child process: the real one, or ours."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType

import psutil

HOST = "127.0.0.1"
VARIABLE = "TOXIPROXY_SERVER"
INSTALL = (
    "go install github.com/Shopify/toxiproxy/v2/cmd/server@v2.12.0; or a package, or the program"
    " toxiproxy-server, of github.com/Shopify/toxiproxy/releases; or that program out of the image"
    f" ghcr.io/shopify/toxiproxy:2.12.0; and set {VARIABLE} to its path if it is not on PATH"
)
"""How to get the real server."""
NOT_INSTALLED = f"raytwin's own Toxiproxy server runs, since no other is installed: {INSTALL}"
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
POLL_S = 0.01

DIE_WITH_PARENT = """
import ctypes, os, resource, sys
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: exec keeps it
if os.getppid() != int(sys.argv[1]):
    sys.exit("its parent has gone")
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"{sys.argv[2]} does not start: {error.strerror}")
"""
"""Becomes the server, which may have as many sockets as it can, and ends with the thread that
started it."""
OURS = (sys.executable, "-m", "raytwin.chaos.toxiproxy")


class ServerError(Exception):
    """A server does not start; says why in one line."""


def find_server(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the path of the real server, None if there is none.

    ``TOXIPROXY_SERVER`` names it; else it is ``toxiproxy-server`` on PATH, as packages call it,
    or ``server`` where ``go install`` puts programs. Raises ServerError if the variable names no
    program.
    """
    if named := environment.get(VARIABLE):
        found = shutil.which(named, path=environment.get("PATH"))
        if found is None:
            raise ServerError(f"{VARIABLE} is {named}, which is no program: {INSTALL}")
        return found
    go = Path(environment.get("GOPATH") or Path.home() / "go")
    folder = Path(environment.get("GOBIN") or go / "bin")
    return shutil.which("toxiproxy-server", path=environment.get("PATH")) or shutil.which(
        "server", path=str(folder)
    )


class ToxiproxyProcess:
    """A running server, at `host` and `port`. It ends with this process, by whatever that ends.

    Raises ServerError if it does not start.
    """

    def __init__(self, command: Sequence[str] = OURS, host: str = HOST) -> None:
        self.host = host
        self.port = free_port()
        self._command = [*command, "-host", self.host, "-port", str(self.port)]
        # The kernel ends the child with the thread that started it, so this one waits for it.
        started: Future[subprocess.Popen[bytes]] = Future()
        self._thread = threading.Thread(
            target=self._start_and_wait, args=(started,), name="raytwin-toxiproxy", daemon=True
        )
        self._thread.start()
        self._process = started.result()
        try:
            self.version = self._wait_until_it_answers()
            """As the server says it; that of ours is the API's and raytwin's own."""
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> ToxiproxyProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The address of the HTTP API."""
        return f"http://{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """The process's ID."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End the process, and with it every proxy and connection."""
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._process.wait()
        self._thread.join()

    def _start_and_wait(self, started: Future[subprocess.Popen[bytes]]) -> None:
        command = [sys.executable, "-ISc", DIE_WITH_PARENT, str(os.getpid()), *self._command]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        started.set_result(process)
        process.wait()

    def _wait_until_it_answers(self) -> str:
        """Return the version that it answers with."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not (self._listens() and (version := self._ask_version())):
            if not self.running:
                raise ServerError(f"{self._command[0]} ended with {self._process.returncode}")
            if time.monotonic() > deadline:
                raise ServerError(f"{self._command[0]} does not answer on {self.url}")
            time.sleep(POLL_S)
        return version

    def _listens(self) -> bool:
        """Whether the port is this process's, and not another's who took it in between."""
        try:
            connections = psutil.Process(self.pid).net_connections("tcp")
        except psutil.Error:
            return False
        return any(each.laddr and each.laddr.port == self.port for each in connections)

    def _ask_version(self) -> str | None:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=START_TIMEOUT_S)
        try:
            connection.request("GET", "/version")
            answer = connection.getresponse()
            if answer.status != http.HTTPStatus.OK:
                return None
            version: str = json.loads(answer.read())["version"]
            return version
        except OSError:
            return None
        finally:
            connection.close()


def free_port() -> int:
    """Return a port of the loopback that nobody listens on."""
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        port: int = sock.getsockname()[1]
        return port
