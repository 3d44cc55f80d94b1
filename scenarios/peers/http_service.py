"""A web service for a policy: FastAPI on uvicorn, as one would write it today.

It stands for Clipper, the serving system that the paper compared with: states come over HTTP, as
JSON or as raw bytes, and actions go back in the same form. Decoding is FastAPI's and pydantic's
own; the model runs in a thread, one batch at a time, as it would on one accelerator.

Run by ``python -m``, it is a companion whose first answer is its port on the loopback device.
"""

from __future__ import annotations

import threading
import time
from typing import Annotated, Any

import numpy as np
import uvicorn
from fastapi import Body, FastAPI, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from raytwin.scenarios.applications.serving import STATES, Model
from raytwin.scenarios.peers.companion import answer

app = FastAPI()
_accelerator = threading.Lock()
States = Annotated[list[list[float]], Body(embed=True)]
ModelTime = Annotated[float, Query(ge=0)]


@app.post("/json")
def evaluate_json(states: States, model_s: ModelTime) -> dict[str, list[float]]:
    """Return actions for states, a list of numbers each."""
    return {"actions": _evaluate(np.asarray(states, np.float32), model_s)}


@app.post("/bytes")
async def evaluate_bytes(request: Request, model_s: ModelTime) -> Response:
    """Return actions, float64, for a batch of states, float32, both as raw bytes."""
    states = np.frombuffer(await request.body(), np.float32).reshape(STATES, -1)
    actions = await run_in_threadpool(_evaluate, states, model_s)
    return Response(np.asarray(actions).tobytes(), media_type="application/octet-stream")


def _evaluate(states: Any, model_s: float) -> list[float]:
    with _accelerator:
        return Model(model_s, time.sleep)(states)


def main() -> None:
    """Serve until the input ends."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", access_log=False))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    if not server.started:
        raise SystemExit("uvicorn did not start")
    answer(lambda request: None, first=server.servers[0].sockets[0].getsockname()[1])
    server.should_exit = True
    thread.join()


if __name__ == "__main__":
    main()
