"""Processes of peers that answer: a line of JSON comes back for each line of JSON.

A companion is a module run by ``python -m``, with `answer` as its loop; `Companion` is the end of
the scenario that talks to it. A companion leaves at the end of its input, so also when the scenario
was killed. All that it starts carries a mark in its environment, and is gone when the conversation
ends, in whatever way.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import psutil

from raytwin.scenarios.peers import PeerError

MARK = "RAYTWIN_PEER"
ANSWER_TIMEOUT_S = 120.0
PIECE_BYTES = 1 << 16
LEAVE_TIMEOUT_S = 20.0
"""How long a companion may take to leave when its input ends."""


class Companion:
    """A companion, from its start to its end; use it in a ``with``."""

    def __init__(self, module: str, *arguments: str, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._name = module.rpartition(".")[2]
        self._timeout_s = timeout_s
        self._mark = uuid4().hex
        # Ray's sockets are below it, and a socket's path has at most 107 bytes.
        self._folder = tempfile.TemporaryDirectory(prefix="rtp-", ignore_cleanup_errors=True)
        self._stderr = Path(self._folder.name, "stderr")
        with self._stderr.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,  # Ctrl-C at the terminal is for the scenario alone.
                env=_environment(self._mark, self._folder.name),
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._requests, self._answers = self.process.stdin, self.process.stdout
        self._received = b""

    def ask(self, **request: Any) -> Any:
        """Return the answer to one request. Raises PeerError."""
        self.send(**request)
        return self.receive()

    def send(self, **request: Any) -> None:
        """Send a request; `receive` returns its answer, and meanwhile others can be asked."""
        # A companion that is gone gives no answer, and that says why.
        with contextlib.suppress(BrokenPipeError):
            self._requests.write(json.dumps(request).encode() + b"\n")
            self._requests.flush()

    def receive(self) -> Any:
        """Return the next answer. Raises PeerError for an error, at the end and after the limit."""
        line = self._next_line()
        if not line:
            said = self._stderr.read_text(errors="replace").strip().splitlines()
            raise PeerError(f"{self._name} ended: {said[-1] if said else 'it said nothing'}")
        found = json.loads(line)
        if "error" in found:
            raise PeerError(f"{self._name}: {found['error']}")
        return found["answer"]

    def _next_line(self) -> bytes:
        """Return the next line; an empty one at the end. Raises PeerError after the limit.

        What has arrived with an earlier line is in `_received`: `select` does not know of it.
        """
        until_s = time.monotonic() + self._timeout_s
        while b"\n" not in self._received:
            left_s = max(0.0, until_s - time.monotonic())
            if not select.select([self._answers], [], [], left_s)[0]:
                raise PeerError(f"{self._name} gave no answer in {self._timeout_s:g} s")
            part = os.read(self._answers.fileno(), PIECE_BYTES)
            if not part:
                break
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            with contextlib.suppress(BrokenPipeError):
                self._requests.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(LEAVE_TIMEOUT_S)
        finally:
            left = []
            for process in psutil.process_iter():
                # Others are gone meanwhile, or another user's.
                with contextlib.suppress(psutil.Error):
                    if process.environ().get(MARK) == self._mark:
                        left.append(process)
                        process.kill()
            psutil.wait_procs(left, timeout=LEAVE_TIMEOUT_S)
            self.process.wait()
            self._answers.close()
            self._folder.cleanup()


def _environment(mark: str, folder: str) -> dict[str, str]:
    # This package is found there where it was found here.
    root = str(Path(__file__).absolute().parents[3])
    path = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "TMPDIR": folder, MARK: mark}


def answer(reply: Callable[[dict[str, Any]], Any], first: Any = None) -> None:
    """Be a companion: answer each request with ``reply(request)`` until there are no more.

    `first`, unless it is None, is sent before any request. What is printed goes to stderr.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    if first is not None:
        print(json.dumps({"answer": first}), file=answers)
    for line in sys.stdin:
        try:
            said = {"answer": reply(json.loads(line))}
        except Exception as error:
            traceback.print_exc()
            said = {"error": " ".join(f"{type(error).__name__}: {error}".split())}
        print(json.dumps(said), file=answers)
