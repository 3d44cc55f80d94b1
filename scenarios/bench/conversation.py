"""The benchmark's end of the conversation with a side; see `side` for the other.

A side and all that it starts live in a session of their own (Ctrl-C at the
terminal is for the benchmark alone) and carry a mark in their environment. When
the conversation ends, in whatever way, all of them are gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import IO, Any, Self
from uuid import uuid4

import psutil

from raytwin.scenarios.bench.engines import ENGINES, OURS, SIMULATED
from raytwin.scenarios.bench.trees import Tree

ANSWER_TIMEOUT_S = 600.0
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

    def __init__(
        self,
        engine: str,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
        tree: Tree | None = None,
        hash_seed: int | None = None,
    ) -> None:
        """`tree`: the raytwin to measure, by default this one. Sides of one `hash_seed` hash
        strings alike, so that their dicts and sets are laid out alike."""
        self.engine = engine
        self._tree = tree or Tree("this tree")
        self._timeout_s = answer_timeout_s
        self._mark = uuid4().hex
        # Unix sockets are below it, whose paths have at most 107 bytes.
        self._directory = tempfile.TemporaryDirectory(prefix="rtb-", ignore_cleanup_errors=True)
        directory = Path(self._directory.name)
        self._stderr = directory / "stderr"
        # The program of a side, under its own name: see `side`.
        program = directory / "program"
        program.mkdir()
        (program / "raytwin_bench").symlink_to(Path(__file__).absolute().parent)
        with self._stderr.open("wb") as stderr:
            self.process = subprocess.Popen(
                [self._tree.interpreter, "-m", "raytwin_bench.side", engine, str(directory)],
                # Modules of the folder that the benchmark was started in are not to be found.
                cwd=program,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                bufsize=1,
                start_new_session=True,
                env=_environment(engine, self._mark, self._tree, program, hash_seed),
            )
        self._asked = False
        """Whether the side owes an answer."""

    @property
    def pipes(self) -> tuple[IO[str], IO[str]]:
        """The pipe for requests, and the pipe of answers."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        return self.process.stdin, self.process.stdout

    def start(self) -> None:
        """Have the cluster started. Raises BenchError, also if another raytwin was imported."""
        file = Path(self.ask("start"))
        ours = self.engine in (OURS, SIMULATED)
        if ours and self._tree.root not in file.parents:
            raise BenchError(f"{self._tree.label} has imported {file}")

    def ask(self, what: str, **details: Any) -> Any:
        """Send one request and return the value of its answer. Raises BenchError."""
        requests, answers = self.pipes
        self._asked = True
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps({"do": what, **details}), file=requests)
        if not select.select([answers], [], [], self._timeout_s)[0]:
            self.process.kill()
            raise BenchError(f"{self.engine} gave no answer in {self._timeout_s:g} s to {what}")
        line = answers.readline()
        self._asked = False
        if not line:
            last = self._stderr.read_text(errors="replace").strip().splitlines()[-STDERR_LINES:]
            words = "; the end of its output: " + " | ".join(last) if last else ""
            raise BenchError(f"{self.engine} has ended, asked to {what}{words}")
        answer = json.loads(line)
        if "error" in answer:
            error = BenchError(f"{self.engine} failed to {what}: {answer['error']}")
            error.add_note(answer["trace"])
            raise error
        return answer["value"]

    def measure(self, what: str, **details: Any) -> float:
        """As `ask`, for requests whose answer is a number."""
        value = self.ask(what, **details)
        if not isinstance(value, float | int):
            raise BenchError(f"{self.engine} answered {what} with no number")
        return value

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Let the side shut its cluster down, or the cluster notice its end; kill the rest.

        Processes of a cluster may remove what it has outside of its processes, which is
        why they are not killed together with the driver. A side at work would see
        the end of its requests only after its work: it is interrupted.
        """
        requests, answers = self.pipes
        left: list[psutil.Process] = []
        try:
            try:
                if self._asked:
                    self.process.send_signal(signal.SIGINT)
                with contextlib.suppress(BrokenPipeError):
                    requests.close()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(LEAVE_TIMEOUT_S if kind is None else ABANDON_TIMEOUT_S)
            finally:
                # Also when a second Ctrl-C ended the wait.
                self.process.kill()
                self.process.wait()
                _, left = psutil.wait_procs(self._marked(), timeout=ABANDON_TIMEOUT_S)
        finally:
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, timeout=ABANDON_TIMEOUT_S)
            answers.close()
            self._directory.cleanup()

    def _marked(self) -> list[psutil.Process]:
        """Return the side's processes, also those whose parent is gone."""
        found = []
        for process in psutil.process_iter():
            # Others are gone meanwhile, or another user's.
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self._mark:
                    found.append(process)
        return found


def _environment(
    engine: str, mark: str, tree: Tree, program: Path, hash_seed: int | None
) -> dict[str, str]:
    path = [str(program)]
    if not tree.installed:
        # Libraries are found as they are here; another environment has its own.
        path += [str(tree.root), *filter(None, [os.environ.get("PYTHONPATH")])]
    changes: dict[str, str | None] = {
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONHASHSEED": None if hash_seed is None else str(hash_seed),
        MARK: mark,
        # What pip has installed has its bytecode; sources keep theirs from the first start
        # on, or every process would compile them again.
        "PYTHONDONTWRITEBYTECODE": None,
        **ENGINES[engine].environment,
    }
    merged = {**os.environ, **changes}
    return {name: value for name, value in merged.items() if value is not None}
