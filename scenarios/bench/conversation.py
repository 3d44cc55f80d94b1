"""The benchmark's end of the conversation with a side; see `side` for the other.

A side and all that it starts live in a session of their own (Ctrl-C at the
terminal is for the benchmark alone) and carry a mark in their environment. When
the conversation ends, in whatever way, all of them are gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self
from uuid import uuid4

import psutil

from raytwin.scenarios.bench.engines import ENGINES

ANSWER_TIMEOUT_S = 180.0
LEAVE_TIMEOUT_S = 30.0
"""How long a side may take to shut its cluster down when all went well ..."""
ABANDON_TIMEOUT_S = 5.0
"""... and when it is abandoned; and then what is left of its cluster, to end by itself."""

MARK = "RAYTWIN_BENCH_SIDE"
STDERR_LINES = 5


class BenchError(RuntimeError):
    """A side could not do what it was asked for."""


class Conversation:
    """A side, from its start to its end; use it in a ``with``."""

    def __init__(self, engine: str, answer_timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self.engine = engine
        self._timeout_s = answer_timeout_s
        self._mark = uuid4().hex
        # Unix sockets are below it, whose paths have at most 107 bytes.
        self._directory = tempfile.TemporaryDirectory(prefix="rtb-", ignore_cleanup_errors=True)
        directory = Path(self._directory.name)
        self._stderr = directory / "stderr"
        with self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "raytwin.scenarios.bench.side", engine, str(directory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                bufsize=1,
                start_new_session=True,
                env=_environment(engine, self._mark),
            )
        self._family: set[psutil.Process] = set()
        self._asked = False
        """The side owes an answer."""

    @property
    def pid(self) -> int:
        """PID of the side's driver process."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """How that has ended, below 0 by which signal; None while it is there."""
        return self._process.returncode

    @property
    def pipes(self) -> tuple[IO[str], IO[str]]:
        """What requests are written to, and answers read from."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def ask(self, what: str, **details: Any) -> float | None:
        """Send one request and return the value of its answer. Raises BenchError."""
        requests, answers = self.pipes
        late = threading.Event()

        def give_up() -> None:
            late.set()
            self._process.kill()  # which ends the wait below

        timer = threading.Timer(self._timeout_s, give_up)
        timer.daemon = True
        timer.start()
        self._asked = True
        try:
            print(json.dumps({"do": what, **details}), file=requests)
            line = answers.readline()
            self._asked = False
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        self._family |= self._living()
        if not line:
            why = f"gave no answer in {self._timeout_s:g} s" if late.is_set() else "has ended"
            raise BenchError(f"{self.engine} {why}, asked to {what}{self._last_words()}")
        answer = json.loads(line)
        if "error" in answer:
            error = BenchError(f"{self.engine} failed to {what}: {answer['error']}")
            error.add_note(answer["trace"])
            raise error
        value: float | None = answer["value"]
        return value

    def measure(self, what: str, **details: Any) -> float:
        """As `ask`, for requests whose answer is a number."""
        value = self.ask(what, **details)
        if value is None:
            raise BenchError(f"{self.engine} answered {what} with no value")
        return value

    def _last_words(self) -> str:
        lines = self._stderr.read_text(errors="replace").strip().splitlines()[-STDERR_LINES:]
        return "; the end of what it said: " + " | ".join(lines) if lines else ""

    def _living(self) -> set[psutil.Process]:
        """Return the side's processes, also those whose parent is gone."""
        try:
            found = set(psutil.Process(self.pid).children(recursive=True))
        except psutil.NoSuchProcess:
            found = set()
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == self.pid or (
                    process.environ().get(MARK) == self._mark
                ):
                    found.add(process)
            except (psutil.Error, ProcessLookupError, PermissionError):
                continue  # it is gone meanwhile, or another user's
        return {process for process in found if process.pid != self.pid}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._end(LEAVE_TIMEOUT_S if kind is None else ABANDON_TIMEOUT_S)

    def _end(self, timeout_s: float) -> None:
        """Let the side shut its cluster down, or else that notice its driver's end; kill the rest.

        What a cluster has outside of its processes is taken away by those of them that
        see to it, which is why they are not killed together with the driver. One that is at
        work would see the end of its requests only after it: it is interrupted.
        """
        requests, answers = self.pipes
        left: list[psutil.Process] = []
        try:
            try:
                if self._asked:
                    self._process.send_signal(signal.SIGINT)
                with contextlib.suppress(BrokenPipeError):
                    requests.close()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(timeout_s)
            finally:
                # Also when a second Ctrl-C ended the wait.
                left = [p for p in self._family | self._living() if p.is_running()]
                self._process.kill()
                self._process.wait()
                _, left = psutil.wait_procs(left, timeout=ABANDON_TIMEOUT_S)
        finally:
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, timeout=timeout_s)
            answers.close()
            self._directory.cleanup()


def _environment(engine: str, mark: str) -> dict[str, str]:
    changes = ENGINES[engine].environment
    # This package is found in the side where it was found here.
    root = str(Path(__file__).absolute().parents[3])
    path = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), MARK: mark}
    # What pip has installed has its bytecode; what runs from its sources keeps its own
    # from the first start on, or every process would compile it again.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    for name, value in changes.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    return environment
