"""One engine's driver process: ``python -m raytwin_bench.side ENGINE DIRECTORY``.

It reads requests from stdin and answers each on stdout, one JSON object a line,
and works only between a request and its answer:

===================================== ========================================
``{"do": "start"}``                   start the cluster; value: the file of the
                                      engine's module
``{"do": "fresh", "case": name}``     value: the figure of a cluster started for it
``{"do": "prepare", "case": name,     make the case ready, and run it n times (1)
``"at_least": n, "warm_up_s": s}``    and then for so long (0)
``{"do": "round", "round_s": s}``     repeat it for so long; value: [units/s,
                                      seconds of CPU per unit, or null]
``{"do": "finish"}``                  forget the case and its objects
===================================== ========================================

An answer is ``{"value": anything}`` or ``{"error": text, "trace": text}``.
At the end of stdin, which the death of the benchmark causes too, and at SIGINT the process
shuts its cluster down and exits. The engine's own output goes to stderr.

This file and those that it imports are the same on every side, whatever raytwin is measured
there, of another commit or of another environment. So they import nothing of raytwin's but the
engine's module, one another by relative paths, and run under a name of their own: `conversation`
makes this folder the package ``raytwin_bench``.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import psutil

from . import cases
from .engines import ENGINES


class Side:
    """The engine, and the case that is prepared."""

    def __init__(self, engine: str, directory: Path) -> None:
        self._directory = directory
        self._options = ENGINES[engine].options(directory)
        self._ray: Any = importlib.import_module(ENGINES[engine].module)
        self._operation: cases.Operation | None = None
        self._amount = 0.0

    def serve(self, request: dict[str, Any]) -> Any:
        """Do what one request asks for."""
        match request["do"]:
            case "start":
                cases.start_up(self._ray, self._options)
                return self._ray.__file__
            case "fresh":
                return cases.FRESH[request["case"]].measure(self._ray, self._options)
            case "prepare":
                case = cases.CASES[request["case"]]
                self._amount = case.amount
                self._operation = case.prepare(self._ray)
                for _ in range(request.get("at_least", 1)):
                    self._operation()
                if warm_up_s := request.get("warm_up_s", 0.0):
                    cases.repeated(self._operation, warm_up_s)
                gc.collect()
            case "round":
                return self._round(request["round_s"])
            case "finish":
                self._operation = None
                gc.collect()
            case other:
                raise ValueError(f"no request {other!r}")
        return None

    def _round(self, round_s: float) -> tuple[float, float | None]:
        assert self._operation is not None, "nothing is prepared"
        before = cpu_s_by_pid()
        count, elapsed_s = cases.repeated(self._operation, round_s)
        after = cpu_s_by_pid()
        units = self._amount * count
        spent_s = None
        # What a process that has ended meanwhile had spent, nobody knows.
        if before.keys() <= after.keys():
            spent_s = sum(after.values()) - sum(before.values())
        return units / elapsed_s, None if spent_s is None else spent_s / units

    def end(self) -> None:
        """Shut the cluster down, if there is one, and remove its files."""
        # The process ends, whether a later interrupt comes or not.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._operation = None
        try:
            self._ray.shutdown()
        finally:
            # The benchmark, which made the directory, may be gone. Daemons may still write.
            shutil.rmtree(self._directory, ignore_errors=True)


def cpu_s_by_pid() -> dict[int, float]:
    """Return the seconds of CPU that this process and each below it have spent.

    By their clocks: what ``/proc`` says comes in ticks of 10 ms, a fifth of a short round.
    """
    driver = psutil.Process()
    spent = {}
    for process in (driver, *driver.children(recursive=True)):
        try:
            spent[process.pid] = time.clock_gettime(cpu_clock_of(process.pid))
        except OSError:
            continue  # It has ended between the two calls.
    return spent


def cpu_clock_of(pid: int) -> int:
    """Return the ID of a process's CPU clock, as ``clock_getcpuclockid(3)`` does on Linux."""
    return ~pid << 3 | 2


def main() -> None:
    """Serve requests until there are no more."""
    requests = os.fdopen(os.dup(0), "r")
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    # The engine and its daemons must not read or write in this conversation.
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    side = Side(sys.argv[1], Path(sys.argv[2]))
    try:
        for line in requests:
            try:
                answer: dict[str, Any] = {"value": side.serve(json.loads(line))}
            except Exception as error:
                name = type(error).__name__
                answer = {"error": f"{name}: {error}", "trace": traceback.format_exc()}
            print(json.dumps(answer), file=answers)
    except BrokenPipeError:
        print("the benchmark is gone", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    finally:
        side.end()


if __name__ == "__main__":
    main()
