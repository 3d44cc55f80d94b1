"""One engine's driver process: ``python -m raytwin.scenarios.bench.side ENGINE DIRECTORY``.

It reads requests from stdin and answers each on stdout, one JSON object a line,
and works only between a request and its answer:

===================================== ========================================
``{"do": "start"}``                   start the cluster; value: `start_up`, s
``{"do": "memory", "settle_s": s}``   value: `idle_memory`, MB
``{"do": "first put"}``               value: `first_put_800mb`, GB/s
``{"do": "large", "case": name}``     start that one's cluster; value: in its unit
``{"do": "prepare", "case": name}``   make the case ready
``{"do": "round", "round_s": s}``     repeat it for so long; value: units/s
``{"do": "finish"}``                  forget the case and its objects
===================================== ========================================

An answer is ``{"value": number or null}`` or ``{"error": text, "trace": text}``.
At the end of stdin, which also is what its parent's death looks like, and when it is
interrupted (SIGINT), the process shuts its cluster down and leaves. What the engine prints
goes to stderr.
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

from raytwin.scenarios.bench import cases, large
from raytwin.scenarios.bench.engines import ENGINES


class Side:
    """What the requests are about."""

    def __init__(self, engine: str, directory: Path) -> None:
        self._engine = ENGINES[engine]
        self._directory = directory
        self._ray: Any = importlib.import_module(self._engine.module)
        self._operation: cases.Operation | None = None
        self._amount = 0.0

    def serve(self, request: dict[str, Any]) -> float | None:
        """Do what one request asks for."""
        what = request["do"]
        if what == "start":
            return cases.start_up(self._ray, self._engine.options(self._directory))
        if what == "memory":
            return cases.idle_memory(request["settle_s"])
        if what == "first put":
            return cases.first_put_800mb(self._ray)
        if what == "large":
            return large.FUNCTIONS[request["case"]](self._ray)
        if what == "prepare":
            case = cases.CASES[request["case"]]
            self._amount = case.amount
            self._operation = case.prepare(self._ray)
        elif what == "round":
            assert self._operation is not None, "nothing is prepared"
            gc.collect()
            return self._amount * cases.repeated_per_s(self._operation, request["round_s"])
        elif what == "finish":
            self._operation = None
            gc.collect()
        else:
            raise ValueError(f"no request {what!r}")
        return None

    def end(self) -> None:
        """Shut the cluster down, if there is one, and remove its files."""
        # Who was interrupted too late ends by itself all the same.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._operation = None
        try:
            self._ray.shutdown()
        finally:
            # Whoever made the directory may be gone. Daemons may be writing still.
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
                answer = {
                    "error": f"{type(error).__name__}: {error}",
                    "trace": traceback.format_exc(),
                }
            print(json.dumps(answer), file=answers)
    except BrokenPipeError:
        print("nobody is left to answer to", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    finally:
        side.end()


if __name__ == "__main__":
    main()
