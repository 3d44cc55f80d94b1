"""Ray as a peer that serves a policy: by the same actor as raytwin, and by Ray Serve.

Run by ``python -m``, it is a companion with a Ray of its own on the loopback device; a request
``{"system", "workload", "clients", "batches"}`` gets what the clients saw.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from raytwin.scenarios.applications import serving as application
from raytwin.scenarios.applications.serving import Asked, Model, Workload, ask
from raytwin.scenarios.peers.companion import Companion, answer

ACTOR, SERVE = "Ray actor", "Ray Serve"
NEEDED: Mapping[str, tuple[str, ...]] = {
    ACTOR: ("ray",),
    SERVE: ("ray", "fastapi", "uvicorn", "aiohttp_cors", "opencensus"),
}
"""The modules that a system needs: what the extra ``serve`` of Ray brings, for the second."""
CPUS_BESIDE_CLIENTS = 6
"""For the actors and replicas of two policies, and what Ray Serve starts for itself."""
INSTALL: Mapping[str, str] = {ACTOR: "raytwin[ray]", SERVE: "raytwin[serve]"}


def missing(system: str) -> str:
    """Return what is missing for a system, as one line, or "" if nothing is."""
    lacking = [name for name in NEEDED[system] if importlib.util.find_spec(name) is None]
    if not lacking:
        return ""
    what = " and no ".join(lacking)
    return f"{system} is not measured: no {what} (pip install '{INSTALL[system]}')"


@contextmanager
def serving(clients: int) -> Iterator[dict[str, Callable[[Workload, int], list[Asked]]]]:
    """Start Ray; yield, by system that is installed, what has a batch so often evaluated.

    Raises PeerError.
    """
    installed = [system for system in NEEDED if not missing(system)]
    with Companion(f"{__package__}.ray_serving", str(clients)) as companion:
        yield {system: partial(_ask_all, companion, clients, system) for system in installed}


def _ask_all(
    companion: Companion, clients: int, system: str, workload: Workload, batches: int
) -> list[Asked]:
    found = companion.ask(system=system, workload=workload, clients=clients, batches=batches)
    return [Asked(*each) for each in found]


# -- the companion -----------------------------------------------------------------


class Served:
    """The actor of the application as a deployment of Ray Serve."""

    def __init__(self, model_s: float) -> None:
        self._model = Model(model_s, time.sleep)

    def act(self, states: Any) -> list[float]:
        """Return the actions for a batch of states."""
        return self._model(states)


def ask_deployment(handle: Any, workload: Workload, client: int, batches: int) -> Asked:
    """Be a client of a deployment."""

    def evaluate(states: Any) -> list[float]:
        return handle.act.remote(states).result()

    return ask(evaluate, time.perf_counter, workload, client, batches)


def _deploy(workload: Workload) -> Any:
    """Return a handle to one replica that evaluates a batch at a time."""
    from ray import serve

    serve.start(http_options={"location": "NoServer"})
    deployment = serve.deployment(max_ongoing_requests=1)(Served)
    return serve.run(
        deployment.bind(workload.model_s), name=f"of_{workload.state_bytes}", route_prefix=None
    )


def main() -> None:
    """Answer until the input ends."""
    os.environ.pop("RAY_ADDRESS", None)
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    import ray

    ray.init(
        address="local",
        num_cpus=int(sys.argv[1]) + CPUS_BESIDE_CLIENTS,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _node_ip_address="127.0.0.1",
        _temp_dir=tempfile.gettempdir(),
    )
    started: dict[tuple[str, Workload], Any] = {}

    def reply(request: dict[str, Any]) -> Any:
        system, workload = request["system"], Workload(*request["workload"])
        clients, batches = request["clients"], request["batches"]
        start = _deploy if system == SERVE else partial(application.start, ray)
        if (system, workload) not in started:
            started[system, workload] = start(workload)
        policy = started[system, workload]
        if system == ACTOR:
            asked = application.ask_all(ray, policy, workload, clients, batches)
        else:
            client = ray.remote(ask_deployment)
            asked = ray.get(
                [client.remote(policy, workload, number, batches) for number in range(clients)]
            )
        return asked

    try:
        answer(reply)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
