"""A client of `http_service`, whose port is its argument: a companion.

A request ``{"form", "workload", "client", "batches"}`` has it ask so many batches of the service,
over one connection that stays open; the answer is what `ask` in the application returns.
"""

from __future__ import annotations

import http.client
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson

from raytwin.scenarios.applications.serving import Workload, ask
from raytwin.scenarios.peers.companion import answer

CONTENT = {"json": "application/json", "bytes": "application/octet-stream"}


def evaluator(
    connection: http.client.HTTPConnection, form: str, model_s: float
) -> Callable[[Any], list[float]]:
    """Return a function that has a batch of states evaluated by the service."""

    def evaluate(states: Any) -> list[float]:
        body: bytes | memoryview
        if form == "json":
            body = orjson.dumps({"states": states}, option=orjson.OPT_SERIALIZE_NUMPY)
        else:
            body = memoryview(states).cast("B")
        connection.request(
            "POST", f"/{form}?model_s={model_s}", body, {"Content-Type": CONTENT[form]}
        )
        response = connection.getresponse()
        content = response.read()
        if response.status != http.client.OK:
            raise RuntimeError(f"status {response.status}: {content[:200]!r}")
        if form == "json":
            return list(orjson.loads(content)["actions"])
        return list(np.frombuffer(content).tolist())

    return evaluate


def main() -> None:
    """Answer until the input ends."""
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))

    def reply(request: dict[str, Any]) -> Any:
        workload = Workload(*request["workload"])
        evaluate = evaluator(connection, request["form"], workload.model_s)
        return ask(evaluate, time.perf_counter, workload, request["client"], request["batches"])

    answer(reply)
    connection.close()


if __name__ == "__main__":
    main()
