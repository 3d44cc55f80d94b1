"""One engine's driver process: ``python -m raytwin.scenarios.bench.side ENGINE DIRECTORY``.

It reads requests from stdin and answers each on stdout, one JSON object a line,
and works only between a request and its answer:

===================================== ========================================
``{"do": "start"}``                   start the cluster
``{"do": "fresh", "case": name}``     value: the figure of a cluster started for it
``{"do": "prepare", "case": name}``   make the case ready
``{"do": "round", "round_s": s}``     repeat it for so long; value: units/s
``{"do": "finish"}``                  forget the case and its objects
===================================== ========================================

An answer is ``{"value": number or null}`` or ``{"error": text, "trace": text}``.
At the end of stdin, which the death of the benchmark causes too, and at SIGINT the process
shuts its cluster down and exits. The engine's own output goes to stderr.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import shutil
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from raytwin.scenarios.bench import cases
from raytwin.scenarios.bench.engines import ENGINES


class Side:
    """The engine, and the case that is prepared."""

    def __init__(self, engine: str, directory: Path) -> None:
        self._directory = directory
        self._options = ENGINES[engine].options(directory)
        self._ray: Any = importlib.import_module(ENGINES[engine].module)
        self._operation: cases.Operation | None = None
        self._amount = 0.0

    def serve(self, request: dict[str, Any]) -> float | None:
        """Do what one request asks for."""
        match request["do"]:
            case "start":
                cases.start_up(self._ray, self._options)
            case "fresh":
                return cases.FRESH[request["case"]].measure(self._ray, self._options)
            case "prepare":
                case = cases.CASES[request["case"]]
                self._amount = case.amount
                self._operation = case.prepare(self._ray)
            case "round":
                assert self._operation is not None, "nothing is prepared"
                gc.collect()
                return self._amount * cases.repeated_per_s(self._operation, request["round_s"])
            case "finish":
                self._operation = None
                gc.collect()
            case other:
                raise ValueError(f"no request {other!r}")
        return None

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
